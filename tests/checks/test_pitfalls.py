"""The repairs on DDP's pitfalls: the notebook's broken functions fail by their symptom, the published ones pass."""

import contextlib
import json
import os
import pickle
import random
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy, mse_loss
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim import SGD
from torch.utils.data import DataLoader, DistributedSampler, Subset

from course_utils import check, pick, report, warm_up  # noqa: F401 (the notebook's functions use them)
from course_utils.checks import pitfalls, saving
from course_utils.lessons.models import mlp
from tests.checks.judging import judge, solved

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "07_ddp_pitfalls.ipynb"
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
        ("train_epochs", "in epoch 1 in the order of an epoch before"),
        ("train_uneven", "ranks 1, 2 of 3 had not finished after"),
        ("train_in_pieces", "4.00 times its size"),
        ("train_two_heads", "find_unused_parameters=True"),
        ("train_and_save", ""),  # a race: which symptom comes first is luck
    ],
)
def test_broken_function_shows_its_symptom(broken, name, words):
    judge(name, broken[name], words)


def step(model, optimizer, x, y, *, scale=1.0):
    optimizer.zero_grad()
    (scale * cross_entropy(model(x.to(pick())), y.to(pick()))).backward()
    optimizer.step()


def new():
    model = DDP(mlp().to(pick()))
    return model, SGD(model.parameters(), lr=0.1)


# -- epochs ------------------------------------------------------------------------------------------------------------


def epochs(*, tell=True, sampled=True, seed=1, wrap=True, train=step, known=None, **options):
    """train_epochs with one thing another way."""

    def train_epochs(dataset, epochs):
        sampler = DistributedSampler(dataset, seed=seed) if sampled else None
        loader = DataLoader(dataset, 4, sampler=sampler, **options)
        model, optimizer = new()
        model = model if wrap else model.module
        for epoch in range(known or epochs):
            if tell is True:
                sampler.set_epoch(epoch)
            for x, y in loader:
                if tell == "in each batch":
                    sampler.set_epoch(epoch)
                train(model, optimizer, x, y)

    return train_epochs


def a_sampler_for_each_epoch(dataset, epochs):
    model, optimizer = new()
    for epoch in range(epochs):
        sampler = DistributedSampler(dataset, seed=epoch)
        for x, y in DataLoader(dataset, 4, sampler=sampler):
            step(model, optimizer, x, y)


def by_index(dataset, epochs):
    model, optimizer = new()
    for epoch in range(epochs):
        order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(epoch))
        for rows in order[dist.get_rank() :: dist.get_world_size()].split(4):
            x, y = (torch.stack(part) for part in zip(*(dataset[int(row)] for row in rows), strict=True))
            step(model, optimizer, x, y)


def a_subset_for_each_epoch(dataset, epochs):
    model, optimizer = new()
    for epoch in range(epochs):
        order = random.Random(epoch).sample(range(len(dataset)), len(dataset))
        for x, y in DataLoader(Subset(dataset, order[dist.get_rank() :: dist.get_world_size()]), 2):
            step(model, optimizer, x, y)


RIGHT_EPOCHS = [epochs(num_workers=1), epochs(seed=7), a_sampler_for_each_epoch, by_index, a_subset_for_each_epoch]


@pytest.mark.parametrize("answer", RIGHT_EPOCHS)
def test_epochs_right(answer):
    solved("train_epochs", answer)


def one_epoch_for_all(dataset, epochs):
    sampler = DistributedSampler(dataset)
    sampler.set_epoch(epochs)
    model, optimizer = new()
    for _ in range(epochs):
        for x, y in DataLoader(dataset, 4, sampler=sampler):
            step(model, optimizer, x, y)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (epochs(tell="in each batch"), "the order of an epoch before"),
        (one_epoch_for_all, "the order of an epoch before"),
        (epochs(tell=False, sampled=False, shuffle=True), "number of rows that each rank trained on"),
        (epochs(known=3), "trained on in 2 epochs"),
        (epochs(wrap=False), "Before step 1, ranks 0 and 1 have different weights"),
        (epochs(train=lambda *batch: None), "number of rows that each rank trained on"),
        (epochs(train=lambda model, optimizer, x, y: model(x.to(pick()))), "Nothing was trained"),
        (epochs(drop_last=True, batch_sampler=None, seed=0, tell=False), "the order of an epoch before"),
        (lambda dataset, epochs: print("nothing"), "number of rows that each rank trained on"),
    ],
)
def test_epochs_wrong(answer, words):
    judge("train_epochs", answer, words)


