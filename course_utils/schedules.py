"""Pipeline schedules as data: what each rank does, in which order; simulated here, drawn, and
executed on real ranks.

GPipe: Huang et al. 2019, here without its recomputation. 1F1B: Fan et al., "DAPPLE", and Narayanan
et al., "PipeDream-Flush", both 2021. Interleaved: Narayanan et al., Megatron-LM, 2021, in torch's
rounds. Zero-bubble: Qi et al., "Zero bubble pipeline parallelism", 2023, its ZB-H1.
"""

import functools
import itertools
import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from .errors import CourseError
from .timeline import Span, Timeline


class Instruction(NamedTuple):
    """One thing a rank does for one micro-batch.

    name: "forward" or "backward" of the part `stage` of the model, or one half of it,
    "backward-input" (others wait for its message) and, any time later, "backward-weight"; "receive"
    or "send": `what`, "activations" or "gradients", from or to the rank `peer`. Neither keeps the
    rank waiting.
    """

    name: str
    stage: int
    micro: int
    peer: int | None = None
    what: str = ""

    @property
    def letter(self) -> str:
        """F, B (the input half, where there is a W) or W."""
        return "W" if self.name == "backward-weight" else self.name[0].upper()

    @property
    def label(self) -> str:
        """Name of the span of a forward, a backward or a half of one, predicted or measured."""
        return f"{self.name} {self.micro} of part {self.stage}"

    @property
    def message(self) -> tuple[str, int, int]:
        """What sender and receiver agree on; between two parts the lower one counts."""
        # Activations go up, gradients down: who receives the one or sends the other is the upper
        # part of the two.
        is_upper = (self.name, self.what) in {("receive", "activations"), ("send", "gradients")}
        lower = self.stage - 1 if is_upper else self.stage
        return self.what, lower, self.micro

    def __str__(self) -> str:
        if self.name == "send":
            return f"send {self.what} {self.micro} to rank {self.peer}"
        if self.name == "receive":
            return f"receive {self.what} {self.micro} from rank {self.peer}"
        return f"{self.name} {self.micro}"


def naive(rank: int, ranks: int, micro_batches: int, chunks: int) -> Iterator[Instruction]:
    """Plain model parallelism: a micro-batch goes there and back before the next one starts."""
    for micro, name in itertools.product(range(micro_batches), ("forward", "backward")):
        yield Instruction(name, rank, micro)


def gpipe(rank: int, ranks: int, micro_batches: int, chunks: int) -> Iterator[Instruction]:
    """All forwards, then all backwards."""
    for name, micro in itertools.product(("forward", "backward"), range(micro_batches)):
        yield Instruction(name, rank, micro)


def one_f_one_b(
    rank: int, ranks: int, micro_batches: int, chunks: int, split: bool = False
) -> Iterator[Instruction]:
    """Forwards until the first gradient is back, then one backward and one forward in turns.

    split: zero-bubble; B, the input's gradient, comes at once; W, the weights', `rank`
        micro-batches later.
    """
    ahead = min(ranks - rank, micro_batches)
    for micro in range(ahead):
        yield Instruction("forward", rank, micro)
    behind = rank if split else 0  # of W behind B
    for micro in range(micro_batches + behind):
        if micro < micro_batches:
            yield Instruction("backward-input" if split else "backward", rank, micro)
        if split and 0 <= micro - rank < micro_batches:
            yield Instruction("backward-weight", rank, micro - rank)
        if micro + ahead < micro_batches:
            yield Instruction("forward", rank, micro + ahead)


