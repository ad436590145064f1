"""Answers to the exercise of notebook 19."""

import io
import os
import pickle
import shutil

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn.functional import cross_entropy


def everyones_random():
    random = [None] * dist.get_world_size()
    dist.all_gather_object(random, torch.get_rng_state())
    return random


def beside(state, path):
    torch.save(state, new := path.with_suffix(".new"))
    os.replace(new, path)


def survivor(save=beside, load=torch.load, rank=0, loss=cross_entropy, off=0, name="last.pt",
             each=1, random=everyones_random, mine=lambda random: random[dist.get_rank()], epoch=True, mode=True):
    """An answer that saves on one rank, from which any part can be taken."""

    def survive(model, optimizer, sampler, loader, epochs, folder):
        model.train(mode)
        last, saved = folder / name.format(dist.get_rank()), {}
        if last.exists():
            saved = load(last)
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            torch.set_rng_state(mine(saved["random"]))
        done = saved.get("done", 0) + off * bool(saved)
        for number in range(done // len(loader), epochs):
            if epoch:
                sampler.set_epoch(number)
            for step, (x, y) in enumerate(loader, number * len(loader)):
                if step < done:
                    torch.set_rng_state(mine(saved["random"]))
                    continue
                value = loss(model(x), y)
                optimizer.zero_grad()
                value.backward()
                optimizer.step()
                if (step + 1) % each == 0:
                    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "done": step + 1}
                    state["random"] = random()
                    if rank in (None, dist.get_rank()):
                        save(state, last)

    return survive


def with_dcp(model, optimizer, sampler, loader, epochs, folder):
    """A folder a step, complete when it has `.metadata`; each rank has its own entry for random numbers."""
    name, done, random = f"random{dist.get_rank()}", 0, None

    def state(done):
        weights, moments = get_state_dict(model, optimizer)
        return {"model": weights, "optimizer": moments, name: torch.get_rng_state(), "done": done}

    if complete := sorted(folder.glob("*/.metadata")):
        dcp.load(saved := state(0), checkpoint_id=complete[-1].parent)
        set_state_dict(model, optimizer, model_state_dict=saved["model"], optim_state_dict=saved["optimizer"])
        done, random = saved["done"], saved[name]
    for epoch in range(done // len(loader), epochs):
        sampler.set_epoch(epoch)
        if random is not None and done == epoch * len(loader):
            torch.set_rng_state(random)
        for step, (x, y) in enumerate(loader, epoch * len(loader)):
            if step >= done:
                if step == done and step % len(loader):
                    torch.set_rng_state(random)
                cross_entropy(model(x), y).backward()
                optimizer.step()
                optimizer.zero_grad()
                dcp.save(state(step + 1), checkpoint_id=folder / f"{step:04}")


def last_of_many(state, path):
    """A file a step, and a pointer to the newest."""
    name = f"{state['done']}.pickle"
    (path.parent / name).write_bytes(pickle.dumps(state))
    (path.parent / "new").write_text(name)
    os.replace(path.parent / "new", path)


def removed_before(state, path):
    torch.save(state, new := path.with_suffix(".new"))
    path.unlink(missing_ok=True)
    new.rename(path)


def copied(state, path):
    torch.save(state, new := path.with_suffix(".new"))
    shutil.copy(new, path)


def by_bytes(state, path):
    torch.save(state, buffer := io.BytesIO())
    path.write_bytes(buffer.getvalue())


def half_is_nothing(model, optimizer, sampler, loader, epochs, folder):
    try:
        torch.load(folder / "last.pt")
    except Exception:
        (folder / "last.pt").unlink(missing_ok=True)
    dist.barrier()
    survivor(torch.save)(model, optimizer, sampler, loader, epochs, folder)


def elsewhere(model, optimizer, sampler, loader, epochs, folder):
    survivor()(model, optimizer, sampler, loader, epochs, folder.parent)


def no_checkpoint(state, path):
    pass


RIGHT = {"survive": [
    with_dcp,
    survivor(last_of_many, lambda path: pickle.loads((path.parent / path.read_text()).read_bytes()), rank=1),
    survivor(each=3),
]}
WRONG = {"survive": [
    survivor(torch.save), survivor(by_bytes), survivor(removed_before), survivor(copied), survivor(no_checkpoint),
    survivor(rank=None, name="{}.pt"), survivor(each=5), survivor(off=1), survivor(off=-1), survivor(epoch=False),
    survivor(loss=lambda a, b: cross_entropy(a, b) / 2), survivor(mode=False), half_is_nothing, elsewhere,
    survivor(mine=lambda random: random[0]), survivor(lambda state, path: pickle.dump(state, path.open("wb"))),
]}
