"""Exercises of notebook 20: eight faults to name by what is seen, and four functions to mend."""

import math
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim import SGD
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader, DistributedSampler

from ..errors import CourseError
from ..lessons import faulty_jobs
from ..lessons.memory import SavedTensors
from ..lessons.models import mlp
from ..machine import pick
from ..ranks.spans import span
from ..style import plural
from .compare import AtMost, kind
from .exercise import Values, exercise
from .instruments import (
    Rows,
    Steps,
    batch,
    counts_of_layers,
    equal_everywhere,
    in_steps,
    returned,
    rows_into,
    trained,
    weights,
)

# The names, and what else is understood: regular expressions of `plain` words, where bf16 is bf.
FAULTS = {
    "straggler": "straggling rank|slow (rank|device|worker)",
    "data stall": "slow (data|loader|data loader|dataloader)|data loading|input stall",
    "slow link": "slow (network|interconnect|communication)",
    "unbalanced pipeline": "unbalanced stages?|pipeline imbalance|imbalanced pipeline",
    "wrong loss scale": "loss scale|wrong scale|accumulation without division|missing division",
    "no set_epoch": "set epoch|(missing|forgotten) set epoch|set epoch missing|same order",
    "learning rate too high": "learning rate|too high learning rate|lr too high",
    "silent rank": "(dead|missing) rank|hang|rank (that )?never arrives",
    "graph kept": "kept graph|graph kept alive|memory leak|missing no grad|activations kept",
    "updates rounded away": "rounded updates|updates lost|rounding|(low precision|bf) weights",
}
VALUES = ("wrong loss scale", "no set_epoch", "learning rate too high", "updates rounded away")
TIMES = ("straggler", "data stall", "slow link", "unbalanced pipeline")
SILENT = {"silent rank": "A rank that others wait for would keep them for ever. This run ended."}
ENDED = SILENT | {"graph kept": "It fills the memory, which nothing here shows."}
NO_AXIS = "It costs time, which no axis shows: the curves would be the healthy job's."
BARS = ENDED | dict.fromkeys(
    VALUES, "It changes the numbers, not their time: the bars would be the healthy job's."
)
CURVES = ENDED | dict.fromkeys(TIMES, NO_AXIS)
NO_TRAINING = "Nothing is trained here: no weight changes."
NO_STAGES = "Every rank has the whole model here: nobody waits for a neighbour's activations."

# Why a wrong name is wrong: what the picture of the case would show, or cannot show.
AGAINST = {
    "A": BARS
    | {
        "data stall": "The data bars would be long. Here they hardly show.",
        "slow link": "Every rank's all-reduce would be long. Look for one that is short each time.",
        "unbalanced pipeline": NO_STAGES,
    },
    "B": BARS
    | {
        "straggler": "The bars of one rank would be longer than those of the others. Here all "
        "ranks look alike.",
        "slow link": "The all-reduces would be what takes long. Which bars are the longest?",
        "unbalanced pipeline": NO_STAGES,
    },
    "C": BARS
    | {
        "straggler": "The same work would take longer on one rank. A bar is a layer, and bars are "
        "alike; count them.",
        "data stall": "Rank 0 alone reads the batches, and it is the first to be done.",
        "slow link": "The last rank would wait again and again for a message. Once it has begun, "
        "it has no gap.",
    },
    "D": CURVES
    | {
        "no set_epoch": "All four runs are given the same rows in the same order.",
        "learning rate too high": "All four runs have the same one, and the first gradient does "
        "not depend on it.",
        "updates rounded away": "The first gradients differ, before anything was updated.",
    },
    "E": CURVES
    | {
        "wrong loss scale": "A step too long makes the loss fall too fast, or rise. Look at how "
        "alike the curves are.",
        "learning rate too high": "The loss would jump about from epoch to epoch. Each curve lies "
        "just below the last.",
        "updates rounded away": "The weights would stand still. Each curve lies below the one "
        "before.",
    },
    "F": dict.fromkeys(
        TIMES, "It makes a run slow, but every rank comes to the last all-reduce. Who had returned?"
    )
    | dict.fromkeys(VALUES, "It changes the numbers; the ranks would all return.")
    | {"graph kept": "It fills the memory until a process is killed. Here nobody was."},
    "G": SILENT | dict.fromkeys(TIMES, NO_AXIS) | dict.fromkeys(VALUES, NO_TRAINING),
    "H": CURVES
    | {
        "wrong loss scale": "Nothing is accumulated here, and both runs have the same loss "
        "function.",
        "no set_epoch": "Every step takes the same rows, in both runs.",
        "learning rate too high": "Both runs have the same one, and with 32 bits the loss falls.",
    },
}


def name_abc():
    """What is wrong in A, B and C: names from the list."""
    return {"A": "straggler", "B": "data stall", "C": "unbalanced pipeline"}


