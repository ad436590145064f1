"""Pipeline schedules as data: what each rank does, in which order. No torch, no processes.

A schedule is a list of instructions for every rank, messages included (`messages.py`). The same list is simulated here,
drawn, and executed on real ranks (`lessons/pipeline.py`). GPipe: Huang et al. 2019, here without its recomputation.
1F1B: Fan et al., "DAPPLE", and Narayanan et al., "PipeDream-Flush", both 2021. Interleaved: Narayanan et al.,
"Efficient large-scale language model training on GPU clusters using Megatron-LM", 2021. Zero-bubble: Qi et al., "Zero
bubble pipeline parallelism", 2023, its ZB-H1.
"""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence

from ..errors import CourseError
from ..timeline import Timeline
from .messages import Instruction, with_messages
from .simulate import simulate


def naive(rank: int, ranks: int, micro_batches: int, chunks: int = 1) -> Iterator[Instruction]:
    """Plain model parallelism: each micro-batch goes all the way there and back before the next one starts."""
    for micro in range(micro_batches):
        yield Instruction("forward", rank, micro)
        yield Instruction("backward", rank, micro)


def gpipe(rank: int, ranks: int, micro_batches: int, chunks: int = 1) -> Iterator[Instruction]:
    """All forwards, then all backwards."""
    for name in ("forward", "backward"):
        for micro in range(micro_batches):
            yield Instruction(name, rank, micro)


def one_f_one_b(rank: int, ranks: int, micro_batches: int, chunks: int = 1) -> Iterator[Instruction]:
    """Forwards until the first gradient is back; from then on one backward and one forward in turns."""
    ahead = min(ranks - rank, micro_batches)
    for micro in range(ahead):
        yield Instruction("forward", rank, micro)
    for micro in range(micro_batches):
        yield Instruction("backward", rank, micro)
        if micro + ahead < micro_batches:
            yield Instruction("forward", rank, micro + ahead)


def interleaved(rank: int, ranks: int, micro_batches: int, chunks: int) -> Iterator[Instruction]:
    """1F1B where each rank holds `chunks` parts of the model, parts rank, rank + ranks, rank + 2 ranks, …

    As torch's: a round's micro-batches visit every chunk, then the next round's. Megatron's have `ranks` a round.
    """
    size = micro_batches // rounds(ranks, micro_batches)

    def work(name: str, k: int) -> Instruction:
        turn, within = divmod(k, size * chunks)
        chunk = within // size if name == "forward" else chunks - 1 - within // size
        return Instruction(name, chunk * ranks + rank, turn * size + within % size)

    total = micro_batches * chunks
    ahead = min((chunks - 1) * size + 2 * (ranks - 1 - rank), total)
    for k in range(ahead):
        yield work("forward", k)
    for k in range(total):
        if k + ahead < total:
            yield work("forward", k + ahead)
        yield work("backward", k)


def zero_bubble(rank: int, ranks: int, micro_batches: int, chunks: int = 1) -> Iterator[Instruction]:
    """1F1B with backwards in halves: B, the input's gradient, at once; W, the weights', `rank` micro-batches later."""
    ahead = min(ranks - rank, micro_batches)
    for micro in range(ahead):
        yield Instruction("forward", rank, micro)
    for micro in range(micro_batches + rank):
        if micro < micro_batches:
            yield Instruction("backward-input", rank, micro)
        if 0 <= micro - rank < micro_batches:
            yield Instruction("backward-weight", rank, micro - rank)
        if micro + ahead < micro_batches:
            yield Instruction("forward", rank, micro + ahead)