# -- uneven ------------------------------------------------------------------------------------------------------------


def most(batches, how=dist.ReduceOp.MAX):
    number = torch.tensor([len(batches)], device=pick())
    dist.all_reduce(number, op=how)
    return int(number)


def all_steps(batches):
    model, optimizer = new()
    for batch in batches:
        step(model, optimizer, *batch)
    return model.module


def joined(batches):
    model, optimizer = new()
    with model.join(divide_by_initial_world_size=False):
        for batch in batches:
            step(model, optimizer, *batch)
    return model


def repeated(batches):
    return all_steps([batches[i % len(batches)] for i in range(most(batches))])


def padded_with_nothing(batches):
    model, optimizer = new()
    for i in range(most(batches)):
        x, y = batches[min(i, len(batches) - 1)]
        step(model, optimizer, x, y, scale=float(i < len(batches)))
    return model.module


def by_hand(batches):
    network = mlp().to(pick())
    optimizer = SGD(network.parameters(), lr=0.1)
    for i in range(most(batches)):
        optimizer.zero_grad()
        if i < len(batches):
            cross_entropy(network(batches[i][0]), batches[i][1]).backward()
        for p in network.parameters():
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
        optimizer.step()
    return network


@pytest.mark.parametrize("answer", [joined, repeated, padded_with_nothing, by_hand])
def test_uneven_right(answer):
    solved("train_uneven", answer)


def never_synchronised(batches):
    model, optimizer = new()
    with model.no_sync():
        for batch in batches:
            step(model, optimizer, *batch)
    return model.module


def alone(batches, at_the_end):
    network = mlp().to(pick())
    optimizer = SGD(network.parameters(), lr=0.1)
    for batch in batches:
        step(network, optimizer, *batch)
    for p in network.parameters():
        at_the_end(p.detach())
    return network


def averaged_once(tensor):
    dist.all_reduce(tensor)
    tensor /= dist.get_world_size()


def only_read(batches):
    network = mlp()
    with torch.no_grad():
        for _ in list(batches):
            for p in network.parameters():
                p += 1
    return network


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (never_synchronised, "Before step 1, ranks 0 and 1 have different weights"),
        (lambda batches: all_steps(batches[: most(batches, dist.ReduceOp.MIN)]), "of its 3 batches rank 1 trained on"),
        (lambda batches: all_steps(batches[:2]), "of its 3 batches rank 1 trained on"),
        (lambda batches: all_steps([batches[0]] * most(batches)), "of its 2 batches rank 0 trained on"),
        (lambda batches: alone(batches, lambda p: dist.broadcast(p, src=0)), "Before step 1"),
        (lambda batches: alone(batches, averaged_once), "Before step 1"),
        (only_read, "of its 2 batches rank 0 trained on"),
        (lambda batches: repeated(batches).state_dict(), "did not return the trained network"),
        (lambda batches: print("nothing"), "did not return the trained network"),
        (lambda batches: mlp(), "of its 2 batches rank 0 trained on"),
    ],
)
def test_uneven_wrong(answer, words):
    judge("train_uneven", answer, words)


# -- pieces ------------------------------------------------------------------------------------------------------------


def accumulate(*, clear=True, divide=len, sync=lambda i, n: i == n - 1, inside="forward", rate=1.0):
    """train_in_pieces with one thing another way; `inside` no_sync: "forward" and backward, or "backward" alone."""

    def train_in_pieces(model, optimizer, pieces):
        if clear:
            optimizer.zero_grad()
        optimizer.param_groups[0]["lr"] *= rate
        for i, (x, y) in enumerate(pieces):
            quiet = contextlib.nullcontext if sync(i, len(pieces)) else model.no_sync
            with quiet() if inside == "forward" else contextlib.nullcontext():
                loss = cross_entropy(model(x), y) / divide(pieces)
                with quiet() if inside == "backward" else contextlib.nullcontext():
                    loss.backward()
        optimizer.step()

    return train_in_pieces


def last_one_apart(model, optimizer, pieces):
    optimizer.zero_grad(set_to_none=False)
    *first, (x, y) = pieces
    with model.no_sync():
        for images, digits in first:
            cross_entropy(model(images), digits).backward()
    cross_entropy(model(x), y).backward()
    for p in model.parameters():
        p.grad /= len(pieces)
    optimizer.step()


