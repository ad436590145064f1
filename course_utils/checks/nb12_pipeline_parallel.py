"""Exercises of notebook 12, schedules that are played through: 1F1B, zero-bubble."""

from collections.abc import Callable, Iterable
from itertools import product

from .. import schedules
from ..style import plural
from .compare import AtMost
from .exercise import Values, exercise

SIZES = [*product((4, 1, 2, 3, 5), (8, 1, 2, 3, 4, 5))]  # ranks, micro-batches


def played(answer: Callable, sizes: Iterable[tuple[int, int]], *, split: bool) -> Values:
    """What is written for (ranks, micro-batches): what a rank does and holds, how long it waits."""
    for ranks, micro_batches in sizes:
        case = f"{plural(ranks, 'rank')}, m = {micro_batches}"
        orders = []
        for rank in range(ranks):
            order = answer(rank, ranks, micro_batches)
            orders.append(order)
            given = f"rank={rank}, ranks={ranks}, micro_batches={micro_batches}"
            yield f"what it returns with {given}", "a text" if isinstance(order, str) else order

        schedule = schedules.parse(orders, micro_batches)
        timeline = schedule.simulate()
        yield f"{case}, played through", "F, B and W" if schedule.split else "F and B"
        for rank, held in enumerate(schedule.held):
            most = min(ranks if split else ranks - rank, micro_batches)
            yield f"{case}: micro-batches that rank {rank} holds", AtMost(int(held), most)
        least = schedules.bubble(ranks, micro_batches, split=split)
        bubble = AtMost(round(100 * timeline.idle(), 2), round(100 * least, 2))
        yield f"{case}: the bubble, in % of the step", bubble


def write_1f1b(rank, ranks, micro_batches):
    """What a rank does in a step, in order: "F0 B0 F1 B1 …", least bubble at least memory."""
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
def _(answer):
    yield from played(answer, (*SIZES, (3, 7), (11, 4), (17, 50)), split=False)
    yield "", "The smallest bubble at the least memory, up to 17 ranks."


def write_zero_bubble(rank, ranks, micro_batches):
    """As 1F1B, each backward in halves: B for the input's gradient, W for the weights', later.

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


def w_at_the_end(rank, ranks, micro_batches):
    order = [f"W{micro}" for micro in range(micro_batches)]
    return " ".join([write_1f1b(rank, ranks, micro_batches), *order])


@exercise(
    write_zero_bubble,
    mistakes={
        "this rank does its first W after its last F, so it holds all micro-batches until "
        "then": w_at_the_end,
        "ranks wait as long as if every W came right after its B. On the last ranks others wait "
        "for the next B": w_at_once,
    },
)
def _(answer):
    sizes = [size for size in SIZES if size[0] <= size[1]]
    yield from played(answer, (*sizes, (5, 6), (3, 18), (11, 13)), split=True)
    yield "", "A third of 1F1B's waiting, and no rank holds more than rank 0 does with 1F1B."
