"""The repairs of notebook 06: the notebook's broken functions fail by their symptom, the published ones pass."""

import contextlib
import json
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy, mse_loss
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim import SGD
from torch.utils.data import DataLoader, DistributedSampler

from course_utils import check, report, warm_up  # noqa: F401 (report: the notebook's functions use it)
from course_utils.lessons.models import mlp

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "06_ddp_pitfalls.ipynb"
NAMES = ("train_epochs", "train_uneven", "train_in_pieces", "train_two_heads", "train_and_save")


@pytest.fixture(scope="module", autouse=True)
def _server():
    warm_up()


def in_a_cell(source):
    """What a cell with this source defines."""
    found = {}
    exec(compile(source, "<ipython-input-1>", "exec"), globals(), found)
    return found


@pytest.fixture(scope="module")
def broken():
    """The functions to repair, as the notebook has them, by name."""
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    found = {}
    for cell in cells:
        if "exercise" in cell["metadata"].get("tags", ()):
            found |= in_a_cell("".join(cell["source"]))
    return found


@pytest.mark.parametrize("name", NAMES)
def test_solution_passes(name):
    exercise = getattr(check, name)
    verdict = exercise(exercise.published)
    assert verdict, str(verdict)


def test_the_notebook_holds_one_broken_function_for_each(broken):
    assert tuple(broken) == NAMES


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("train_epochs", "same order again and again"),
        ("train_uneven", "ranks 1, 2 of 3 had not finished after the time limit"),
        ("train_in_pieces", "4.00 times its size"),
        ("train_two_heads", "find_unused_parameters=True"),
        ("train_and_save", ""),  # a race: which symptom comes first is luck
    ],
)
def test_broken_function_shows_its_symptom(broken, name, words):
    verdict = getattr(check, name)(broken[name])
    assert verdict.state == "wrong"
    assert words in str(verdict)
    assert "pitfall_cases" not in str(verdict)


def every_rank_reads_all(dataset, epochs):
    model = DDP(mlp())
    for _ in range(epochs):
        for x, y in DataLoader(dataset, batch_size=4, shuffle=True):
            cross_entropy(model(x), y).backward()


def each_rank_shuffles_alone(dataset, epochs):
    for epoch in range(epochs):
        rows = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(10 * dist.get_rank() + epoch))
        for row in rows[: len(dataset) // 2]:
            dataset[int(row)]


def new_seeds(dataset, epochs):
    for epoch in range(epochs):
        for _ in DataLoader(dataset, sampler=DistributedSampler(dataset, seed=100 + epoch)):
            pass


def test_epochs():
    verdict = check.train_epochs(every_rank_reads_all)
    assert (verdict.expected, verdict.got) == ("[[8, 8, 8], [8, 8, 8]]", "[[16, 16, 16], [16, 16, 16]]")
    assert "all ranks together read in epoch 0" in check.train_epochs(each_rank_shuffles_alone).text
    assert check.train_epochs(new_seeds), "another way to the same end is right, too"


def never_synchronised(batches):
    model = DDP(mlp())
    optimizer = SGD(model.parameters(), lr=0.1)
    with model.no_sync():
        for x, y in batches:
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            optimizer.step()
    return model.module


def rest_thrown_away(batches):
    model = DDP(mlp())
    optimizer = SGD(model.parameters(), lr=0.1)
    for _, (x, y) in zip(range(2), batches, strict=False):
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
    return model.module


def nothing_trained(batches):
    list(batches)
    return mlp()


def test_uneven():
    verdict = check.train_uneven(never_synchronised)
    assert "different weights" in verdict.text
    assert verdict.expected == "the same weights on every rank"
    verdict = check.train_uneven(rest_thrown_away)
    assert verdict.expected == "[2, 3, 4]"
    assert "[2, 2" in verdict.got
    assert "Nothing was trained" in check.train_uneven(nothing_trained).text
    assert check.train_uneven(lambda batches: print("nothing")).expected == "return model.module"


def too_many_all_reduces(model, optimizer, pieces):
    optimizer.zero_grad()
    for x, y in pieces:
        (cross_entropy(model(x), y) / len(pieces)).backward()
    optimizer.step()


def quiet_backward_only(model, optimizer, pieces):
    for number, (x, y) in enumerate(pieces, 1):
        loss = cross_entropy(model(x), y) / len(pieces)
        with model.no_sync() if number < len(pieces) else contextlib.nullcontext():
            loss.backward()
    optimizer.step()


def never_reduced(model, optimizer, pieces):
    with model.no_sync():
        too_many_all_reduces(model, optimizer, pieces)


def test_in_pieces():
    for answer in (too_many_all_reduces, quiet_backward_only):
        verdict = check.train_in_pieces(answer)
        assert (verdict.expected, verdict.got) == ("[1, 1]", "[4, 4]")
    assert check.train_in_pieces(never_reduced).state == "wrong"


def without_ddp(network, batches):
    optimizer = SGD(network.parameters(), lr=0.1)
    for x, y, head in batches:
        optimizer.zero_grad()
        mse_loss(network(x, head), y).backward()
        optimizer.step()
    return network


def graph_said_to_be_static(network, batches):
    model = DDP(network, static_graph=True)
    return without_ddp(model, batches).module


def test_two_heads():
    assert "against one process with all the data" in check.train_two_heads(without_ddp).text
    assert check.train_two_heads(graph_said_to_be_static).state == "wrong"
    assert check.train_two_heads(lambda network, batches: print("nothing")).expected == "return network"


def trained(batches):
    model = DDP(mlp())
    optimizer = SGD(model.parameters(), lr=0.1)
    for x, y in batches:
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
    return model


def read_too_early(batches, path):
    model = trained(batches)
    if dist.get_rank() == 0:
        torch.save(model.module.state_dict(), path)
    return torch.load(path)


def saved_with_the_wrapper(batches, path):
    model = trained(batches)
    if dist.get_rank() == 0:
        torch.save(model.state_dict(), path)
    dist.barrier()
    return torch.load(path)


def barrier_for_one(batches, path):
    model = trained(batches)
    if dist.get_rank() == 0:
        torch.save(model.module.state_dict(), path)
        dist.barrier()
    return torch.load(path)


def not_returned(batches, path):
    check.train_and_save.published(batches, path)


def test_save():
    verdict = check.train_and_save(read_too_early)
    assert "before rank 0 had written it" in verdict.text
    assert verdict.got == "the weights of an earlier run"
    assert "'0.weight'" in check.train_and_save(saved_with_the_wrapper).text
    assert "rank 0 of 3 had not finished" in check.train_and_save(barrier_for_one).text
    assert check.train_and_save(not_returned).state == "not yet"


RAISES = """
def train_two_heads(network, batches):
    report(step=0, loss=1.0)
    raise ValueError("no such head")
"""


def test_an_answer_that_raises_is_shown_without_our_frames():
    verdict = check.train_two_heads(in_a_cell(RAISES)["train_two_heads"])
    assert "raised ValueError: no such head" in str(verdict)
    assert "Cell, line 4, in train_two_heads" in str(verdict)
    assert "pitfall_cases" not in str(verdict)