def rounds(ranks: int, micro_batches: int) -> int:
    """In how many rounds interleaved takes its micro-batches: torch's rule, at least `ranks` a round if there are."""
    return max(1, micro_batches // ranks)


SCHEDULES = {
    "naive": naive,
    "GPipe": gpipe,
    "1F1B": one_f_one_b,
    "interleaved": interleaved,
    "zero-bubble": zero_bubble,
}


class Schedule:
    """What every rank does in one step; `schedule[rank]` is that rank's list of instructions, messages included."""

    def __init__(
        self, orders: Iterable[Iterable[Instruction]], micro_batches: int, *, chunks: int = 1, name: str = "yours"
    ) -> None:
        """orders: the forwards and backwards of rank 0, 1, …; what to send and receive is added here.

        With a "backward-weight" anywhere, every backward is in halves.
        """
        self.name, self.micro_batches, self.chunks = name, micro_batches, chunks
        self.orders = tuple(tuple(order) for order in orders)
        self.ranks = len(self.orders)
        self.stages = self.ranks * chunks
        self.split = any(step.name == "backward-weight" for order in self.orders for step in order)
        for rank, order in enumerate(self.orders):
            self._complete(rank, order)
        self.instructions = with_messages(self.orders, self.stages)

    def __getitem__(self, rank: int) -> tuple[Instruction, ...]:
        return self.instructions[rank]

    def __repr__(self) -> str:
        chunks = f", {self.chunks} chunks a rank" if self.chunks > 1 else ""
        return f"Schedule({self.name}: {self.micro_batches} micro-batches on {self.ranks} ranks{chunks})"

    def simulate(self, *, forward: float = 1.0, backward: float = 2.0, link: float = 0.0) -> Timeline:
        """When everything happens, if a rank needs `forward` and `backward` seconds for a micro-batch through all that
        it holds (each of its chunks a part of that, each half of a backward a half), and a message `link` seconds.

        Raises:
            CourseError: the ranks wait for each other and none can go on; the message says who for what.
        """
        for what, value in {"forward": forward, "backward": backward, "link": link}.items():
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < float("inf"):
                raise CourseError(f"simulate({what}={value!r}): {what} is a time in seconds, a number from 0.")
            if what != "link" and value == 0:
                raise CourseError(f"simulate({what}=0): work takes time; {what} is more than 0 seconds.")
        each = {"forward": forward / self.chunks, "backward": backward / self.chunks}
        return simulate(self.name, self.instructions, **each, link=link)

    @property
    def held(self) -> tuple[float, ...]:
        """By rank: how many micro-batches' activations it holds at the most; a chunk of one counts as its part.

        A micro-batch whose input half is done counts until its weights' half: that needs the layers' inputs.
        """
        change = {"forward": 1, "backward-input": 0}  # any other lets one go
        changes = ([change.get(step.name, -1) for step in order] for order in self.orders)
        return tuple(max(itertools.accumulate(each, initial=0)) / self.chunks for each in changes)

    def _complete(self, rank: int, order: Sequence[Instruction]) -> None:
        """Every forward and backward that is this rank's, or both its halves, once, each after what it follows from."""
        stages = range(rank, self.stages, self.ranks)
        wanted = {(stage, micro) for stage in stages for micro in range(self.micro_batches)}
        chain = ("forward", "backward-input", "backward-weight") if self.split else ("forward", "backward")
        done: dict[str, set] = {name: set() for name in chain}
        for step in order:
            key = (step.stage, step.micro)
            who = f"{self.name}, rank {rank}: {step}"
            if step.name not in done:
                raise CourseError(f"{who}: with a backward-weight anywhere every backward is in halves: {chain}.")
            if key not in wanted:
                raise CourseError(f"{who} of part {step.stage} is not this rank's; it has micro-batches 0 to "
                                  f"{self.micro_batches - 1} of part {rank}.")
            if key in done[step.name]:
                raise CourseError(f"{who} is there twice; every micro-batch goes once forward and once backward.")
            before = chain[max(chain.index(step.name) - 1, 0)]
            if before != step.name and key not in done[before]:
                what = "activations" if before == "forward" else "gradients"
                raise CourseError(f"{who} stands before its {before}, which makes the {what} that it needs.")
            done[step.name].add(key)
        for name, keys in done.items():
            if lost := sorted(wanted - keys):
                raise CourseError(f"{self.name}, rank {rank}: {name} {lost[0][1]} is missing.")


def make(name: str, *, ranks: int, micro_batches: int, chunks: int = 1) -> Schedule:
    """The schedule "naive", "GPipe", "1F1B", "interleaved" or "zero-bubble"; `chunks`: a rank's parts of the model.

    Raises:
        CourseError: there is no such schedule, or it cannot be made with these numbers.
    """
    if name not in SCHEDULES:
        near = difflib.get_close_matches(str(name), SCHEDULES, n=1, cutoff=0.4)
        hint = f"Did you mean {near[0]!r}?" if near else f"There are {', '.join(SCHEDULES)}."
        raise CourseError(f"There is no schedule {name!r}. {hint}")
    for what, value in {"ranks": ranks, "micro_batches": micro_batches, "chunks": chunks}.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise CourseError(f"make({name!r}, {what}={value!r}): {what} is a whole number from 1.")
    if name != "interleaved" and chunks > 1:
        raise CourseError(f"{name} gives each rank one part of the model; chunks={chunks} needs 'interleaved'.")
    if name == "interleaved" and ranks == 1:
        raise CourseError("interleaved sends micro-batches round and round through the ranks: it needs 2 or more.")
    if name == "interleaved" and micro_batches % (n := rounds(ranks, micro_batches)):
        more = next(m for m in itertools.count(micro_batches) if m % rounds(ranks, m) == 0)
        raise CourseError(f"interleaved on {ranks} ranks takes {micro_batches} micro-batches in {n} rounds of equally "
                          f"many, and {micro_batches} is no multiple of {n}: take {more}.")
    orders = (SCHEDULES[name](rank, ranks, micro_batches, chunks) for rank in range(ranks))
    return Schedule(orders, micro_batches, chunks=chunks, name=name)


def parse(orders: Iterable[str], micro_batches: int, *, name: str = "yours") -> Schedule:
    """A schedule of your own, a text for each rank: parse(["F0 F1 B0 B1", "F0 B0 F1 B1"], 2).

    With a W anywhere, B is the input half of a backward and W the weights' half.

    Raises:
        CourseError: a word is not F, B or W and a number, or an order is not complete.
    """
    orders, lists = [*orders], []
    split = any(isinstance(text, str) and "W" in text for text in orders)
    names = {"F": "forward", "B": "backward-input" if split else "backward", "W": "backward-weight"}
    for rank, text in enumerate(orders):
        if not isinstance(text, str) or not all(re.fullmatch(r"[FBW]\d+", word) for word in text.split()):
            raise CourseError(f"The order of rank {rank} is {text!r}: write F and B (and W, where backwards are in "
                              "halves), each with the number of its micro-batch, in one text as 'F0 F1 B0 B1'.")
        lists.append([Instruction(names[word[0]], rank, int(word[1:])) for word in text.split()])
    return Schedule(lists, micro_batches, name=name)


def bubble(ranks: int, micro_batches: int, *, chunks: int = 1, split: bool = False) -> float:
    """Share of a step in which a rank waits, 0 to 1: with GPipe and 1F1B, and, if there are at least as many
    micro-batches as ranks, with interleaved and its chunks, or with zero-bubble (`split`), F, B and W equally long.
    """
    return (ranks - 1) / ((3 if split else chunks) * micro_batches + ranks - 1)


def idle(timeline: Timeline) -> float:
    """Share of the timeline in which ranks compute nothing, 0 to 1, the mean over ranks: a bubble as it was."""
    return sum(timeline.idle(rank) for rank in timeline.ranks) / len(timeline.ranks)