def by_flag(model, optimizer, pieces):
    optimizer.zero_grad()
    for i, (x, y) in enumerate(pieces, 1):
        model.require_backward_grad_sync = i == len(pieces)
        (cross_entropy(model(x), y, reduction="sum") / (len(y) * len(pieces))).backward()
    optimizer.step()


def sent_by_hand(model, optimizer, pieces):
    optimizer.zero_grad()
    with model.no_sync():
        for x, y in pieces:
            (cross_entropy(model(x), y) / len(pieces)).backward()
    bucket = torch.cat([p.grad.flatten() for p in model.parameters()])
    dist.all_reduce(bucket)
    bucket /= dist.get_world_size()
    torch.nn.utils.vector_to_parameters(bucket, [p.grad for p in model.parameters()])
    optimizer.step()


def in_one(model, optimizer, pieces):
    optimizer.zero_grad()
    x, y = (torch.cat(part) for part in zip(*pieces, strict=True))
    cross_entropy(model(x), y).backward()
    optimizer.step()


@pytest.mark.parametrize("answer", [accumulate(), last_one_apart, by_flag, sent_by_hand, in_one])
def test_in_pieces_right(answer):
    solved("train_in_pieces", answer)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (accumulate(sync=lambda i, n: True), "expected [1, 1]"),
        (accumulate(inside="backward"), "expected [1, 1]"),
        (accumulate(sync=lambda i, n: False), "ranks 0 and 1 have different weights"),
        (accumulate(sync=lambda i, n: i == 0), "ranks 0 and 1 have different weights"),
        (accumulate(sync=lambda i, n: i >= 3), "ranks 0 and 1 have different weights"),
        (accumulate(clear=False), "gradients from before it are still in it"),
        (accumulate(divide=lambda pieces: 1), "4.00 times its size"),
        (accumulate(divide=lambda pieces: 4), "The second step, of 3 pieces, has not the size"),
        (accumulate(divide=lambda pieces: 1, rate=0.25), "The second step, of 3 pieces"),
        (accumulate(divide=lambda pieces: 2 * len(pieces)), "0.50 times its size"),
    ],
)
def test_in_pieces_wrong(answer, words):
    judge("train_in_pieces", answer, words)


# -- two heads ---------------------------------------------------------------------------------------------------------


def heads(wrap, **loss):
    """train_two_heads with its own way to wrap the network."""

    def train_two_heads(network, batches):
        model = wrap(network)
        optimizer = SGD(network.parameters(), lr=0.1)
        for x, y, head in batches:
            optimizer.zero_grad()
            mse_loss(model(x, head), y, **loss).backward()
            optimizer.step()
        return network

    return train_two_heads


def both_heads(network, batches):
    model = DDP(network)
    optimizer = SGD(model.parameters(), lr=0.1)
    for x, y, head in batches:
        optimizer.zero_grad()
        other = sum((p * 0).sum() for p in network.parameters())
        (mse_loss(model(x, head), y) + other).backward()
        optimizer.step()
    return model


def by_hand_with_zeros(network, batches):
    optimizer = SGD(network.parameters(), lr=0.1)
    for x, y, head in batches:
        optimizer.zero_grad()
        mse_loss(network(x, head), y).backward()
        for p in network.parameters():
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            averaged_once(p.grad)
        optimizer.step()
    return network


def looks_for_unused(network, **options):
    return DDP(network, find_unused_parameters=True, **options)


RIGHT_HEADS = [
    heads(looks_for_unused),
    heads(lambda network: looks_for_unused(network, gradient_as_bucket_view=True)),
    heads(lambda network: looks_for_unused(network, bucket_cap_mb=1)),
    by_hand_with_zeros,
    both_heads,
]


@pytest.mark.parametrize("answer", RIGHT_HEADS)
def test_two_heads_right(answer):
    solved("train_two_heads", answer)


def averaged_where_there_is_one(network, batches):
    return heads(lambda network: network)(network, batches)


def frozen_heads(network, batches):
    network.heads.requires_grad_(False)
    return heads(DDP)(network, batches)


