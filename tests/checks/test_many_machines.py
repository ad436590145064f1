"""The exercise on runs that survive: right answers of many kinds pass, plausible wrong ones fail in true words."""

import os
import pickle
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn.functional import cross_entropy

from course_utils import check
from tests.checks.judging import judge, solved

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="launch needs Linux or macOS")


def one_step(model, optimizer, x, y):
    loss = cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def atomically(thing, path):
    torch.save(thing, new := path.with_suffix(".new"))
    os.replace(new, path)


def straight(thing, path):
    torch.save(thing, path)


def everyones_random():
    random = [None] * dist.get_world_size()
    dist.all_gather_object(random, torch.get_rng_state())
    return random


def state(model, optimizer, **more):
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), **more}


def test_solution():
    verdict = check.survive(check.survive.published)
    assert verdict, str(verdict)
    assert "Killed twice" in verdict.text


def with_dcp(model, optimizer, sampler, loader, epochs, folder):
    """A folder a step, complete when it has `.metadata`; each rank has its own entry for random numbers."""
    name, done = f"random{dist.get_rank()}", 0
    complete = sorted(folder.glob("*/.metadata"))
    if complete:
        weights, moments = get_state_dict(model, optimizer)
        saved = {"model": weights, "optimizer": moments, name: torch.get_rng_state(), "done": 0}
        dcp.load(saved, checkpoint_id=complete[-1].parent)
        set_state_dict(model, optimizer, model_state_dict=saved["model"], optim_state_dict=saved["optimizer"])
        torch.set_rng_state(saved[name])
        done = saved["done"]
    for epoch in range(done // len(loader), epochs):
        sampler.set_epoch(epoch)
        for step, (x, y) in enumerate(loader, epoch * len(loader)):
            if step >= done:
                one_step(model, optimizer, x, y)
                weights, moments = get_state_dict(model, optimizer)
                now = {"model": weights, "optimizer": moments, name: torch.get_rng_state(), "done": step + 1}
                dcp.save(now, checkpoint_id=folder / f"{step:04}")


def random_numbers_of_the_step(model, optimizer, sampler, loader, epochs, folder):
    """Nothing to restore where each step has its own seed; a file a step, and those that cannot be read are skipped."""
    done = 0
    for path in sorted(folder.glob("*.pt"), reverse=True):
        try:
            saved = torch.load(path)
        except Exception:
            continue
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        done = int(path.stem) + 1
        break
    dist.barrier()
    step = 0
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            if step >= done:
                torch.manual_seed(1000 * step + dist.get_rank())
                one_step(model, optimizer, x, y)
                if dist.get_rank() == 0:
                    torch.save(state(model, optimizer), folder / f"{step:05}.pt")
            step += 1


def every_second_step(model, optimizer, sampler, loader, epochs, folder):
    """Saved by pickle, by the last rank, with a pointer to the newest; the position in the epoch as such."""
    epoch, index, pointer, rank = 0, 0, folder / "last", dist.get_rank()
    if pointer.exists():
        saved = pickle.loads((folder / pointer.read_text()).read_bytes())
        model.module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        epoch, index = saved["at"]
        torch.set_rng_state(saved["random"][rank])
    while epoch < epochs:
        sampler.set_epoch(epoch)
        batches = list(loader)
        for at in range(index, len(batches)):
            one_step(model, optimizer, *batches[at])
            if at % 2 == 0:
                random = everyones_random()
                if rank == dist.get_world_size() - 1:
                    saved = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
                    name = f"epoch{epoch}-{at}.pickle"
                    (folder / name).write_bytes(pickle.dumps(saved | {"at": (epoch, at + 1), "random": random}))
                    (folder / "new").write_text(name)
                    os.replace(folder / "new", pointer)
        epoch, index = epoch + 1, 0


@pytest.mark.parametrize("answer", [with_dcp, random_numbers_of_the_step, every_second_step])
def test_right(answer):
    solved("survive", answer)


def flawed(*, save=atomically, load=lambda saved: saved, restore=("model", "optimizer", "random"), epoch=True, off=0):
    """The solution with one fault."""

    def answer(model, optimizer, sampler, loader, epochs, folder):
        last, done, rank = folder / "last.pt", 0, dist.get_rank()
        if last.exists():
            saved = torch.load(last)
            if "model" in restore:
                model.load_state_dict(saved["model"])
            if "optimizer" in restore:
                optimizer.load_state_dict(saved["optimizer"])
            if "random" in restore:
                torch.set_rng_state(saved["random"][rank])
            if "random of rank 0" in restore:
                torch.set_rng_state(saved["random"][0])
            done = saved["done"] + off
        for number in range(done // len(loader), epochs):
            if epoch:
                sampler.set_epoch(number)
            for step, (x, y) in enumerate(loader, number * len(loader)):
                if step >= done:
                    one_step(model, optimizer, x, y)
                    random = everyones_random()
                    if rank == 0:
                        save(state(model, optimizer, done=step + 1, random=random), last)

    return answer


def restored(model, optimizer, folder):
    """What was saved last, with model, optimizer and random numbers set to it; nothing at the first start."""
    if not (folder / "last.pt").exists():
        return {}
    saved = torch.load(folder / "last.pt")
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    torch.set_rng_state(saved["random"][dist.get_rank()])
    return saved


def no_checkpoint(model, optimizer, sampler, loader, epochs, folder):
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            one_step(model, optimizer, x, y)


def epochs_only(model, optimizer, sampler, loader, epochs, folder):
    """Saved after each step, but it begins its epoch anew."""
    last, first = folder / "last.pt", restored(model, optimizer, folder).get("epoch", 0)
    for epoch in range(first, epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            one_step(model, optimizer, x, y)
            random = everyones_random()
            if dist.get_rank() == 0:
                atomically(state(model, optimizer, epoch=epoch, random=random), last)


def once_an_epoch(model, optimizer, sampler, loader, epochs, folder):
    last, first = folder / "last.pt", restored(model, optimizer, folder).get("epoch", -1) + 1
    for epoch in range(first, epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            one_step(model, optimizer, x, y)
        random = everyones_random()
        if dist.get_rank() == 0:
            atomically(state(model, optimizer, epoch=epoch, random=random), last)


def half_is_nothing(model, optimizer, sampler, loader, epochs, folder):
    """Straight onto the last file, and from the start where it is broken."""
    try:
        torch.load(folder / "last.pt")
    except Exception:
        (folder / "last.pt").unlink(missing_ok=True)
    dist.barrier()
    flawed(save=straight)(model, optimizer, sampler, loader, epochs, folder)


def epoch_of_the_sampler_forgotten(model, optimizer, sampler, loader, epochs, folder):
    """It counts epochs from where it goes on: the first of this start is epoch 0 to the sampler."""
    last, done = folder / "last.pt", restored(model, optimizer, folder).get("done", 0)
    start = done
    for epoch in range(epochs - start // len(loader)):
        sampler.set_epoch(epoch)
        for index, (x, y) in enumerate(loader):
            if epoch == 0 and index < start % len(loader):
                continue
            one_step(model, optimizer, x, y)
            done += 1
            random = everyones_random()
            if dist.get_rank() == 0:
                atomically(state(model, optimizer, done=done, random=random), last)


def a_file_for_each_rank(model, optimizer, sampler, loader, epochs, folder):
    """Whole files, but after a kill they are of different steps."""
    rank, done = dist.get_rank(), 0
    mine = folder / f"rank{rank}.pt"
    if mine.exists():
        saved = torch.load(mine)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        torch.set_rng_state(saved["random"])
        done = saved["done"]
    for epoch in range(done // len(loader), epochs):
        sampler.set_epoch(epoch)
        for step, (x, y) in enumerate(loader, epoch * len(loader)):
            if step >= done:
                one_step(model, optimizer, x, y)
                if rank == 1 and step == 4:
                    continue  # it is a little behind: the kill in step 6 finds it so
                if rank == 0 or step < 5:
                    atomically(state(model, optimizer, done=step + 1, random=torch.get_rng_state()), mine)


def one_epoch_too_few(model, optimizer, sampler, loader, epochs, folder):
    flawed()(model, optimizer, sampler, loader, epochs - 1, folder)


def fails_when_it_resumes(model, optimizer, sampler, loader, epochs, folder):
    if (folder / "last.pt").exists():
        torch.load(folder / "last.pt")["weights"]
    flawed()(model, optimizer, sampler, loader, epochs, folder)


WRONG = {
    "no checkpoint": (no_checkpoint, "nothing was restored"),
    "optimizer forgotten": (flawed(restore=("model", "random")), "not the optimizer's moments: they begin at zero"),
    "weights forgotten": (flawed(restore=("optimizer", "random")), "but with other weights than the undisturbed run"),
    "step off by one: done again": (flawed(off=-1), "but with other weights than the undisturbed run"),
    "step off by one: left out": (flawed(off=1), "it goes on with the batch of step"),
    "random numbers forgotten": (flawed(restore=("model", "optimizer")), "for dropout, are others"),
    "random numbers of rank 0": (
        flawed(restore=("model", "optimizer", "random of rank 0")),
        "The random numbers of rank 1, for dropout",
    ),
    "last file half-written": (flawed(save=straight), "A kill in a save leaves half a file"),
    "half a file is no file": (half_is_nothing, "the checkpoint before that save is gone"),
    "set_epoch never called": (flawed(epoch=False), "Is set_epoch called before each epoch?"),
    "sampler's epoch forgotten": (epoch_of_the_sampler_forgotten, "steps again"),
    "the epoch begins anew": (epochs_only, "but with other weights than the undisturbed run"),
    "saved once an epoch": (once_an_epoch, "steps again"),
    "files of different steps": (a_file_for_each_rank, "and rank 1 with step"),
    "ends too early": (one_epoch_too_few, "the number of steps is not that of the loop"),
    "fails when it resumes": (fails_when_it_resumes, "it fails before its first step"),
}


@pytest.mark.parametrize(("answer", "words"), WRONG.values(), ids=WRONG)
def test_wrong(answer, words):
    judge("survive", answer, words)


def test_not_yet():
    def survive(model, optimizer, sampler, loader, epochs, folder): ...

    assert check.survive(survive).state == "not yet"


def test_nothing_is_left_behind(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert check.survive(flawed(save=straight)).state == "wrong"
    assert not list(Path(tmp_path).iterdir())
