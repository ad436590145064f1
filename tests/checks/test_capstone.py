"""The capstone: names in any style are judged by the picture; mended functions by what they do."""

import ast
import inspect
import json
import queue
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy, pad
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim import SGD
from torch.utils.data import DataLoader, DistributedSampler

from course_utils import check, pick, span, warm_up
from course_utils.checks.capstone import AGAINST, FAULTS, RIGHT
from course_utils.lessons import cases
from course_utils.lessons.models import mlp
from tests.checks.judging import judge, solved

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "20_capstone.ipynb"
SICK = {"train_archive": cases.case_b, "cut_layers": cases.cut_layers, "train_large": cases.train_large,
        "train_compiled": cases.train_compiled, "train_noisy": cases.train_noisy}


@pytest.fixture(scope="module", autouse=True)
def _server():
    warm_up()


def named(letters, **names):
    return lambda: {letter: names.get(letter, RIGHT[letter]) for letter in letters}


# -- names -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["name_abc", "name_defg"])
def test_published_names(name):
    assert getattr(check, name)(getattr(check, name).published)


@pytest.mark.parametrize(
    ("letters", "names"),
    [
        ("ABC", {"A": "Straggler", "B": "DATA STALL", "C": "Unbalanced_Pipeline"}),
        ("ABC", {"A": "a straggler", "B": "data-stall", "C": " an unbalanced pipeline "}),
        ("ABC", {"A": "slow rank", "B": "slow loader", "C": "pipeline imbalance"}),
        ("DEFG", {"D": "Loss scale", "E": "missing set_epoch", "F": "recompiles", "G": "the silent rank"}),
        ("DEFG", {"D": "wrong loss-scale.", "E": "`set_epoch`", "F": "recompile each step", "G": "dead rank"}),
    ],
)
def test_names_in_any_style(letters, names):
    solved(f"name_{letters.lower()}", lambda: names)


WRONG = [(case, name) for case in RIGHT for name in FAULTS if name != RIGHT[case]]


@pytest.mark.parametrize(("case", "name"), WRONG)
def test_a_wrong_name_is_answered_by_the_picture(case, name):
    letters = "ABC" if case in "ABC" else "DEFG"
    verdict = getattr(check, f"name_{letters.lower()}")(named(letters, **{case: name}))
    assert verdict.state == "wrong"
    assert verdict.text == f"Case {case} is no {name!r}. {AGAINST[case][name]}"
    assert RIGHT[case] not in str(verdict), "the answer is not given away"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda: {"A": "stragler", "B": "", "C": ""}, "did you mean 'straggler'?"),
        (lambda: {"A": "gremlins", "B": "", "C": ""}, "there is no 'gremlins' in the list"),
        (lambda: {"A": "straggler", "B": "", "C": ""}, "Right so far. Without a name: B, C."),
        (lambda: {"A": "straggler"}, "Without a name: B, C."),
        (lambda: {"A": 3, "B": "", "C": ""}, "a name is a text"),
        (lambda: ["straggler", "data stall", "unbalanced pipeline"], "a dict was expected, this is a list"),
    ],
)
def test_what_is_no_answer(answer, words):
    judge("name_abc", answer, words)


def test_no_name_yet():
    assert check.name_abc(lambda: {"A": "", "B": "", "C": ""}).state == "not yet"


# -- the notebook's sick functions -------------------------------------------------------------------------------------


def stubs():
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    sources = ["".join(cell["source"]) for cell in cells if "exercise" in cell["metadata"].get("tags", ())]
    return {source.split("(")[0].removeprefix("def "): source for source in sources}


def body(source):
    """What a function does, without its docstring."""
    return [ast.dump(line) for line in ast.parse(source).body[0].body[1:]]


@pytest.mark.parametrize("name", SICK)
def test_the_notebook_shows_the_function_that_was_sick(name):
    assert body(stubs()[name].replace("cases.", "")) == body(inspect.getsource(SICK[name]))


def test_the_notebook_has_all_exercises_in_their_order():
    assert list(stubs()) == ["name_abc", "train_archive", "cut_layers", "name_defg", *list(SICK)[2:]]