def interleaved(rank: int, ranks: int, micro_batches: int, chunks: int) -> Iterator[Instruction]:
    """1F1B where each rank holds `chunks` parts of the model: rank, rank + ranks, rank + 2 ranks …

    As torch's: a round's micro-batches visit every chunk, then the next round's. Megatron's have
    `ranks` a round.
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


def rounds(ranks: int, micro_batches: int) -> int:
    """How many rounds interleaved has: by torch's rule at least `ranks` micro-batches in each."""
    return max(1, micro_batches // ranks)


SCHEDULES = {
    "naive": naive,
    "GPipe": gpipe,
    "1F1B": one_f_one_b,
    "interleaved": interleaved,
    "zero-bubble": functools.partial(one_f_one_b, split=True),
}


class Schedule:
    """What every rank does in one step; `schedule[rank]` are its instructions, with messages."""

    def __init__(
        self,
        orders: Iterable[Iterable[Instruction]],
        micro_batches: int,
        *,
        chunks: int = 1,
        name: str,
    ) -> None:
        """orders: of rank 0, 1, …, forwards and backwards, all in halves if any is; no messages."""
        self.name, self.micro_batches, self.chunks = name, micro_batches, chunks
        self.orders = tuple(map(tuple, orders))
        self.ranks = len(self.orders)
        self.stages = self.ranks * chunks
        self.split = any(step.name == "backward-weight" for order in self.orders for step in order)
        for rank, order in enumerate(self.orders):
            self._check(rank, order)
        made = self._as_made()
        self.instructions = tuple(tuple(self._posted(order, made)) for order in self.orders)

    def __getitem__(self, rank: int) -> tuple[Instruction, ...]:
        return self.instructions[rank]

    @property
    def held(self) -> tuple[float, ...]:
        """By rank: how many micro-batches' activations it holds at the most, chunks as parts."""
        # A backward lets one go; of its halves W, which needs the layers' inputs, too.
        change = {"forward": 1, "backward-input": 0, "backward": -1, "backward-weight": -1}
        most = []
        for order in self.orders:
            held = itertools.accumulate((change[step.name] for step in order), initial=0)
            most.append(max(held) / self.chunks)
        return tuple(most)

    def simulate(
        self, *, forward: float = 1.0, backward: float = 2.0, link: float = 0.0
    ) -> Timeline:
        """When everything happens.

        Args:
            forward, backward: seconds a rank needs for a micro-batch through all that it holds.
            link: seconds a message needs.

        Raises:
            CourseError: the ranks wait for each other for ever.
        """
        spans, arrives = self._play(forward, backward, link)
        stuck = []
        for rank, order in enumerate(self.orders):
            needs = [self.messages(step)[0] for step in order]
            lost = [need for need in needs if need and need.message not in arrives]
            if lost:
                stuck.append(
                    f"rank {rank} waits for {lost[0].what} {lost[0].micro} from rank {lost[0].peer}"
                )
        if stuck:
            raise CourseError(
                f"{self.name} never ends, because each waits for another: {'; '.join(stuck)}."
            )
        return Timeline(spans, title=self.name)

    def _play(
        self, forward: float, backward: float, link: float
    ) -> tuple[list[Span], dict[tuple, float]]:
        """The spans, and when each message is there, as far as the ranks get."""
        half = backward / 2
        seconds = {"forward": forward, "backward": backward}
        seconds |= {"backward-input": half, "backward-weight": half}
        at = [0] * self.ranks  # each rank's next instruction
        clock = [0.0] * self.ranks
        arrives: dict[tuple, float] = {}
        spans: list[Span] = []
        moved = True
        while moved:
            moved = False
            for rank, order in enumerate(self.orders):
                for step in order[at[rank] :]:
                    need, made = self.messages(step)
                    if need and need.message not in arrives:
                        break
                    start = max(clock[rank], arrives[need.message]) if need else clock[rank]
                    end = start + seconds[step.name] / self.chunks
                    spans.append(Span(rank, step.label, start, end))
                    if made:  # sending does not keep a rank from computing
                        arrives[made.message] = end + link
                    if made and link:
                        spans.append(Span(rank, str(made), end, end + link, "communication"))
                    clock[rank] = end
                    at[rank] += 1
                    moved = True
        return spans, arrives

    def messages(self, step: Instruction) -> tuple[Instruction | None, Instruction | None]:
        """What must be received before a forward or backward, and what must be sent after it."""
        if step.name == "backward-weight":
            return None, None
        if step.name == "forward":
            before, after, what = step.stage - 1, step.stage + 1, "activations"
        else:
            before, after, what = step.stage + 1, step.stage - 1, "gradients"
        need = made = None
        if 0 <= before < self.stages:
            need = Instruction("receive", step.stage, step.micro, before % self.ranks, what)
        if 0 <= after < self.stages:
            made = Instruction("send", step.stage, step.micro, after % self.ranks, what)
        return need, made

    # A link may do its messages strictly in the order in which they were posted: nccl does, and
    # knows no tags. If rank 0 then posts "send to 1, receive from 1" and rank 1 "send to 0, receive
    # from 0", both sends wait for ever. So all messages get one order, that in which they are made,
    # and each rank posts its own in this order. Then the earliest message that is not through yet
    # is the next one of both its ranks, and goes through.

    def _as_made(self) -> dict[tuple, int]:
        """The number of each message that is made, if a forward, backward or half takes 1."""
        backward = 2 * self.chunks if self.split else self.chunks
        _, made = self._play(self.chunks, backward, 0)

        def when(message: tuple) -> tuple:
            what, part, _ = message
            further_on = -part if what == "activations" else part  # it is needed first
            return made[message], what, further_on

        return {message: i for i, message in enumerate(sorted(made, key=when))}

    def _posted(
        self, order: Sequence[Instruction], number: dict[tuple, int]
    ) -> Iterator[Instruction]:
        """One rank's order with its messages, each receive as late as the common order lets it."""

        def turn(message: Instruction | None) -> float:
            return -1 if message is None else number.get(message.message, len(number))

        needs = [self.messages(step)[0] for step in order]
        receives = deque(sorted((need for need in needs if need), key=turn))
        for step in order:
            need, made = self.messages(step)
            while receives and turn(receives[0]) <= turn(need):
                yield receives.popleft()
            yield step
            while receives and turn(receives[0]) < turn(made):
                yield receives.popleft()
            if made:
                yield made

    def _check(self, rank: int, order: Sequence[Instruction]) -> None:
        """Every forward and backward of this rank, or both halves, is there once, in order."""
        chain = ["forward", "backward"]
        if self.split:
            chain = ["forward", "backward-input", "backward-weight"]
        parts = range(rank, self.stages, self.ranks)
        missing = {*itertools.product(chain, parts, range(self.micro_batches))}

        for step in order:
            who = f"{self.name}, rank {rank}: {step}"
            if step.micro >= self.micro_batches:
                raise CourseError(f"{who}: micro-batches are 0 to {self.micro_batches - 1} here.")
            if step[:3] not in missing:
                raise CourseError(f"{who} is there twice, or not this rank's to do.")
            before = chain[: chain.index(step.name)]
            early = [name for name in before if (name, step.stage, step.micro) in missing]
            if early:
                raise CourseError(f"{who} stands before its {early[-1]}, whose result it needs.")
            missing.remove(step[:3])
        if missing:
            step = Instruction(*min(missing))
            raise CourseError(
                f"{self.name}, rank {rank}: {step} is missing ({step.letter}{step.micro})."
            )


def make(name: str, *, ranks: int, micro_batches: int, chunks: int = 1) -> Schedule:
    """The schedule "naive", "GPipe", "1F1B", "interleaved" or "zero-bubble".

    chunks: a rank's parts of the model.
    """
    if name not in SCHEDULES:
        raise CourseError(f"There is no schedule {name!r}: take one of {', '.join(SCHEDULES)}.")
    counts = {"ranks": ranks, "micro_batches": micro_batches, "chunks": chunks}
    for what, count in counts.items():
        if count < 1:
            raise CourseError(f"{name} got {what}={count}: give a whole number from 1 on.")
    if name != "interleaved" and chunks > 1:
        raise CourseError(f"{name} got chunks={chunks}: a rank has one part, but in interleaved.")
    if name == "interleaved" and (ranks < 2 or micro_batches % rounds(ranks, micro_batches)):
        raise CourseError(
            f"interleaved needs 2 ranks or more, and takes micro-batches in equal rounds; {ranks} "
            f"ranks take {micro_batches} in {rounds(ranks, micro_batches)} rounds."
        )
    orders = (SCHEDULES[name](rank, ranks, micro_batches, chunks) for rank in range(ranks))
    return Schedule(orders, micro_batches, chunks=chunks, name=name)


def parse(orders: Iterable[str], micro_batches: int, *, name: str = "yours") -> Schedule:
    """A schedule of your own, a text for each rank: parse(["F0 F1 B0 B1", "F0 B0 F1 B1"], 2).

    With a W anywhere, B is the input half of a backward and W the weights' half.
    """
    texts = [*orders]
    split = any("W" in text for text in texts)
    names = {"F": "forward", "B": "backward-input" if split else "backward", "W": "backward-weight"}
    lists = []
    for rank, text in enumerate(texts):
        words = text.split() if isinstance(text, str) else [repr(text)]
        for word in words:
            if not re.fullmatch(r"[FBW]\d+", word):
                raise CourseError(
                    f"In the order of rank {rank}, {word!r} is not understood: write one text such "
                    "as 'F0 F1 B0 B1' (or W)."
                )
        lists.append([Instruction(names[word[0]], rank, int(word[1:])) for word in words])
    return Schedule(lists, micro_batches, name=name)


def bubble(ranks: int, micro_batches: int, *, chunks: int = 1, split: bool = False) -> float:
    """Share of a step in which a rank waits, 0 to 1.

    It is that of GPipe and 1F1B, and, if there are as many micro-batches as ranks or more, of
    interleaved and of zero-bubble (`split`; F, B and W equally long).
    """
    pieces = 3 if split else chunks  # of the work on a micro-batch
    return (ranks - 1) / (pieces * micro_batches + ranks - 1)
