"""Pipeline schedules as data: what each rank does, in which order; simulated here, drawn, and executed on real ranks.

GPipe: Huang et al. 2019, here without its recomputation. 1F1B: Fan et al., "DAPPLE", and Narayanan et al.,
"PipeDream-Flush", both 2021. Interleaved: Narayanan et al., Megatron-LM, 2021, in torch's rounds. Zero-bubble: Qi et
al., "Zero bubble pipeline parallelism", 2023, its ZB-H1.
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

    name: "forward" or "backward" of the part `stage` of the model, or one half of it, "backward-input" (others wait for
    its message) and, any time later, "backward-weight"; "receive" or "send": `what`, "activations" or "gradients", from
    or to the rank `peer`. Neither keeps the rank waiting.
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
        return (
            self.what,
            self.stage - ((self.what == "activations") == (self.name == "receive")),
            self.micro,
        )

    def __str__(self) -> str:
        way = {"send": f" to rank {self.peer}", "receive": f" from rank {self.peer}"}.get(
            self.name, ""
        )
        return f"{self.name}{self.what and ' ' + self.what} {self.micro}{way}"


def naive(rank: int, ranks: int, micro_batches: int, chunks: int = 1) -> Iterator[Instruction]:
    """Plain model parallelism: each micro-batch goes all the way there and back before the next one starts."""
    for micro, name in itertools.product(range(micro_batches), ("forward", "backward")):
        yield Instruction(name, rank, micro)


def gpipe(rank: int, ranks: int, micro_batches: int, chunks: int = 1) -> Iterator[Instruction]:
    """All forwards, then all backwards."""
    for name, micro in itertools.product(("forward", "backward"), range(micro_batches)):
        yield Instruction(name, rank, micro)


def one_f_one_b(
    rank: int, ranks: int, micro_batches: int, chunks: int = 1, split: bool = False
) -> Iterator[Instruction]:
    """Forwards until the first gradient is back; from then on one backward and one forward in turns.

    split: zero-bubble; B, the input's gradient, comes at once; W, the weights', `rank` micro-batches later.
    """
    ahead = min(ranks - rank, micro_batches)
    for micro in range(ahead):
        yield Instruction("forward", rank, micro)
    for micro in range(micro_batches + rank * split):
        if micro < micro_batches:
            yield Instruction("backward-input" if split else "backward", rank, micro)
        if split and 0 <= micro - rank < micro_batches:
            yield Instruction("backward-weight", rank, micro - rank)
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


def rounds(ranks: int, micro_batches: int) -> int:
    """In how many rounds interleaved takes its micro-batches: torch's rule, at least `ranks` a round if there are."""
    return max(1, micro_batches // ranks)


SCHEDULES = {
    "naive": naive,
    "GPipe": gpipe,
    "1F1B": one_f_one_b,
    "interleaved": interleaved,
    "zero-bubble": functools.partial(one_f_one_b, split=True),
}


class Schedule:
    """What every rank does in one step; `schedule[rank]` is that rank's list of instructions, messages included."""

    def __init__(
        self,
        orders: Iterable[Iterable[Instruction]],
        micro_batches: int,
        *,
        chunks: int = 1,
        name: str = "yours",
    ) -> None:
        """orders: the forwards and backwards of rank 0, 1, …, all in halves if any is; messages are added here."""
        self.name, self.micro_batches, self.chunks = name, micro_batches, chunks
        self.orders = tuple(map(tuple, orders))
        self.ranks = len(self.orders)
        self.stages = self.ranks * chunks
        self.split = any(step.name == "backward-weight" for order in self.orders for step in order)
        for rank, order in enumerate(self.orders):
            self._complete(rank, order)
        made = self._as_made()
        self.instructions = tuple(tuple(self._posted(order, made)) for order in self.orders)

    def __getitem__(self, rank: int) -> tuple[Instruction, ...]:
        return self.instructions[rank]

    @property
    def held(self) -> tuple[float, ...]:
        """By rank: how many micro-batches' activations it holds at the most; a chunk of one counts as its part."""
        change = {
            "forward": 1,
            "backward-input": 0,
        }  # any other lets one go: W, too, needs the layers' inputs
        changes = ([change.get(step.name, -1) for step in order] for order in self.orders)
        return tuple(max(itertools.accumulate(each, initial=0)) / self.chunks for each in changes)

    def simulate(
        self, *, forward: float = 1.0, backward: float = 2.0, link: float = 0.0
    ) -> Timeline:
        """When everything happens, if a rank needs `forward` and `backward` seconds for a micro-batch through all that
        it holds, and a message `link` seconds; a CourseError, if the ranks wait for each other for ever.
        """
        spans, arrives = self._play(forward, backward, link)
        needs = ([self.messages(step)[0] for step in order] for order in self.orders)
        lost = (
            [need for need in order if need and need.message not in arrives][:1] for order in needs
        )
        if stuck := [
            f"rank {rank} waits for {need.what} {need.micro} from rank {need.peer}"
            for rank, missing in enumerate(lost)
            for need in missing
        ]:
            raise CourseError(
                f"{self.name} never ends, because each waits for another: {'; '.join(stuck)}."
            )
        return Timeline(spans, title=self.name)

    def _play(
        self, forward: float, backward: float, link: float
    ) -> tuple[list[Span], dict[tuple, float]]:
        """The spans, and when each message is there, as far as the ranks get."""
        seconds = {"forward": forward, "backward": backward} | dict.fromkeys(
            ("backward-input", "backward-weight"), backward / 2
        )
        at, clock = (
            [0] * self.ranks,
            [0.0] * self.ranks,
        )  # each rank's next instruction, and its time
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
                    clock[rank] = start + seconds[step.name] / self.chunks
                    spans.append(Span(rank, step.label, start, clock[rank]))
                    if made:  # sending does not keep a rank from computing
                        arrives[made.message] = clock[rank] + link
                        if link:
                            spans.append(
                                Span(
                                    rank,
                                    str(made),
                                    clock[rank],
                                    clock[rank] + link,
                                    "communication",
                                )
                            )
                    at[rank], moved = at[rank] + 1, True
        return spans, arrives

    def messages(self, step: Instruction) -> tuple[Instruction | None, Instruction | None]:
        """What has to be received before a forward or backward, and what has to be sent after it."""
        ahead, what = (1, "activations") if step.name == "forward" else (-1, "gradients")
        ends = (("receive", step.stage - ahead), ("send", step.stage + ahead))
        need, made = (
            Instruction(name, step.stage, step.micro, other % self.ranks, what)
            if 0 <= other < self.stages and step.name != "backward-weight"
            else None
            for name, other in ends
        )
        return need, made

    # A link may do its messages strictly in the order in which they were posted: nccl does, and knows no tags. If rank
    # 0 then posts "send to 1, receive from 1" and rank 1 "send to 0, receive from 0", both sends wait for ever. So all
    # messages get one order, that in which they are made, and each rank posts its own in this order. Then the earliest
    # message that is not through yet is the next one of both its ranks, and goes through.

    def _as_made(self) -> dict[tuple, int]:
        """The place of each message, if each forward, backward or half takes 1; none where it is never made."""
        _, made = self._play(self.chunks, self.chunks * (1 + self.split), 0)

        def further_on_first(
            message: tuple,
        ) -> tuple:  # of what is made at once, because it is needed first
            what, part, _ = message
            return made[message], what, -part if what == "activations" else part

        return {message: i for i, message in enumerate(sorted(made, key=further_on_first))}

    def _posted(
        self, order: Sequence[Instruction], number: dict[tuple, int]
    ) -> Iterator[Instruction]:
        """One rank's order with its messages: each receive as late as it can be posted, in the common order."""

        def place(message: Instruction | None) -> float:
            return -1 if message is None else number.get(message.message, len(number))

        receives = deque(
            sorted(filter(None, (self.messages(step)[0] for step in order)), key=place)
        )
        for step in order:
            need, made = self.messages(step)
            while receives and place(receives[0]) <= place(need):
                yield receives.popleft()
            yield step
            while receives and place(receives[0]) < place(made):
                yield receives.popleft()
            if made:
                yield made

    def _complete(self, rank: int, order: Sequence[Instruction]) -> None:
        """Every forward and backward that is this rank's, or both its halves, once, each after what it follows from."""
        chain = (
            ("forward", "backward-input", "backward-weight")
            if self.split
            else ("forward", "backward")
        )
        missing = {
            *itertools.product(
                chain, range(rank, self.stages, self.ranks), range(self.micro_batches)
            )
        }
        for step in order:
            key, who = step[:3], f"{self.name}, rank {rank}: {step}"
            if key not in missing:
                raise CourseError(f"{who} is there twice, or not this rank's to do.")
            if early := [
                name for name in chain[: chain.index(step.name)] if (name, *key[1:]) in missing
            ]:
                raise CourseError(f"{who} stands before its {early[-1]}, whose result it needs.")
            missing.remove(key)
        if missing:
            name, _, micro = min(missing)
            raise CourseError(f"{self.name}, rank {rank}: {name} {micro} is missing.")


def make(name: str, *, ranks: int, micro_batches: int, chunks: int = 1) -> Schedule:
    """The schedule "naive", "GPipe", "1F1B", "interleaved" or "zero-bubble"; `chunks`: a rank's parts of the model."""
    if name == "interleaved" and (ranks < 2 or micro_batches % rounds(ranks, micro_batches)):
        raise CourseError(
            f"interleaved needs 2 ranks or more, and takes micro-batches in equal rounds; {ranks} ranks "
            f"take {micro_batches} in {rounds(ranks, micro_batches)} rounds."
        )
    orders = (SCHEDULES[name](rank, ranks, micro_batches, chunks) for rank in range(ranks))
    return Schedule(orders, micro_batches, chunks=chunks, name=name)


def parse(orders: Iterable[str], micro_batches: int, *, name: str = "yours") -> Schedule:
    """A schedule of your own, a text for each rank: parse(["F0 F1 B0 B1", "F0 B0 F1 B1"], 2).

    With a W anywhere, B is the input half of a backward and W the weights' half.
    """
    orders, lists = [*orders], []
    split = any("W" in text for text in orders)
    names = {"F": "forward", "B": "backward-input" if split else "backward", "W": "backward-weight"}
    for rank, text in enumerate(orders):
        if not isinstance(text, str) or not all(
            re.fullmatch(r"[FBW]\d+", word) for word in text.split()
        ):
            raise CourseError(
                f"The order of rank {rank} is {text!r}: write one text such as 'F0 F1 B0 B1' (or W)."
            )
        lists.append([Instruction(names[word[0]], rank, int(word[1:])) for word in text.split()])
    return Schedule(lists, micro_batches, name=name)


def bubble(ranks: int, micro_batches: int, *, chunks: int = 1, split: bool = False) -> float:
    """Share of a step in which a rank waits, 0 to 1: with GPipe and 1F1B, and, if there are as many micro-batches as
    ranks or more, with interleaved and with zero-bubble (`split`; F, B and W equally long)."""
    return (ranks - 1) / ((3 if split else chunks) * micro_batches + ranks - 1)
