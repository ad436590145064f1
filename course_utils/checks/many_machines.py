"""The exercise on runs that survive: the answer is killed for real, in a step and in a save, and started again."""

from __future__ import annotations

import io
import itertools
import json
import os
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from ..ground.errors import RankError
from ..ranks.launch import launch
from .exercise import exercise, wrong

RANKS, EPOCHS, EACH = 2, 3, 5  # EACH: steps in an epoch
AGAIN = 3  # steps that may be done twice after a kill
LIMIT, TOLERANCE = 60.0, 1e-6  # seconds for a start that takes one; of weights


def survive(model, optimizer, sampler, loader, epochs, folder):
    rank, last = dist.get_rank(), Path(folder) / "last.pt"
    saved, done = None, 0  # steps
    if last.exists():
        saved = torch.load(last)
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


def parts(notes: Path, kill: dict[str, Any]) -> tuple:
    """Model, optimizer, sampler, loader of this rank; each step is noted, and one may be the last."""
    rank, noted = dist.get_rank(), {}
    torch.manual_seed(100 + rank)
    generator = torch.Generator().manual_seed(0)
    x, y = torch.rand(40, 6, generator=generator), torch.randint(3, (40,), generator=generator)
    dataset = TensorDataset(x, y)
    sampler = DistributedSampler(dataset, seed=1)
    loader = DataLoader(dataset, len(dataset) // RANKS // EACH, sampler=sampler, generator=torch.Generator())
    model = DDP(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    file = (notes / f"rank{rank}.jsonl").open("a", buffering=1)
    count = itertools.count(1)

    def flat(tensors: list) -> list[float]:
        return [number for tensor in tensors if tensor is not None for number in tensor.detach().flatten().tolist()]

    def forward(module: nn.Module, inputs: tuple) -> None:
        if torch.is_grad_enabled():
            noted.update(batch=flat(inputs), random=torch.get_rng_state().sum(dtype=torch.int64).item())

    def before(*_: Any) -> None:
        if not noted:  # get_state_dict fills an optimizer's state by an empty step
            return
        moments = [optimizer.state[p].get("momentum_buffer") for p in model.parameters()]
        noted.update(weights=flat(list(model.parameters())), moments=flat(moments))
        if next(count) == kill.get("step") and rank == kill["rank"]:
            die(notes, "in a step")

    def after(*_: Any) -> None:
        if noted:
            print(json.dumps(noted | {"after": flat(list(model.parameters()))}), file=file)
            noted.clear()

    model.register_forward_pre_hook(forward)
    optimizer.register_step_pre_hook(before)
    optimizer.register_step_post_hook(after)
    return model, optimizer, sampler, loader


def die(notes: Path, where: str) -> None:
    """End this process as a machine without power does."""
    (notes / "killed").write_text(where)
    os.kill(os.getpid(), signal.SIGKILL)


def start(answer: Callable, folder: Path, notes: Path, kill: dict[str, Any]) -> None:
    """The answer on this rank; `kill`: in which step, in which save."""
    save, files = torch.save, itertools.count(1)

    def half(thing: Any, file: Any, *args: Any, **kwargs: Any) -> None:
        if isinstance(file, io.BytesIO) or next(files) != kill.get("save"):  # pickling a tensor saves to memory, too
            save(thing, file, *args, **kwargs)
            return
        save(thing, whole := io.BytesIO(), *args, **kwargs)
        with file if hasattr(file, "write") else open(file, "wb") as stream:
            stream.write(whole.getvalue()[: len(whole.getvalue()) // 2])
            stream.flush()
            die(notes, "in a save")

    torch.set_num_threads(1)
    torch.save = torch.serialization.save = half
    answer(*parts(notes, kill), EPOCHS, folder)


def _run(answer: Callable, folder: Path, notes: Path, **kill: int) -> tuple[list[list[dict]], RankError | None]:
    """What each rank noted, and the error that was no kill of ours."""
    notes.mkdir()
    folder.mkdir(exist_ok=True)
    error = None
    try:
        launch(start, answer, folder, notes, kill, ranks=RANKS, device="cpu", time_limit=LIMIT)
    except RankError as found:
        error = None if (notes / "killed").exists() else found
    files = [notes / f"rank{rank}.jsonl" for rank in range(RANKS)]
    texts = [file.read_text() if file.exists() else "" for file in files]
    return [[json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()] for text in texts], error


def _batches(rank: int) -> list[list[float]]:
    """What this rank is to train on, step by step."""
    x = torch.rand(40, 6, generator=torch.Generator().manual_seed(0))
    sampler, found = DistributedSampler(range(40), RANKS, rank, seed=1), []
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        found += [x[rows].flatten().tolist() for rows in torch.tensor(list(sampler)).split(40 // RANKS // EACH)]
    return found


def _near(a: list[float], b: list[float]) -> bool:
    return len(a) == len(b) and all(abs(i - j) <= TOLERANCE for i, j in zip(a, b, strict=True))


def _number(one: dict, rank: int) -> int | None:
    """The step that has this batch."""
    return next((step for step, batch in enumerate(_batches(rank)) if _near(batch, one["batch"])), None)


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
        quiet, error = _run(answer, home / "quiet", home / "notes")
        if error:
            raise error
        _undisturbed(quiet)
        done, twice, where = 0, 0, ""
        for n, kill in enumerate(({"step": 7, "rank": 1}, {"save": 3, "step": 5, "rank": 0}, {})):
            found, error = _run(answer, home / "disturbed", home / f"notes{n}", **kill)
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
        for step, (batch, one) in enumerate(zip(_batches(rank), notes, strict=False)):
            if not _near(batch, one["batch"]):
                other = f"step {step} of rank {rank} has another batch than in the loop above"
                wrong(f"Nobody killed it, and {other}. Is set_epoch called before each epoch?")
        if len(notes) != EPOCHS * EACH:
            wrong("Nobody killed it, and the number of steps is not that of the loop.",
                  expected=f"{EPOCHS * EACH} steps", got=f"{len(notes)} on rank {rank}")  # fmt: skip


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
              expected=f"the weights after {step} steps", got=have)  # fmt: skip
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