def name_others():
    """What is wrong in D to H: names from the list."""
    return {
        "D": "wrong loss scale",
        "E": "no set_epoch",
        "F": "silent rank",
        "G": "graph kept",
        "H": "updates rounded away",
    }


def plain(said: str) -> str:
    words = re.sub(r"[^a-z]+", " ", said.lower()).split()
    return " ".join(word for word in words if word not in ("a", "an", "the"))


def meant(said: str) -> str | None:
    """The fault that is called so; None if it is not in the list."""
    for name, others in FAULTS.items():
        if re.fullmatch(f"{plain(name)}|{others}", plain(said)):
            return name
    return None


def misnamed(solution: Callable) -> dict[str, Callable]:
    """Each wrong name as a mistake: the sentence against it, and the answer that gives it."""
    mistakes = {}
    for letter in solution():
        for name, why in AGAINST[letter].items():
            wrong = partial(dict, solution(), **{letter: name})
            mistakes[f"{letter} is no {name!r}. {why}"] = wrong
    return mistakes


def probe_of_names(solution: Callable) -> Callable:
    def probe(answer: Callable) -> Values:
        given = answer()
        if not isinstance(given, Mapping):
            raise CourseError(f"it is {kind(given)}, not a dict with a name for each letter.")
        said = {str(letter).upper(): name for letter, name in given.items() if name}
        # The solution is not shown: what is wrong is compared with nothing wrong.
        for letter, right in solution().items():
            name = said.get(letter)
            wrong = meant(str(name)) or f"{name!r}, which is not in the list"
            if name is None:
                wrong = "no name yet" if said else None
            yield f"the name of {letter}", "" if wrong == right else wrong
        yield "", "; ".join(f"{letter}: {name}" for letter, name in solution().items()) + "."

    return probe


for names in (name_abc, name_others):
    exercise(names, here=True, mistakes=misnamed(names))(probe_of_names(names))


def train_archive(dataset, steps):
    """Train for some steps on rows that take long to read."""
    model, optimizer = faulty_jobs.replica()
    batches = iter(DataLoader(dataset, 16, sampler=DistributedSampler(dataset), num_workers=2))
    for _ in range(steps):
        with span("data"):
            x, y = next(batches)
        faulty_jobs.step(model, optimizer, x, y)


class Read(Rows):
    """Reading a row takes as long as in the archive; it notes when, and whether in this thread."""

    def __init__(self, rows: int) -> None:
        super().__init__(rows)
        self.trains = os.getpid(), threading.get_ident()
        self.by_it = torch.zeros(rows, dtype=torch.bool, device="cpu").share_memory_()
        self.last = torch.zeros(rows, dtype=torch.float64, device="cpu").share_memory_()

    def __getitem__(self, row: int) -> tuple[torch.Tensor, torch.Tensor]:
        time.sleep(0.005)
        if (os.getpid(), threading.get_ident()) == self.trains:
            self.by_it[row] = True
        self.last[row] = time.monotonic()
        return super().__getitem__(row)


def read_ahead(last: torch.Tensor, read: list[list[int]], ends: list[float]) -> bool:
    """Whether rows are read while a step computes, and a batch before the step before it ends."""
    step = faulty_jobs.FORWARD + faulty_jobs.BACKWARD
    meanwhile = any(((end - step < last) & (last < end)).any() for end in ends)
    before = any((last[rows] < end).any() for rows, end in zip(read[1:], ends, strict=False))
    return meanwhile and before


@exercise(
    train_archive,
    ranks=(2,),
    mistakes={"nobody reads the next batch while it computes": faulty_jobs.job_b},
)
def _(answer):
    for count in (2, 6):
        rows = Read(256)
        ends: list[float] = []

        def note(*_: object, ends: list[float] = ends) -> None:
            ends.append(time.monotonic())

        with register_optimizer_step_post_hook(note), Steps() as steps:
            answer(rows, count)
        # the step before the first is on zeros
        read = [rows.read(x) for x in steps.inputs if x.any()]
        yield f"{count} steps: the rows of each, in the sampler's order", read
        by_it = int(rows.by_it.sum())
        yield f"{count} steps: rows read by the thread that trains", by_it
        yield f"{count} steps: equal weights on all ranks before each step", steps.equal()
        yield f"{count} steps: the weights before the last", steps.weights[-1]
    ahead = read_ahead(rows.last, read, ends[-count:])
    yield f"{count} steps: whether the next batch is read while one computes", ahead
    yield "", "Other threads or processes read the next batches while one computes."


def cut_layers(layers, ranks):
    """How many layers each rank takes, in the order of the ranks."""
    each, more = divmod(layers, ranks)
    return [each + 1 if rank < more else each for rank in range(ranks)]


