"""Exercises of notebook 22: a whole training loop on 1, 2 and 3 ranks, judged by its effects; and
the arithmetic of an epoch.

Each rank has a folder of its own, so that it is known who writes. What the steps should do is done
once more by one process, with the rows that the answer took.
"""

import contextlib
import io
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import chain, combinations, islice, product
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.functional import cosine_similarity, cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.utils import clip_grad_norm_, vector_to_parameters
from torch.optim.lr_scheduler import LinearLR
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils import data

from ..lessons import solo
from ..ranks.launcher import launch
from ..ranks.traffic import Traffic
from ..style import plural
from .compare import AtMost, difference, kind
from .exercise import AT, exercise

ROWS, TESTS, FEATURES = 118, 23, 8  # with rows that a sampler adds, 3 ranks take another step
BATCH, PIECES, STEPS = 24, 2, 4  # STEPS of an epoch; a piece is left over on 1, 2 and 3 ranks
LIMIT = 15.0  # seconds for a run, which takes less than one
EARLY = {"spoilt": True, "epochs": 8, "patience": 2}
HISTORY = "which ranks do not return the history of all epochs, to rounding"
LOADS = "the network of one device, given best.pt"


@dataclass
class Step:
    """What a rank does in a step of its optimizer."""

    rows: list[int]
    mask: Tensor  # of the dropout of its first piece
    rate: float
    before: Tensor  # the weights
    gradient: Tensor
    after: Tensor


@dataclass
class Seen:
    """What is seen of an answer on one rank."""

    steps: list[Step] = field(default_factory=list)
    history: Any = None
    made: bool = False  # the rows
    files: list[str] = field(default_factory=list)
    printed: bool = False
    in_eval: int = 0  # passes that record gradients
    reduced: float = 0.0  # bytes of gradients


def datasets(spoilt: bool) -> tuple[data.TensorDataset, data.TensorDataset]:
    """Rows that are known by their first number; `spoilt`: every other label to validate with is
    wrong.
    """
    # With this seed the validation loss in `stopped` rises, falls and rises, its least is not where
    # the accuracy is best, and no rank's share of the rows stops where all rows do.
    generator = torch.Generator().manual_seed(109)
    x = torch.randn(ROWS + TESTS, FEATURES, generator=generator, dtype=torch.float64)
    y = x[:, 1:4].argmax(1)
    x[:, 0] = torch.arange(1, len(x) + 1) / len(x)
    if spoilt:
        y[ROWS + 1 :: 2] = (y[ROWS + 1 :: 2] + 1) % 3
    return data.TensorDataset(x[:ROWS], y[:ROWS]), data.TensorDataset(x[ROWS:], y[ROWS:])


def network(noisy: bool) -> nn.Sequential:
    """With batch norm and dropout, or with group norm, by which no row changes another's output."""
    norm = nn.BatchNorm1d(12) if noisy else nn.GroupNorm(2, 12)
    dropout = nn.Dropout(0.3 if noisy else 0.0)
    return nn.Sequential(
        dropout, nn.Linear(FEATURES, 12), norm, nn.ReLU(), nn.Linear(12, 3)
    ).double()


