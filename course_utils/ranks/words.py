"""The sentences about the ranks of a launch: what ended one, where the others are, who waits."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import NamedTuple

from ..errors import RankError, location, own_frames
from .advice import advice
from .run import Run
from .wire import Failure


class Activity(NamedTuple):
    """What a rank does, in the words for one and for several."""

    one: str
    several: str
    waits: bool = False

    @classmethod
    def wait(cls, where: str) -> Activity:
        return cls(f"waits {where}", f"wait {where}", waits=True)


RUNNING = Activity("is", "are")
SILENT = Activity("does not answer", "do not answer")
STARTING = Activity("is starting", "are starting")
RETURNED = Activity("had returned", "had returned", waits=True)  # from an answer that is checked
ENDING = Activity("has returned, and is ending", "have returned, and are ending")


class RanksAt(NamedTuple):
    """Ranks that do the same at the same place."""

    ranks: list[int]
    activity: Activity
    place: str  # " here:" and the line

    def sentence(self, unit: str) -> str:
        words = self.activity.one if len(self.ranks) == 1 else self.activity.several
        return f"{listed(self.ranks, unit)} {words}{self.place}"


class Report(NamedTuple):
    """What an error says of ranks, part by part: a check says it without the advice."""

    label: str  # "rank 2 of 4"
    happened: str  # "raised ValueError: bad shard"
    lines: list[str]  # where that was
    others: list[str]  # what the others did, a sentence each


def failed(
    run: Run, rank: int | None, first: Failure, groups: list[RanksAt], dead: dict[int, Failure]
) -> RankError:
    """A rank raised or died; `groups`: where the others were; `dead`: those that died, too."""
    label = f"the process of the {run.units}" if rank is None else run.label(rank)
    lines = [location(frame) for frame in own_frames(first.frames)[-3:]]
    others = [f"{run.unit} {other} {failure.happened}" for other, failure in dead.items()]
    others += _sentences(groups, run.unit)
    others = [f"meanwhile {sentence}" for sentence in others]
    return RankError(
        Report(label, first.happened, lines, others),
        advice(first, run.device),
        rank=rank,
        cause=first.cause,
        traceback=first.traceback,
        run=run,
    )


def too_late(run: Run, limit: float, groups: list[RanksAt], done: set[int]) -> RankError:
    """The time limit came before all ranks were `done`; `groups`: where the others were."""
    late = [group for group in groups if group.activity != RETURNED] or groups
    ranks = [rank for group in late for rank in group.ranks]
    busy = [rank for group in late if not group.activity.waits for rank in group.ranks]
    suspects = ranks if len(ranks) == 1 else busy
    culprit = suspects[0] if len(suspects) == 1 else None

    others = [*_sentences(groups, run.unit), *_returned(done, run.unit)]
    waiting = [rank for rank in ranks if rank != culprit]
    if culprit is not None and waiting:
        waits = Activity.wait(f"for {run.unit} {culprit}.")
        others.append(RanksAt(waiting, waits, "").sentence(run.unit))
    label = f"{listed(ranks, run.unit)} of {run.ranks}"
    happened = f"had not finished after the time limit of {limit:g} s"
    return RankError(
        Report(label, happened, [], others),
        "If the work is only slow, pass a larger time_limit (seconds), or None.",
        rank=culprit,
        cause="TimeLimit",
        traceback="",
        run=run,
    )


def silent(run: Run, seconds: float, left: float, groups: list[RanksAt], done: set[int]) -> str:
    """Nothing was heard for so many seconds; so many are `left` until the time limit."""
    first = f"Nothing heard for {seconds:.0f} s."
    if left < inf:
        first += f" The time limit ends this in {max(0.0, left):.0f} s."
    return "\n".join([first, *_sentences(groups, run.unit), *_returned(done, run.unit)])


def listed(ranks: Iterable[int], unit: str) -> str:
    """`rank 2`, `ranks 0, 1, 3`, `cores 0, 1`."""
    numbers = [str(rank) for rank in sorted(ranks)]
    return f"{unit if len(numbers) == 1 else f'{unit}s'} {', '.join(numbers)}"


def _sentences(groups: list[RanksAt], unit: str) -> list[str]:
    return [group.sentence(unit) for group in groups]


def _returned(done: set[int], unit: str) -> list[str]:
    """Who has returned, if anyone has."""
    if not done:
        return []
    return [f"{listed(done, unit)} had returned: a collective needs every {unit}."]
