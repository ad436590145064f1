"""The sentences about the ranks of a launch: what ended one, where the others are, who waits."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import NamedTuple

from ..errors import RankError, location, own_frames
from .advice import advice
from .run import Run
from .wire import Failure

ALONE = (
    "No rank has sent anything to another, so each has trained a model of its own. If they were to "
    "train one, wrap it in DDP, or tell Trainer or Fabric devices={}."
)


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
STOPPED = Activity("does not answer, and was last", "do not answer, and were last")
STARTING = Activity("is starting", "are starting")
RETURNED = Activity("had returned", "had returned", waits=True)  # from an answer that is checked
ENDING = Activity(
    "has returned, and waits for its threads or exit handlers",
    "have returned, and wait for their threads or exit handlers",
)


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


def failed(run: Run, rank: int | None, first: Failure, groups: list[RanksAt]) -> RankError:
    """A rank raised or died; `groups`: where the others were."""
    label = f"the process of the {run.units}" if rank is None else run.label(rank)
    lines = [location(frame) for frame in own_frames(first.frames)[-3:]]
    others = [f"meanwhile {group.sentence(run.unit)}" for group in groups]
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
    label = f"{listed(ranks, run.unit)} of {run.ranks}"
    happened = f"had not finished after the time limit of {limit:g} s"
    return RankError(
        Report(label, happened, [], _places(run, groups, done)),
        "If the work is only slow, pass a larger time_limit (seconds), or None.",
        rank=ranks[0] if len(ranks) == 1 else None,
        cause="TimeLimit",
        traceback="",
        run=run,
    )


def silent(run: Run, seconds: float, left: float, groups: list[RanksAt], done: set[int]) -> str:
    """Nothing was heard for so many seconds; so many are `left` until the time limit."""
    first = f"Nothing heard for {seconds:.0f} s."
    if left < inf:
        first += f" The time limit ends this in {max(0.0, left):.0f} s."
    return "\n".join([first, *_places(run, groups, done)])


def _places(run: Run, groups: list[RanksAt], done: set[int]) -> list[str]:
    """Who is where, and who has returned."""
    sentences = [group.sentence(run.unit) for group in groups]
    if done:
        who = listed(done, run.unit)
        sentences.append(f"{who} had returned: a collective needs every {run.unit}.")
    return sentences


def listed(ranks: Iterable[int], unit: str) -> str:
    """`rank 2`, `ranks 0, 1, 3`, `cores 0, 1`."""
    numbers = [str(rank) for rank in sorted(ranks)]
    return f"{unit if len(numbers) == 1 else f'{unit}s'} {', '.join(numbers)}"
