"""The messages that forwards and backwards of a schedule need, posted by all ranks in one order. No torch.

A link may do its messages strictly in the order in which they were posted: nccl does, and knows no tags. If rank 0
then posts "send to 1, receive from 1" and rank 1 "send to 0, receive from 0", both sends wait for ever. So all messages
get one order, that in which they are made, and each rank posts its own in this order. Then the earliest message that is
not through yet is the next one of both its ranks, and goes through.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple


class Instruction(NamedTuple):
    """One thing a rank does for one micro-batch.

    name: "forward" or "backward" of the part `stage` of the model, which begins when what it needs is there, or one
    half of it, "backward-input" (its message is what the other ranks wait for) and, any time later, "backward-weight";
    "receive" what is needed, or "send" what was made: the activations between parts `edge` and `edge + 1`, or their
    gradients, from or to the rank `peer`. Neither keeps the rank waiting.
    """

    name: str
    stage: int
    micro: int
    peer: int | None = None
    what: str = ""

    @property
    def letter(self) -> str:
        return letter(self.name)

    @property
    def edge(self) -> int:
        """The lower of the two parts that a message passes between."""
        return self.stage - ((self.what == "activations") == (self.name == "receive"))

    @property
    def message(self) -> tuple[str, int, int]:
        """What sender and receiver agree on."""
        return self.what, self.edge, self.micro

    def __str__(self) -> str:
        way = {"send": f" to rank {self.peer}", "receive": f" from rank {self.peer}"}.get(self.name, "")
        return f"{self.name}{self.what and ' ' + self.what} {self.micro}{way}"


def letter(name: str) -> str:
    """F, B (the input half, where there is a W) or W, by the name of an instruction or of its span."""
    return "W" if name.startswith("backward-weight") else name[0].upper()


Orders = Sequence[Sequence[Instruction]]


def with_messages(orders: Orders, stages: int) -> tuple[tuple[Instruction, ...], ...]:
    """The forwards and backwards of all ranks, with what each has to receive and to send between them."""
    number = _order_made(orders, stages)
    return tuple(tuple(_posted(order, len(orders), stages, number)) for order in orders)


def needs(step: Instruction, ranks: int, stages: int) -> Instruction | None:
    """What has to be received before this forward or backward."""
    return _message("receive", step, step.stage - _ahead(step), ranks, stages)


def makes(step: Instruction, ranks: int, stages: int) -> Instruction | None:
    """What has to be sent after it."""
    return _message("send", step, step.stage + _ahead(step), ranks, stages)


def _ahead(step: Instruction) -> int:
    return 1 if step.name == "forward" else -1


def _message(name: str, step: Instruction, other: int, ranks: int, stages: int) -> Instruction | None:
    what = "activations" if step.name == "forward" else "gradients"
    if step.name == "backward-weight":
        return None
    return Instruction(name, step.stage, step.micro, other % ranks, what) if 0 <= other < stages else None


def _order_made(orders: Orders, stages: int) -> dict[tuple, int]:
    """Every message's place in the order in which they are made, if each rank computes once a turn when it can.

    Messages that are never made, because ranks wait for each other, have none.
    """
    at, number = [0] * len(orders), {}
    while True:
        ready = [order[i] for order, i in zip(orders, at, strict=True) if i < len(order)]
        ready = [s for s in ready if (m := needs(s, len(orders), stages)) is None or m.message in number]
        if not ready:
            return number
        # Of one turn, the message of a micro-batch that is further on comes first: it is needed first.
        for step in sorted(ready, key=lambda s: (s.name != "forward", -_ahead(s) * s.stage)):
            at[step.stage % len(orders)] += 1
            if sent := makes(step, len(orders), stages):
                number[sent.message] = len(number)


def _posted(order: Sequence[Instruction], ranks: int, stages: int, number: dict[tuple, int]) -> Iterator[Instruction]:
    """One rank's order with its messages: each receive as late as it can be posted, in the common order."""

    def place(message: Instruction | None) -> float:
        return -1 if message is None else number.get(message.message, len(number))

    receives = deque(sorted((m for step in order if (m := needs(step, ranks, stages))), key=place))
    for step in order:
        sent = makes(step, ranks, stages)
        while receives and place(receives[0]) <= place(needs(step, ranks, stages)):
            yield receives.popleft()
        yield step
        while receives and place(receives[0]) < place(sent):
            yield receives.popleft()
        if sent:
            yield sent