@pytest.mark.parametrize("name", SICK)
def test_published_solution_passes(name):
    solved(name, getattr(check, name).published)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("train_archive", "in the thread that trains"),
        ("cut_layers", "cut_layers(7, 4): the fullest rank has 4 layers, and 2 are enough"),
        ("train_large", "2.00 times as long"),
        ("train_compiled", "8 programs"),
        ("train_noisy", "rank 1 had returned"),
    ],
)
def test_the_sick_function_fails_by_its_symptom(name, words):
    judge(name, SICK[name], words)


# -- B -----------------------------------------------------------------------------------------------------------------


def reading(read, *, steps=lambda steps: steps, sampler=DistributedSampler):
    def train_archive(dataset, count):
        model, optimizer = cases.replica()
        batches = iter(read(dataset, sampler(dataset) if sampler else None))
        for _ in range(steps(count)):
            with span("data"):
                x, y = next(batches)
            cases.step(model, optimizer, x, y)

    return train_archive


def by_a_thread(dataset, sampler):
    batches = queue.Queue(4)

    def read():
        for batch in DataLoader(dataset, 16, sampler=sampler):
            batches.put(batch)

    threading.Thread(target=read, daemon=True).start()
    return iter(batches.get, None)


@pytest.mark.parametrize(
    "read",
    [
        lambda dataset, sampler: DataLoader(dataset, 16, sampler=sampler, num_workers=1),
        lambda dataset, sampler: DataLoader(dataset, 16, sampler=sampler, num_workers=3, persistent_workers=True),
        by_a_thread,
    ],
)
def test_archive_right(read):
    solved("train_archive", reading(read))


def with_workers(dataset, sampler):
    return DataLoader(dataset, 16, sampler=sampler, num_workers=2)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (reading(lambda dataset, sampler: list(DataLoader(dataset, 16, sampler=sampler))), "the thread that trains"),
        (reading(with_workers, steps=lambda steps: steps - 1), "steps that rank 0 trained"),
        (reading(with_workers, sampler=None), "both ranks train on row"),
    ],
)
def test_archive_wrong(answer, words):
    judge("train_archive", answer, words)