@exercise(cut_layers, mistakes={"one rank takes all that is left over": faulty_jobs.cut_layers})
def _(answer):
    for layers, ranks in (
        (7, 4),
        (8, 4),
        (9, 4),
        (10, 4),
        (6, 4),
        (11, 3),
        (5, 1),
        (31, 8),
        (4, 4),
    ):
        call = f"cut_layers({layers}, {ranks})"
        counts = yield from counts_of_layers(call, answer(layers, ranks))
        fullest = AtMost(max(counts), math.ceil(layers / ranks))
        yield f"{call}: the layers of the fullest rank", fullest
    yield "", "No rank has more layers than it must."


def train_large(model, optimizer, x, y, pieces):
    """One step on the batch x, y, cut into pieces that fit into the memory; the mean loss."""
    losses = []
    optimizer.zero_grad()
    for part, labels in zip(x.chunk(pieces), y.chunk(pieces), strict=True):
        loss = cross_entropy(model(part), labels) * len(part) / len(x)
        loss.backward()
        losses.append(loss.detach())
    optimizer.step()
    return torch.stack(losses).sum()


@exercise(
    train_large,
    mistakes={
        "the gradient of each piece counts in full, and they add up": faulty_jobs.train_large
    },
)
def _(answer):
    for rows, pieces in ((50, 1), (50, 2), (50, 3), (7, 4), (9, 4), (64, 8)):  # 9 rows make 3
        model = mlp()
        optimizer = SGD(model.parameters(), lr=0.5, momentum=0.9)
        x, y = batch(pieces, rows)
        x = 20 * x  # who clips such gradients is seen
        for p in model.parameters():
            p.grad = torch.full_like(p, 0.01)
        optimizer.step()  # whose gradients and momentum are there
        with SavedTensors() as one:
            cross_entropy(model(x.chunk(pieces)[0]), y.chunk(pieces)[0])

        rows_at_once = rows_into(model)
        with SavedTensors() as saved:
            loss = answer(model, optimizer, x, y, pieces)
        where = f"{rows} rows in {plural(pieces, 'piece')}"
        yield f"{where}: the mean loss", None if loss is None else float(loss)
        most_rows = AtMost(max(rows_at_once), math.ceil(rows / pieces))
        yield f"{where}: rows that went through the model at once", most_rows
        bytes_kept = AtMost(saved.peak, int(1.5 * one.peak))
        yield f"{where}: bytes kept for the backward at once", bytes_kept
        yield f"{where}: how far the weights move", (weights(model) - weights(mlp())).norm().item()
        yield f"{where}: the weights after it", weights(model)
    yield "", "The step of the whole batch each time."


def train_noisy(batches):
    """Train on this rank's batches, and leave out those that are broken; the trained network."""
    model = DDP(mlp().to(pick()))
    optimizer = SGD(model.parameters(), lr=0.1)
    for x, y in batches:
        loss = cross_entropy(model(x), y)
        whole = loss.isfinite().float()
        dist.all_reduce(whole, dist.ReduceOp.MIN)  # all ranks decide alike
        if not whole:
            continue
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.module


def whole(batches: Iterable[tuple]) -> list[tuple]:
    """Those of them that are not broken."""
    return [(x, y) for x, y in batches if x.isfinite().all()]


@exercise(train_noisy, ranks=(3,), seconds=8)
def _(answer):
    for broken in ({(1, 1), (1, 3), (2, 3)}, {(0, 0), (2, 4)}):  # (rank, step)
        lists = [[batch(10 * rank + step) for step in range(5)] for rank in range(3)]
        for rank, step in broken:
            lists[rank][step][0][rank + step, 40 + step] = math.nan  # one pixel
        network = answer([*lists[dist.get_rank()]])
        places = [f"batch {step} of rank {rank}" for rank, step in sorted(broken)]
        where = f"broken: {', '.join(places)}"
        yield f"{where}: what it returns", returned(network)
        end = weights(network)
        wrong = int((~end.isfinite()).sum())
        yield f"{where}: weights that are no finite number afterwards", wrong
        yield f"{where}: equal weights on all ranks", equal_everywhere(end)
        # the step left out, or the batch, which may count as zeros, or the next one in its place,
        # with gradients divided by all ranks or by those that have a batch
        kept = [whole(step) for step in zip(*lists, strict=True)]
        complete = [step for step in kept if len(step) == 3]
        joined = in_steps(map(whole, lists))
        ways = [trained(complete)]
        ways += [trained(steps, by=by) for steps in (kept, joined) for by in (3, 0)]
        alike = [torch.allclose(end, way, rtol=0, atol=1e-5) for way in ways]
        yield f"{where}: weights of a training on all batches but the broken ones", any(alike)
    yield "", "Nobody waits, and the weights are equal and finite on every rank."
