"""Exercises of notebook 12, schedules that are played through: 1F1B, zero-bubble."""

from collections.abc import Callable, Iterator

from .. import schedules
from .compare import AtMost
from .exercise import exercise


def played(answer: Callable, sizes: tuple[tuple[int, int], ...], *, split: bool) -> Iterator[tuple]:
    """Look at what is written for (ranks, micro-batches): what is in it, what a rank holds and how long ranks wait."""
    for ranks, micro_batches in sizes:
        case, orders = (
            f"{micro_batches} micro-batch{'es' * (micro_batches > 1)} on {ranks} rank{'s' * (ranks > 1)}",
            [],
        )
        for rank in range(ranks):
            orders.append(answer(rank, ranks, micro_batches))
            given = f"rank={rank}, ranks={ranks}, micro_batches={micro_batches}"
            yield (
                f"what it returns with {given}",
                "a text" if isinstance(orders[-1], str) else orders[-1],
            )
        schedule = schedules.parse(orders, micro_batches)
        timeline = schedule.simulate()
        yield f"{case}, played through", "F, B and W" if schedule.split else "F and B"
        for rank, held in enumerate(schedule.held):
            most = min(ranks if split else ranks - rank, micro_batches)
            yield f"{case}: micro-batches that rank {rank} holds", AtMost(int(held), most)
        bubble = schedules.bubble(ranks, micro_batches, split=split)
        yield (
            f"{case}: the bubble, in % of the step",
            AtMost(round(100 * timeline.idle(), 2), round(100 * bubble, 2)),
        )


def write_1f1b(rank, ranks, micro_batches):
    """What rank `rank` of `ranks` does in a step, in order: "F0 B0 F1 B1 …", the least bubble at the least memory."""
    ahead = min(ranks - rank, micro_batches)
    order = [f"F{micro}" for micro in range(ahead)]
    for micro in range(micro_batches):
        order.append(f"B{micro}")
        if micro + ahead < micro_batches:
            order.append(f"F{micro + ahead}")
    return " ".join(order)


def forwards_first(rank, ranks, micro_batches):
    return " ".join(f"{letter}{micro}" for letter in "FB" for micro in range(micro_batches))


@exercise(
    write_1f1b,
    mistakes={
        "this rank does all its forwards before the first backward, as with GPipe": forwards_first,
    },
)
def _(answer: Callable) -> Iterator[tuple]:
    yield from played(
        answer, ((4, 8), (1, 2), (4, 2), (3, 1), (3, 7), (11, 4), (17, 20)), split=False
    )
    yield "", "The smallest bubble at the least memory, up to 17 ranks."


def write_zero_bubble(rank, ranks, micro_batches):
    """As in 1F1B, but with each backward in halves: B for the input's gradient, and any time later W for the weights'.

    The bubble is a third of 1F1B's, in time, and no rank holds more than `ranks` micro-batches.
    """
    ahead = min(ranks - rank, micro_batches)
    order = [f"F{micro}" for micro in range(ahead)]
    for micro in range(micro_batches + rank):
        if micro < micro_batches:
            order.append(f"B{micro}")
        if micro >= rank:
            order.append(f"W{micro - rank}")
        if micro + ahead < micro_batches:
            order.append(f"F{micro + ahead}")
    return " ".join(order)


def w_at_once(rank, ranks, micro_batches):
    order = write_1f1b(rank, ranks, micro_batches).split()
    return " ".join(f"{word} W{word[1:]}" if word[0] == "B" else word for word in order)


@exercise(
    write_zero_bubble,
    mistakes={
        "this rank does its first W after its last F, so it holds all micro-batches until then": lambda rank, ranks, micro_batches: (
            " ".join(
                [
                    write_1f1b(rank, ranks, micro_batches),
                    *(f"W{micro}" for micro in range(micro_batches)),
                ]
            )
        ),
        "ranks wait as long as if every W came right after its B. On the last ranks others wait for the next B": w_at_once,
    },
)
def _(answer: Callable) -> Iterator[tuple]:
    yield from played(answer, ((4, 8), (1, 1), (4, 4), (3, 7), (5, 6), (11, 13)), split=True)
    yield "", "A third of 1F1B's waiting, and no rank holds more than rank 0 does with 1F1B."
