"""Exercises on tensors and devices: time a queue, mend three device bugs, move a nested batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from .old import exercise, expect, wrong
from .old_compare import kind


def seconds(work, wait, clock):
    """The mean time of one `work()` of ten, from an empty queue until it is empty again, after one to warm up."""
    work()
    wait()
    began = clock()
    for _ in range(10):
        work()
    wait()
    return (clock() - began) / 10


class _Device:
    """A device with a queue, on a clock of its own: nothing here takes time, so that nothing disturbs it."""

    def __init__(self, *, cost: float, queues: bool = True) -> None:
        self.now, self.cost, self.queues = 17.0, cost, queues
        self.done = self.now + 5 * cost * queues  # work of somebody else is still in the queue
        self.works, self.reads = 0, []  # calls of work; (works so far, was the queue empty) at each look at the clock

    def work(self) -> None:
        self.works += 1
        cost = 20 * self.cost if self.works == 1 else self.cost * (1 + 0.1 * (self.works % 3))
        self.now += 1e-6
        self.done = max(self.now, self.done) + cost
        if not self.queues:
            self.now = self.done

    def wait(self) -> None:
        self.now = max(self.now, self.done)

    def clock(self) -> float:
        self.reads.append((self.works, self.now >= self.done))
        return self.now


@exercise(
    seconds,
    "Two looks at the clock: one before the ten calls, one after them. What must be true of the queue at both?",
    "The first `work()` is slower than the others: let it happen, and end, before the clock is read.",
    "work(), wait(), clock(), ten times work(), wait(), clock(): the difference of the two times, divided by ten.",
)
def _seconds(answer):
    for words, how in (
        ("a device with a queue", {"cost": 2e-3}),
        ("a faster device with a queue", {"cost": 3e-4}),
        ("a device without a queue", {"cost": 1e-3, "queues": False}),
    ):
        right, mine = _Device(**how), _Device(**how)
        wanted = seconds(right.work, right.wait, right.clock)
        got = answer(mine.work, mine.wait, mine.clock)
        if got is None or got is ...:
            expect(words, wanted, got)
        try:
            found = float(got)
        except (TypeError, ValueError, RuntimeError):
            wrong(f"On {words}: give one number.", expected="seconds", got=kind(got))
        if not abs(found - wanted) <= 0.02 * wanted:
            wrong(f"On {words}: {_why(mine, found / wanted)}", expected=f"{wanted:.6f} s", got=f"{found:.6f} s")
    return "From an empty queue to an empty queue, without the first call: a time that can be believed."


def _why(device: _Device, ratio: float) -> str:
    """What went wrong with a measurement, from what was done."""
    if len(device.reads) < 2:
        return "the clock was not read twice. Use the `clock` that is given."
    (first, empty_first), (last, empty_last) = device.reads[0], device.reads[-1]
    if not empty_last:
        return "the clock was read at the end while work was still in the queue."
    if first == 0:
        return "the first call of work(), which is to warm up, was timed with the others."
    if not empty_first:
        return "the clock was started while earlier work was still in the queue."
    if abs(ratio - 1000) < 30:
        return "these are milliseconds."
    if last - first != 10:
        return f"{last - first} calls of work() lie between the two looks at the clock, not 10."
    return f"the result is {ratio:.3g} times the mean of the ten calls."


def scores(x, device):
    """The score of each row of x (N, 4), computed on `device`: (N,)."""

    class Centre(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("middle", torch.tensor([1.0, 2.0, 3.0, 4.0]))

        def forward(self, x):
            return x - self.middle

    x = x.to(device)
    weights = torch.linspace(0, 1, 4, device=device)
    return Centre().to(device)(x) @ weights


@exercise(
    scores,
    "`x.to(device)` leaves x where it is and returns a new tensor, which has to be kept.",
    "A tensor made without `device=` is made on the CPU.",
    "`module.to(device)` moves parameters and buffers. A plain tensor attribute stays behind; `register_buffer` helps.",
)
def _scores(answer):
    generator = torch.Generator().manual_seed(1)
    default = torch.get_default_device()
    places = ["cpu", "meta", *filter(None, [torch.accelerator.current_accelerator(check_available=True)])]
    for place in map(str, places):
        for x in (torch.arange(12.0).reshape(3, 4), torch.randn(5, 4, generator=generator)):
            call, right, given = f'scores(x, "{place}") for x of shape {tuple(x.shape)}', scores(x, "cpu"), x.clone()
            try:
                with _Watch() as watch:
                    got = answer(given, place)
            except NotImplementedError as error:
                wrong(f"{call}: something is fetched from the device.", expected=f"all on {place}",
                      got=str(error).splitlines()[0])
            finally:
                left = torch.get_default_device()
                torch.set_default_device(None if default.type == "cpu" else default)
            if left != default:
                wrong("torch's default device is another one afterwards: all that is made later lands there.",
                      expected=str(default), got=str(left))
            if not torch.equal(given, x):
                wrong(f"{call}: the x that was given changed.")
            _scored(call, place, right, got, watch.places)
    return "It runs on any device: the input, the constant and the buffer move together."


def _scored(call: str, place: str, right: torch.Tensor, got: Any, computed: set[str]) -> None:
    if got is None or got is ...:
        expect(call, right, got)
    if not isinstance(got, torch.Tensor) or got.device.type != torch.device(place).type:
        wrong(f"{call}: compute it on that device.", expected=f"a tensor on {place}", got=got)
    if got.shape != right.shape:
        wrong(f"{call}: a score for each row.", expected=f"{len(right)} scores", got=got)
    if place != "meta":
        expect(call, right, got.cpu(), tol=1e-4)
    elsewhere = computed - {torch.device(place).type}
    if place != "cpu" and (elsewhere or not computed):
        wrong(f"{call}: the result is there, but it was not computed there.", expected=f"all arithmetic on {place}",
              got=f"arithmetic on {', '.join(sorted(elsewhere)) or 'no device'}")


class _Watch(TorchDispatchMode):
    """Notes on which devices arithmetic on rows is done."""

    ARITHMETIC = ("mv", "mm", "addmm", "addmv", "bmm", "dot", "sub", "sub_", "mul", "mul_", "sum", "add", "add_")

    def __init__(self) -> None:
        super().__init__()
        self.places: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ in self.ARITHMETIC and isinstance(result, torch.Tensor) and result.dim():
            self.places.add(result.device.type)
        return result


def move(batch, device):
    """A batch with every tensor in it on `device`; lists, tuples and dicts keep their shape, the rest stays."""
    if isinstance(batch, torch.Tensor):
        return batch.to(device)
    if isinstance(batch, dict):
        return {key: move(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):  # a namedtuple takes its values one by one
        return type(batch)(*(move(value, device) for value in batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)(move(value, device) for value in batch)
    return batch


@exercise(
    move,
    "Ask what the batch is: a tensor moves, a container is taken apart, anything else is returned as it came.",
    "A container inside a container: let `move` call itself for each value.",
    "`type(batch)(...)` builds a list from a list and a tuple from a tuple.",
)
def _move(answer):
    x, y = torch.arange(6.0).reshape(2, 3), torch.tensor([1, 0])
    nested = {"x": x, "pair": (x, y), "more": [{"y": y}, "cat", 7, None, [[x], (y,)]], "names": ["a", "b"], "on": True}
    places = ["meta", "cpu", *filter(None, [torch.accelerator.current_accelerator(check_available=True)])]
    for place in map(str, places):
        for words, batch in (("", nested), (" of (x, y)", (x, y)), (" of [y, [x]]", [y, [x]]), (" of x", x)):
            before = [(where, id(value)) for where, value in _leaves(batch)]
            got = answer(batch, place)
            for (where, value), (_, was) in zip(_leaves(batch), before, strict=False):
                if id(value) != was:
                    wrong(f"move{words}: batch{where} of the batch that was given changed. Build new containers.")
            if len(before) != len(list(_leaves(batch))):
                wrong(f"move{words}: the batch that was given changed. Build new containers.")
            _moved(f"move{words}", move(batch, place), got)
    return "Tensors move, the shape of the batch stays."


def _moved(call: str, wanted: Any, got: Any) -> None:
    if got is None:
        expect(call, wanted, got)
    found, right = list(_leaves(got)), list(_leaves(wanted))
    for (place, value), (expected_place, expected) in zip(found, right, strict=False):
        if place != expected_place:
            wrong(f"{call}: the batch changed its shape.", expected=f"batch{expected_place}", got=f"batch{place}")
        if isinstance(expected, torch.Tensor) and isinstance(value, torch.Tensor):
            if value.device != expected.device:
                wrong(f"{call}: batch{place} is on the wrong device.", expected=f"on {expected.device}",
                      got=f"on {value.device}")
            if value.dtype != expected.dtype:
                wrong(f"{call}: batch{place} has another type.", expected=str(expected.dtype), got=str(value.dtype))
            if not expected.is_meta:
                expect(f"{call}: batch{place}", expected.cpu(), value.cpu())
        elif type(value) is not type(expected):
            wrong(f"{call}: batch{place} is something else now.", expected=kind(expected), got=kind(value))
        elif not isinstance(expected, (dict, list, tuple)):
            expect(f"{call}: batch{place}", True if expected is None else expected, True if value is None else value)
    if len(found) != len(right):
        wrong(f"{call}: the batch changed its shape.", expected=f"{len(right)} values", got=f"{len(found)} values")


def _leaves(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """(place, value) of all that is in a nested batch, containers included."""
    yield place, value
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, f"{place}[{key!r}]")
    elif isinstance(value, (list, tuple)):
        for i, inner in enumerate(value):
            yield from _leaves(inner, f"{place}[{i}]")
