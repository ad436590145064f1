"""The exercise on runs that survive: the answer is killed for real, in a step and in a save, and started again."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

from ..errors import RankError
from .old import exercise, wrong
from .survival_cases import EACH, EPOCHS, batches, run

AGAIN = 3  # steps that may be done twice after a kill
TOLERANCE = 1e-6  # of weights


def survive(model, optimizer, sampler, loader, epochs, folder):
    rank, last = dist.get_rank(), Path(folder) / "last.pt"
    saved, done = None, 0  # steps
    if last.exists():
        saved = torch.load(last, map_location="cpu")
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        torch.set_rng_state(saved["random"][rank])
        done = saved["done"]
    for epoch in range(done // len(loader), epochs):
        sampler.set_epoch(epoch)
        for step, (x, y) in enumerate(loader, start=epoch * len(loader)):
            if step < done:
                continue
            loss = cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            random = [None] * dist.get_world_size()
            dist.all_gather_object(random, torch.get_rng_state())
            if rank == 0:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "done": step + 1}
                torch.save(state | {"random": random}, last.with_suffix(".new"))
                os.replace(last.with_suffix(".new"), last)


def _near(a: list[float], b: list[float]) -> bool:
    return len(a) == len(b) and all(abs(i - j) <= TOLERANCE for i, j in zip(a, b, strict=True))


def _number(one: dict, rank: int) -> int | None:
    """The step that has this batch."""
    return next((step for step, batch in enumerate(batches(rank)) if _near(batch, one["batch"])), None)


@exercise(
    survive,
    "What does the next step depend on? The weights, the optimizer's state, the step and its epoch (the data), and the "
    "random numbers of each rank (dropout). All of it is to be saved, and loaded before the loop.",
    "`torch.get_rng_state()` is another one on each rank: `dist.all_gather_object` brings all of them to rank 0. Skip "
    "the batches of the epoch that are done: `sampler.set_epoch(epoch)`, then `continue` for them.",
    "A kill may come in mid-save: write beside the last file; `os.replace(new, last)` when it is whole.",
)
def _survive(answer: Callable) -> str:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        quiet, error = run(answer, home / "quiet", home / "notes")
        if error:
            raise error
        _undisturbed(quiet)
        done, twice, where = 0, 0, ""
        for n, kill in enumerate(({"step": 7, "rank": 1}, {"save": 3, "step": 5, "rank": 0}, {})):
            found, error = run(answer, home / "disturbed", home / f"notes{n}", **kill)
            if n:
                twice += _goes_on(found, quiet, done, where, error)
            elif error:
                raise error
            _same_from_there(found, quiet)
            done = max([done, *(_number(notes[-1], rank) + 1 for rank, notes in enumerate(found) if notes)])
            killed = home / f"notes{n}" / "killed"
            where = killed.read_text() if killed.exists() else ""
        if done < len(quiet[0]):
            wrong(f"Started again, it ended after step {done - 1}.", expected=f"step {len(quiet[0]) - 1}", got=done - 1)
    return f"Killed twice, it took the steps of the undisturbed run, on every rank; {twice} of them twice."


def _undisturbed(quiet: list[list[dict]]) -> None:
    """End the check where the run that nobody kills is not the loop."""
    for rank, notes in enumerate(quiet):
        for step, (batch, one) in enumerate(zip(batches(rank), notes, strict=False)):
            if not _near(batch, one["batch"]):
                other = f"step {step} of rank {rank} has another batch than in the loop above"
                wrong(f"Nobody killed it, and {other}. Is set_epoch called before each epoch?")
        if len(notes) != EPOCHS * EACH:
            wrong("Nobody killed it, and the number of steps is not that of the loop.",
                  expected=f"{EPOCHS * EACH} steps", got=f"{len(notes)} on rank {rank}")


def _goes_on(found: list[list[dict]], quiet: list[list[dict]], done: int, where: str, error: RankError | None) -> int:
    """The number of steps that are done again; ends the check where the run does not go on as it should."""
    again = f"Killed {where} after {done} steps and started again"
    first = [_number(notes[0], rank) if notes else None for rank, notes in enumerate(found)]
    if error and not any(found):
        broken = " A kill in a save leaves half a file." if where == "in a save" else ""
        wrong(f"{again}, it fails before its first step.{broken} {error.said}")
    if None not in first and len({*first}) > 1:
        wrong(f"{again}, rank 0 goes on with step {first[0]} and rank 1 with step {first[1]}.")
    if error:
        raise error
    for rank, notes in enumerate(found):
        if not notes:
            wrong(f"{again}, rank {rank} takes no step.", expected=f"step {done}")
        step, one = first[rank], notes[0]
        if step is None:
            wrong(f"{again}, rank {rank} takes a batch that is none of the undisturbed run's.")
        why = ""
        if step == 0 and done > AGAIN:
            lost = "the checkpoint before that save is gone" if where == "in a save" else "nothing was restored"
            why = f"it begins with the first batch of all: {lost}, or the data begin anew."
        elif step > done:
            why = f"it goes on with the batch of step {step}: a batch before it is left out."
        elif step < done - AGAIN:
            why = f"it does {done - step} steps again. Save after each, and go on in the epoch that was under way."
        if why:
            wrong(f"{again}, {why}", expected=f"step {done}", got=f"step {step}")
        _restored(one, quiet[rank], step, again)
    return done - first[0]


def _restored(one: dict, quiet: list[dict], step: int, again: str) -> None:
    expected, same = quiet[step], [n for n, each in enumerate(quiet) if _near(one["weights"], each["weights"])]
    if step not in same:
        have = f"those after {same[0]} steps" if same else "weights that no step of it began with"
        wrong(f"{again}, it goes on with the batch of step {step}, but with other weights than the undisturbed run.",
              expected=f"the weights after {step} steps", got=have)
    if not _near(one["moments"], expected["moments"]):
        kept = "they begin at zero" if not any(one["moments"]) else "they are those of another step"
        wrong(f"{again}, step {step} has the right weights and batch, but not the optimizer's moments: {kept}.")


def _same_from_there(found: list[list[dict]], quiet: list[list[dict]]) -> None:
    """End the check at the first step whose weights are not those of the undisturbed run."""
    for rank, notes in enumerate(found):
        for i, one in enumerate(notes):
            step = _number(one, rank)
            if step is None or not _near(one["weights"], quiet[rank][step]["weights"]):
                wrong(f"Rank {rank} soon leaves the undisturbed run: not its batch, or not its weights.")
            if not _near(one["after"], quiet[rank][step]["after"]):
                other = [r for r, n in enumerate(found) if n[i:] and n[i]["random"] != quiet[r][step]["random"]]
                why = f" The random numbers of rank {other[0]}, for dropout, are others." if other else ""
                wrong(f"Step {step} begins as in the undisturbed run, but ends with other weights.{why}")