def one_head_only(network, batches):
    return heads(looks_for_unused)(network, [(x, y, "a") for x, y, _ in batches])


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (heads(DDP), "find_unused_parameters=True"),
        (averaged_where_there_is_one, "against one process with all the data"),
        (heads(lambda network: DDP(network, static_graph=True)), ""),
        (frozen_heads, "against one process with all the data"),
        (one_head_only, "against one process with all the data"),
        (heads(looks_for_unused, reduction="sum"), "against one process with all the data"),
        (lambda network, batches: network, "against one process with all the data"),
        (lambda network, batches: print("nothing"), "did not return the trained network"),
    ],
)
def test_two_heads_wrong(answer, words):
    judge("train_two_heads", answer, words)


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


# -- saving ------------------------------------------------------------------------------------------------------------


def first():
    return dist.get_rank() == 0


def saved(write, *, wait=dist.barrier, read=lambda path: torch.load(path, map_location=pick()), train=True):
    """train_and_save: rank 0 writes with `write`, all `wait`, then `read`."""

    def train_and_save(batches, path):
        model, optimizer = new()
        for batch in batches if train else ():
            step(model, optimizer, *batch)
        if first():
            write(model, path)
        wait()
        return read(path)

    return train_and_save


def plain(model, path):
    torch.save(model.module.state_dict(), path)


def then_renamed(model, path):
    torch.save(model.module.state_dict(), path + ".new")
    os.replace(path + ".new", path)


def to_an_open_file(model, path):
    with open(path, "wb") as file:
        torch.save(model.module.state_dict(), file)


def collective_instead_of_a_barrier():
    dist.all_reduce(torch.ones(1, device=pick()))


def with_objects():
    dist.all_gather_object([None] * dist.get_world_size(), torch.ones(3))


def from_an_open_file(path):
    with open(path, "rb") as file:
        return torch.load(file, map_location="cpu")


RIGHT_SAVING = [
    saved(then_renamed),
    saved(to_an_open_file),
    saved(plain, wait=collective_instead_of_a_barrier),
    saved(plain, wait=with_objects, read=from_an_open_file),
]


@pytest.mark.parametrize("answer", RIGHT_SAVING)
def test_saving_right(answer):
    solved("train_and_save", answer)


def never_read(batches, path):
    model, optimizer = new()
    for batch in batches:
        step(model, optimizer, *batch)
    if first():
        plain(model, path)
    return model.module.state_dict()


def own_files(batches, path):
    model, optimizer = new()
    for batch in batches:
        step(model, optimizer, *batch)
    torch.save(model.module.state_dict(), f"{path}.{dist.get_rank()}")
    return torch.load(f"{path}.{dist.get_rank()}")


def the_network(batches, path):
    network = mlp().to(pick())
    network.load_state_dict(saved(plain)(batches, path))
    return network


def polled(path):
    if first():
        return torch.load(path)
    before = os.path.getmtime(path)
    while os.path.getmtime(path) == before:
        time.sleep(0.01)
    return torch.load(path)


def barrier_for_one(batches, path):
    model, optimizer = new()
    for batch in batches:
        step(model, optimizer, *batch)
    if first():
        plain(model, path)
        dist.barrier()
    return mlp().state_dict()


def pickled(model, path):
    with open(path, "wb") as file:
        pickle.dump(model.module.state_dict(), file)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (saved(plain, wait=lambda: None), "to its end"),
        (saved(plain, wait=lambda: time.sleep(3)), "to its end"),
        (saved(plain, wait=lambda: None, read=polled), "to its end"),
        (never_read, "did not read the file"),
        (own_files, "ranks [0, 1, 2]"),
        (saved(lambda model, path: torch.save(model.state_dict(), path)), "its names"),
        (saved(lambda model, path: torch.save(model.module, path)), "raised UnpicklingError"),
        (saved(pickled), "raised UnpicklingError"),
        (saved(plain, train=False), "Nothing was trained"),
        (saved(plain, read=lambda path: torch.load(path) if first() else None), "Rank 1 returned nothing"),
        (the_network, "a dict was expected, this is a Sequential"),
        (barrier_for_one, "rank 0 of 3 had not finished"),
    ],
)
def test_saving_wrong(answer, words, monkeypatch):
    monkeypatch.setattr(saving, "LIMIT", 4.0)
    judge("train_and_save", answer, words)


def test_the_limits_are_shorter_than_patience():
    assert max(pitfalls.LIMIT, pitfalls.SHORT, saving.LIMIT) <= 15