def held(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def full(tensors: Iterable[Tensor]) -> Tensor:
    """Copies in one vector, of what is sharded, too."""
    whole = [t.full_tensor() if isinstance(t, DTensor) else t for t in tensors]
    return torch.cat([t.detach().flatten() for t in whole])


def apart(one: Tensor, other: Tensor) -> float:
    return (one - other).abs().max().item()


def watch(
    answer: Callable,
    words: str,
    home: Path,
    killed: Path | None = None,
    noisy: bool = False,
    spoilt: bool = False,
    epochs: int = 2,
    patience: int = 9,
) -> Seen:
    """On a rank: call the answer, and look at it from outside.

    Args:
        killed: the folder that a run has left, which is resumed.
    """
    print(AT + words, flush=True)
    seen = Seen()
    rank = dist.get_rank()
    folder = home / f"rank {rank}"
    cache = home / "rows"
    folder.mkdir()
    if killed:
        shutil.copytree(killed, folder, dirs_exist_ok=True)
    rows: list[int] = []
    masks: list[Tensor] = []

    def prepare() -> tuple:
        if not cache.exists():
            time.sleep(0.1)  # another rank that does not wait sees no file, either
            cache.touch()
            seen.made = True
        return datasets(spoilt)

    def forward(module: nn.Module, inputs: tuple) -> None:
        if not torch.is_grad_enabled():
            return
        if not module.training:
            seen.in_eval += 1
            return
        ended, step = divmod(len(seen.steps), STEPS)
        if rank == 0 and ended and not (step or rows):
            shutil.copytree(folder, left(home, ended), dirs_exist_ok=True)
        rows.extend(round(x) for x in (inputs[0][:, 0] * (ROWS + TESTS)).tolist())

    def dropped(module: nn.Module, inputs: tuple, output: Tensor) -> None:
        if module.training:
            masks.append(output == 0)

    def build() -> nn.Module:
        built = network(noisy)
        built[0].register_forward_pre_hook(forward)  # which is always called by position
        built[0].register_forward_hook(dropped)
        return built

    def begins(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if not rows:  # a step without a forward, as get_state_dict makes one
            return
        parameters = held(optimizer)
        weights = full(parameters)
        gradient = full(torch.zeros_like(p) if p.grad is None else p.grad for p in parameters)
        rate = optimizer.param_groups[0]["lr"]
        seen.steps.append(Step([*rows], masks[0], rate, weights, gradient, weights))

    def ends(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if rows:
            seen.steps[-1].after = full(held(optimizer))
            rows.clear()
            masks.clear()

    register_optimizer_step_pre_hook(begins)
    register_optimizer_step_post_hook(ends)
    with (
        contextlib.redirect_stdout(io.StringIO()) as printed,
        contextlib.redirect_stderr(printed),
        warnings.catch_warnings(record=True),  # torch's are no prints
        Traffic() as traffic,
    ):
        seen.history = answer(
            prepare, build, folder, epochs, BATCH, PIECES, patience, killed is not None
        )
    seen.printed = bool(printed.getvalue())
    seen.files = [path.name for path in folder.iterdir()]
    seen.reduced = traffic.bytes["all-reduce"] + traffic.bytes["reduce-scatter"]
    return seen


def left(home: Path, epochs: int) -> Path:
    """A copy of rank 0's folder as it was when so many epochs had ended."""
    return home / f"after {epochs}"


def alone(seen: list[Seen], spoilt: bool, epochs: int) -> tuple[Tensor, Tensor, list]:
    """What one process makes of all ranks' rows: gradients, weights after each step, history."""
    train, test = datasets(spoilt)
    model = network(noisy=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = LinearLR(optimizer, 1.0, 0.1, epochs * STEPS)
    gradients, after, losses, history = [], [], [], []
    for steps in zip(*(one.steps for one in seen), strict=False):
        vector_to_parameters(steps[0].before.clone(), model.parameters())
        x, y = train[torch.tensor([row for step in steps for row in step.rows]) - 1]
        loss = cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        clip_grad_norm_(model.parameters(), 1.0)
        gradients.append(full(p.grad for p in model.parameters() if p.grad is not None))
        optimizer.step()
        schedule.step()
        after.append(full(model.parameters()))
        losses.append(loss.item())
        if len(losses) % STEPS == 0:
            loss, right, count = solo.evaluate(model, test).tolist()
            history.append((sum(losses[-STEPS:]) / STEPS, loss / count, right / count))
    return torch.stack(gradients), torch.stack(after), history


def convert(prepare, build, folder, epochs, batch, pieces, patience, resume):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    if rank == 0:
        prepare()
    dist.barrier()
    train, test = prepare()
    network = build()
    model = DDP(network)
    torch.manual_seed(rank)
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.01)
    sampler = data.DistributedSampler(train, drop_last=True)
    loader = data.DataLoader(train, batch // pieces // ranks, sampler=sampler, drop_last=True)
    share = data.Subset(test, range(rank, len(test), ranks))
    steps = len(loader) // pieces
    schedule = LinearLR(optimizer, 1.0, 0.1, epochs * steps)
    parts = {"network": network, "optimizer": optimizer, "schedule": schedule}
    history = []
    if resume:
        history, random = solo.restore(folder, parts)
        torch.set_rng_state(random[rank])

    while len(history) < epochs and solo.waited(history) < patience:
        epoch = len(history)
        sampler.set_epoch(epoch)
        total = torch.zeros(())
        for piece, (x, y) in enumerate(islice(loader, steps * pieces), 1):
            last = piece % pieces == 0
            with contextlib.nullcontext() if last else model.no_sync():
                loss = cross_entropy(model(x), y) / pieces
                loss.backward()
            total += loss.detach()
            if last:
                clip_grad_norm_(network.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
                schedule.step()
        for buffer in network.buffers():
            dist.broadcast(buffer, src=0)
        sums = solo.evaluate(network, share)
        dist.all_reduce(sums)
        dist.all_reduce(total)
        loss, right, rows = sums.tolist()
        history.append((total.item() / ranks / steps, loss / rows, right / rows))
        random = [None] * ranks
        dist.all_gather_object(random, torch.get_rng_state())
        if rank == 0:
            print(f"epoch {epoch}: {history[-1]}")
            solo.write(folder, history, random, parts)
    return history


def runs(answer: Callable, home: str, words: str, ranks: int, **how: Any) -> tuple:
    """What each of so many ranks does in a new folder, and the folder."""
    place = Path(tempfile.mkdtemp(dir=home))
    task = partial(watch, answer, words, place, **how)
    return launch(task, ranks=ranks, device="cpu", time_limit=LIMIT, show=False).results, place


def steps_of(seen: list[Seen], first: list[Seen]) -> Iterator[tuple]:
    """Rows and steps, the same as of the answer's run on one rank."""
    words = "passes that record gradients while the network is in eval(), by rank"
    yield words, [one.in_eval for one in seen]
    yield "which ranks take steps", [n for n, one in enumerate(seen) if one.steps]
    begun = sum(len(one.steps[0].rows) for one in seen)
    yield "rows of the first step, of all ranks together", begun
    words = "steps of two epochs, by rank: together the ranks go through the rows once an epoch"
    yield words, [len(one.steps) for one in seen]
    rows = [[row for one in seen for row in one.steps[n].rows] for n in range(2 * STEPS)]
    words = "rows of each step (a piece that is left over at an epoch's end is in no step)"
    yield words, [len(of_step) for of_step in rows]
    epochs = [*chain(*rows[:STEPS])], [*chain(*rows[STEPS:])]
    twice = [len(epoch) - len({*epoch}) for epoch in epochs]
    yield "rows that are read more than once, in each epoch", twice
    yield "whether both epochs deal the rows alike", epochs[0] == epochs[1]
    others = [
        number
        for number, (of_step, step) in enumerate(zip(rows, first[0].steps, strict=True), 1)
        if {*of_step} != {*step.rows}
    ]
    yield "steps with other rows than on one rank (shuffle all rows alike, then deal them)", others
    for rank, one in enumerate(seen):
        rates = [step.rate for step in one.steps]
        yield f"the learning rates of the steps on rank {rank}", rates, 1e-9
    far = [apart(one.steps[0].before, first[0].steps[0].before) for one in seen]
    yield "how far the first weights are from those on one rank, by rank", far, 1e-9
    equal = 0
    for steps in zip(*(one.steps for one in seen), strict=True):
        equal += all(torch.equal(step.after, steps[0].after) for step in steps)
    yield "steps after which all ranks have the same weights (all take the mean gradient)", equal


def alone_does(seen: list[Seen]) -> Iterator[tuple]:
    """What one rank does for all."""
    yield "how many ranks make the rows", sum(one.made for one in seen)
    yield "other ranks than 0 that print", [n for n, one in enumerate(seen) if one.printed and n]


def trained(seen: list[Seen], place: Path, first: list[Seen]) -> Iterator[tuple]:
    """The plain run: all that it does is what one process does with its rows."""
    yield from alone_does(seen)
    yield from steps_of(seen, first)
    gradients, weights, history = alone(seen, False, 2)
    mine = torch.stack([step.gradient for step in seen[0].steps])
    words = "the least cosine between a step's gradient and one device's, which is the mean of all"
    words += " pieces and ranks, in float64, and clipped as a whole"
    yield words, cosine_similarity(mine, gradients).min(), 1e-11
    length = mine.norm(dim=1) / gradients.norm(dim=1)
    words = "the gradient of each step, as a multiple of that of one device"
    yield words, [round(times, 6) for times in length.tolist()], 1e-5
    far = apart(torch.stack([step.after for step in seen[0].steps]), weights)
    yield "how far a step leads from where one device's leads", far, 1e-9
    reduced = seen[0].reduced / weights.nbytes
    words = "how often the gradients are sent in a step (no_sync is for a piece's forward, too)"
    yield words, AtMost(round(reduced, 2), 1.5)

    shapes = [shape(one.history) for one in seen]
    yield "the history on each rank: epochs, and numbers of each", shapes
    for rank, one in enumerate(seen):
        off = (numbers(one.history) - numbers(history)).abs()
        losses, validated, right = off.amax(0).tolist()
        whose = f"in the history of rank {rank}, how far"
        yield f"{whose} the validation loss is from that of all rows", validated, 1e-9
        yield f"{whose} the accuracy is from that of all rows", right, 1e-9
        yield f"{whose} the training loss is from that of all ranks' rows", losses, 1e-6
    yield "which ranks write files", [n for n, one in enumerate(seen) if one.files]
    yield "files that are missing", sorted({"best.pt", "last.pt", "log.csv"} - {*seen[0].files})
    yield "whether rank 0 prints", seen[0].printed
    yield from files(place / "rank 0", history, weights)


def files(folder: Path, history: Any, weights: Tensor, noisy: bool = False) -> Iterator[tuple]:
    """What is in it after the epochs of this history; the weights after each step."""
    epochs = range(len(history))
    words = "whether log.csv has a line of each epoch, which begins with its number, and no other"
    yield words, logged(folder) == [*map(str, epochs)]
    best = network(noisy)
    yield LOADS, loaded(best, folder)
    epoch = min(epochs, key=lambda n: history[n][1])
    far = apart(full(best.parameters()), weights[STEPS * epoch + STEPS - 1])
    words = "how far best.pt is from the weights of the epoch with the least validation loss"
    yield words, far, 1e-9


def numbers(history: Any) -> Tensor:
    return torch.as_tensor(history, dtype=torch.float64)


def shape(history: Any) -> Any:
    try:
        return " of ".join(map(str, numbers(history).shape))
    except (TypeError, ValueError):
        return kind(history)


def unlike(seen: list[Seen], history: Any) -> list[int]:
    """The ranks that return another history than this."""
    return [n for n, one in enumerate(seen) if difference(history, one.history, 1e-6)]


def logged(folder: Path) -> list[str]:
    log = folder / "log.csv"
    lines = log.read_text().splitlines() if log.exists() else []
    return [line.partition(",")[0] for line in lines]


def loaded(model: nn.Module, folder: Path) -> str:
    """Give it the weights of best.pt: what it says."""
    try:
        model.load_state_dict(torch.load(folder / "best.pt"))
    except Exception as error:  # of any type, for a file may hold anything
        return f"{type(error).__name__}: {error}"
    return "loads it"


def stopped(seen: list[Seen], place: Path) -> Iterator[tuple]:
    """A run that ends early, after an epoch that is not its best."""
    yield from alone_does(seen)
    yield "which ranks write files", [n for n, one in enumerate(seen) if one.files]
    _, weights, history = alone(seen, EARLY["spoilt"], EARLY["epochs"])
    patience = EARLY["patience"]
    waited = [solo.waited(history[: n + 1]) for n in range(len(history))]
    # where one device has not stopped in these epochs, it takes at least another
    ends = min([*waited, patience].index(patience) + 1, EARLY["epochs"])
    late = [len(one.steps) / STEPS - ends for one in seen]
    yield "epochs that each rank trains after the one that is the last alone", late
    yield HISTORY, unlike(seen, history)
    yield from files(place / "rank 0", history, weights)
    before = files(left(place, ends - 1), history[:-1], weights)
    yield from within("when the last epoch begins", before)


def noisy(seen: list[Seen], place: Path) -> Iterator[tuple]:
    """A run with dropout and batch norm: random numbers, and running statistics."""
    alike = 0
    for steps in zip(*(one.steps for one in seen), strict=True):
        pairs = combinations(steps, 2)
        alike += any(torch.equal(one.mask, other.mask) for one, other in pairs)
    yield "steps in which two ranks drop the same units", alike
    best = network(noisy=True)
    yield LOADS, loaded(best, place / "rank 0")
    loss, _, count = solo.evaluate(best, datasets(spoilt=False)[1]).tolist()
    least = min(of_epoch[1] for of_epoch in seen[0].history)
    words = "how far best.pt's validation loss is from the least of the history (the"
    words += " running statistics of all ranks have to be the saved ones)"
    yield words, loss / count - least, 1e-9
    words = "the sum of the running variances in best.pt, by and large (one rank's, or the mean)"
    yield words, best.state_dict()["2.running_var"].sum(), 0.5


def resumed(
    again: list[Seen], later: Path, whole: list[Seen], epochs: int, noisy: bool = False
) -> Iterator[tuple]:
    """What is left of the run after these epochs, as it went on where nobody killed it."""
    yield from alone_does(again)
    both = [*zip(again, whole, strict=True)]
    begun = STEPS * epochs
    more = [len(one.steps) - len(all.steps[begun:]) for one, all in both]
    yield "steps that are more than were left, by rank", more
    pairs = [(one.steps[0], all.steps[begun]) for one, all in both]
    far = [apart(a.before, b.before) for a, b in pairs]
    yield "how far the weights are from those before the kill, by rank", far, 1e-12
    others = [n for n, (a, b) in enumerate(pairs) if {*a.rows} != {*b.rows}]
    yield "which ranks go on with other rows", others
    others = [n for n, (a, b) in enumerate(pairs) if not torch.equal(a.mask, b.mask)]
    words = "which ranks do not go on with their own random numbers, as an epoch's end leaves them"
    yield words, others
    rates = [a.rate / b.rate for a, b in pairs]
    yield "the learning rate (in the optimizer's state), as a multiple of what it was", rates
    far = [apart(a.after, b.after) for a, b in pairs]
    words = "how far a step leads from where it led (the optimizer goes on with its state), by rank"
    yield words, far, 1e-9
    far = [apart(one.steps[-1].after, all.steps[-1].after) for one, all in both]
    yield "how far the last weights are from a run's that nobody killed", far, 1e-9
    yield HISTORY, unlike(again, whole[0].history)
    weights = torch.stack([step.after for step in whole[0].steps])
    yield from files(later / "rank 0", whole[0].history, weights, noisy)


def within(where: str, values: Iterator[tuple]) -> Iterator[tuple]:
    for words, *value in values:
        yield f"{where}: {words}", *value


def judged(answer: Callable) -> Iterator[tuple]:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        first: list[Seen] = []
        for ranks in (1, 2, 3):
            where = plural(ranks, "rank")
            seen, place = runs(answer, home, where, ranks)
            first = first or seen
            yield from within(where, trained(seen, place, first))

        where = "3 ranks, early stopping"
        whole, place = runs(answer, home, where, 3, **EARLY)
        yield from within(where, stopped(whole, place))
        epochs = len(whole[0].history) - 1
        killed = left(place, epochs)
        where = "3 ranks, early stopping, killed before its last epoch and resumed"
        again, later = runs(answer, home, where, 3, killed=killed, **EARLY)
        yield from within(where, resumed(again, later, whole, epochs))
        where = "3 ranks, resumed after early stopping"
        again, _ = runs(answer, home, where, 3, killed=place / "rank 0", **EARLY)
        yield f"{where}: steps by rank", [len(one.steps) for one in again]
        yield f"{where}: {HISTORY}", unlike(again, whole[0].history)

        for ranks in (1, 3):
            where = f"{plural(ranks, 'rank')}, with dropout and batch norm"
            whole, place = runs(answer, home, where, ranks, noisy=True)
            yield from within(where, noisy(whole, place))
            where += ", killed after an epoch and resumed"
            killed = left(place, 1)
            again, later = runs(answer, home, where, ranks, noisy=True, killed=killed)
            yield from within(where, resumed(again, later, whole, 1, noisy=True))
    yield "", "On 1, 2 and 3 ranks it is the training of one device, to rounding."


@cache
def published() -> list[tuple]:
    return list(judged(convert))


@exercise(convert, seconds=300.0, here=True)
def _(answer):
    yield from published() if answer is convert else judged(answer)


def plan_epoch(rows, batch, pieces, ranks):
    each, rest = divmod(batch, pieces * ranks)
    if rest:
        raise ValueError(f"{batch} rows cannot be dealt to {ranks} ranks in {pieces} pieces")
    steps = rows // ranks // each // pieces
    return each, steps, rows - steps * batch


def of_one_rank(rows, batch, pieces, ranks):
    return plan_epoch(rows, batch, pieces, 1)


def without_pieces(rows, batch, pieces, ranks):
    each, steps, _ = plan_epoch(rows, batch, pieces, ranks)
    return each, steps, rows - rows // ranks // each * each * ranks


@exercise(
    plan_epoch,
    mistakes={
        "the batch is that of all ranks together": of_one_rank,
        "the pieces left over at the end of the epoch are in no step, either": without_pieces,
    },
)
def _(answer):
    usual = (1438, 48, 1, 1), (1438, 48, 2, 2), (1438, 64, 2, 4), (118, 24, 2, 3)
    small = product((7, 96, 131), (24,), (1, 2, 3), (1, 2, 3, 4, 6))
    refused = (100, 10, 3, 1), (100, 10, 1, 4), (1438, 52, 2, 4)
    for given in (*usual, *small, *refused):
        call = f"plan_epoch{given}"
        planned, does = None, "returns"
        try:
            planned = answer(*given)
        except ValueError:
            does = "raises a ValueError"
        yield f"what {call} does", does
        yield call, planned
    yield "", "So many rows a piece, steps and rows left out have the real sampler and loader, too."