# -- C -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer",
    [
        lambda layers, ranks: [(layers * (r + 1)) // ranks - layers * r // ranks for r in range(ranks)],
        lambda layers, ranks: tuple(len(part) for part in np.array_split(range(layers), ranks)),
        lambda layers, ranks: torch.tensor([layers // ranks + (r >= ranks - layers % ranks) for r in range(ranks)]),
    ],
)
def test_cut_right(answer):
    assert check.cut_layers(answer)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda layers, ranks: [layers // ranks] * ranks, "together they take all 7"),
        (lambda layers, ranks: [1] * (ranks - 1) + [layers - ranks + 1], "the fullest rank"),
        (lambda layers, ranks: [-(-layers // ranks)] * (ranks - 1) + [layers - (ranks - 1) * -(-layers // ranks)],
         "takes one layer at the least"),
        (lambda layers, ranks: layers // ranks, "a number of layers for each rank"),
    ],
)
def test_cut_wrong(answer, words):
    judge("cut_layers", answer, words)


# -- D -----------------------------------------------------------------------------------------------------------------


def share(part, whole, count):
    return part / whole


def weighed(losses, sizes):
    return sum(loss * size for loss, size in zip(losses, sizes, strict=True)) / sum(sizes)


def pieces(scale, *, clear=True, cut=True, said=weighed, after=None):
    def train_large(model, optimizer, x, y, count):
        if clear:
            optimizer.zero_grad()
        losses, sizes = [], []
        for part, labels in zip(x.chunk(count if cut else 1), y.chunk(count if cut else 1), strict=True):
            loss = cross_entropy(model(part), labels)
            (loss * scale(len(part), len(x), count)).backward()
            losses.append(loss.detach())
            sizes.append(len(part))
        if after:
            after(model, len(x))
        optimizer.step()
        return said(losses, sizes)

    return train_large


def divide_gradients(model, rows):
    for p in model.parameters():
        p.grad /= rows


@pytest.mark.parametrize(
    "answer",
    [
        pieces(share),
        pieces(share, said=lambda losses, sizes: float(weighed(losses, sizes))),
        pieces(lambda part, whole, count: part, after=divide_gradients),
    ],
)
def test_large_right(answer):
    solved("train_large", answer)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (pieces(share, clear=False), "not that of the whole batch"),
        (pieces(lambda part, whole, count: 1 / count), "3 pieces, of 17, 17, 16 rows: the step is not that"),
        (pieces(lambda part, whole, count: 1 / 2), "0.50 times as long"),
        (pieces(share, cut=False), "more rows than a piece has"),
        (pieces(share, said=lambda losses, sizes: sum(losses)), "the mean loss"),
        (pieces(share, said=lambda losses, sizes: sum(losses) / len(losses)), "the mean loss"),
        (lambda model, optimizer, x, y, count: optimizer.step(), "more rows than a piece has went through"),
    ],
)
def test_large_wrong(answer, words):
    judge("train_large", answer, words)


# -- F -----------------------------------------------------------------------------------------------------------------


def compiled(ready=lambda x, y: (x, y), **options):
    def train_compiled(model, batches, backend):
        fast = torch.compile(model, backend=backend, **options) if options.pop("on", True) else model
        optimizer = SGD(model.parameters(), lr=0.1)
        for x, y in batches:
            x, y = ready(x, y)
            loss = cross_entropy(fast(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return train_compiled


def marked(x, y):
    torch._dynamo.mark_dynamic(x, 0)
    return x, y


def filled(to):
    return lambda x, y: (pad(x, (0, 0, 0, -len(x) % to)), pad(y, (0, -len(y) % to), value=-100))


@pytest.mark.parametrize(
    "answer",
    [compiled(), compiled(marked), compiled(filled(32), dynamic=False), compiled(filled(16), dynamic=False)],
)
def test_compiled_right(answer):
    solved("train_compiled", answer)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (compiled(on=False), "Nothing was compiled"),
        (compiled(filled(2), dynamic=False), "3 programs at the most"),
        (compiled(lambda x, y: (x[:16], y[:16]), dynamic=False), "weights after 8 steps"),
        (compiled(lambda x, y: (pad(x, (0, 0, 0, 32 - len(x))), pad(y, (0, 32 - len(y)))), dynamic=False),
         "weights after 8 steps"),
    ],
)
def test_compiled_wrong(answer, words):
    judge("train_compiled", answer, words)


# -- G -----------------------------------------------------------------------------------------------------------------


def noisy(loss_of, *, returns=True):
    """train_noisy with its own loss, or None to leave a step out."""

    def train_noisy(batches):
        model = DDP(mlp().to(pick()))
        optimizer = SGD(model.parameters(), lr=0.1)
        for x, y in batches:
            loss = loss_of(model, x, y)
            if loss is None:
                continue
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return model.module if returns else None

    return train_noisy


def zero_for_a_broken_batch(model, x, y):
    whole = x.isfinite().all()
    loss = cross_entropy(model(x.nan_to_num()), y)
    return loss if whole else loss * 0


def gathered(model, x, y):
    loss = cross_entropy(model(x), y)
    found = [None] * dist.get_world_size()
    dist.all_gather_object(found, bool(loss.isfinite()))
    return loss if all(found) else None


@pytest.mark.parametrize("answer", [noisy(zero_for_a_broken_batch), noisy(gathered)])
def test_noisy_right(answer):
    solved("train_noisy", answer)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (noisy(lambda model, x, y: cross_entropy(model(x), y)), "A broken batch got into the weights"),
        (noisy(lambda model, x, y: cross_entropy(model(x), y).nan_to_num()), "A broken batch got into the weights"),
        (noisy(lambda model, x, y: cross_entropy(model(x.nan_to_num()), y)), "not those of a training that leaves out"),
        (noisy(lambda model, x, y: None), "not those of a training"),
        (noisy(gathered, returns=False), "Rank 0 did not return the trained network"),
    ],
)
def test_noisy_wrong(answer, words):
    judge("train_noisy", answer, words)
