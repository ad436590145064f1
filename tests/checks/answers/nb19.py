"""Answers to the exercise of notebook 19."""

import contextlib
import copy
import os
import pickle
import threading

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn.functional import cross_entropy

from course_utils.checks.instruments import everyones


def beside(state, path):
    new = path.with_suffix(".new")
    torch.save(state, new)
    os.replace(new, path)


def survivor(
    save=beside,
    load=torch.load,
    rank=0,
    name="last.pt",
    each=1,
    late=False,
    in_the_epoch=False,
    best=float("inf"),
):
    """An answer that saves on one rank, from which any part can be taken."""

    def survive(model, optimizer, sampler, loader, epochs, folder):
        last = folder / name.format(dist.get_rank())
        saved, least = {}, best

        def restore_random():
            torch.set_rng_state(saved["random"][dist.get_rank()])

        if last.exists():
            saved = load(last)
        if saved:
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            if not late:
                restore_random()
        done = saved.get("done", 0)
        for number in range(done // len(loader), epochs):
            sampler.set_epoch(number)
            for step, (x, y) in enumerate(loader, number * len(loader)):
                if step < done:
                    restore_random()
                    continue
                if late and saved and step == done:
                    restore_random()
                loss = cross_entropy(model(input=x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                index = step % len(loader) if in_the_epoch else step
                better = least == float("inf") or everyones(loss.item())[0] < least
                if better and least != float("inf"):
                    least = everyones(loss.item())[0]
                if better and (index + 1) % (3 if in_the_epoch else each) == 0:
                    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                    state |= {"done": step + 1, "random": everyones(torch.get_rng_state())}
                    if rank in (None, dist.get_rank()):
                        save(state, last)

    return survive


def with_dcp(model, optimizer, sampler, loader, epochs, folder):
    """A folder a step, complete when it has `.metadata`; random numbers have an entry a rank."""
    name, done, random = f"random{dist.get_rank()}", 0, None

    def state(done):
        weights, moments = get_state_dict(model, optimizer)
        return {"model": weights, "optimizer": moments, name: torch.get_rng_state(), "done": done}

    if complete := sorted(folder.glob("*/.metadata")):
        dcp.load(saved := state(0), checkpoint_id=complete[-1].parent)
        set_state_dict(
            model, optimizer, model_state_dict=saved["model"], optim_state_dict=saved["optimizer"]
        )
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


def by_a_thread(copy, most):
    """Each save is written by a thread; at most so many write at a time."""
    writing = []

    def save(state, path):
        while len(writing) >= most:
            writing.pop(0).join()
        writing.append(threading.Thread(target=beside, args=(copy(state), path)))
        writing[-1].start()

    return survivor(save)


def in_a_log(cut_off):
    """A file that only grows; at a start half a record at its end is cut off, or left there."""

    def save(state, path):
        with path.open("ab") as log:
            log.write(pickle.dumps(state))
            log.flush()

    def load(path):
        last, end = {}, 0
        with path.open("rb") as log, contextlib.suppress(EOFError, pickle.UnpicklingError):
            while True:
                last, end = pickle.load(log), log.tell()
        if cut_off and dist.get_rank() == 0:
            os.truncate(path, end)
        return last

    return survivor(save, load)


def last_of_many(state, path):
    """A file a step, and a pointer to the newest."""
    name = f"{state['done']}.pickle"
    (path.parent / name).write_bytes(pickle.dumps(state))
    (path.parent / "new").write_text(name)
    os.replace(path.parent / "new", path)


def by_a_link(state, path):
    """A file a step, and a link to the newest, made under a name of its own."""
    name = path.with_name(f"{state['done']}.pt")
    torch.save(state, name)
    os.symlink(name, link := path.with_name(f"{os.getpid()}-{state['done']}"))
    os.replace(link, path)


def removed_before(state, path):
    new = path.with_suffix(".new")
    torch.save(state, new)
    path.unlink(missing_ok=True)
    new.rename(path)


def a_file_a_step(state, path):
    beside(state, path.with_name(f"{state['done']}.pt"))
    path.touch()


def by_the_alphabet(path):
    return torch.load(max(path.parent.glob("*[0-9].pt"), key=str))


def in_two_files_by_turns(state, path):
    torch.save(state, path.with_name(f"{state['done'] % 2}.pt"))
    path.touch()


def the_whole_newest(path):
    found = {}
    for file in path.parent.glob("?.pt"):
        with contextlib.suppress(Exception):  # half a file
            found = max(found, torch.load(file), key=lambda state: state.get("done", 0))
    return found


def first_file_is_whole(*given):
    """Begins anew only in an empty folder; a kill in the first write leaves half a file there."""
    if any(given[-1].iterdir()):
        torch.load(given[-1] / "last.pt")
    survivor()(*given)


def leaves_nothing(*given):
    survivor()(*given)
    dist.barrier()
    if dist.get_rank() == 0:
        (given[-1] / "last.pt").unlink()


def newest(path):
    return pickle.loads((path.parent / path.read_text()).read_bytes())


def remembered():
    """The random states are kept in a variable, which a kill would take."""
    states = {}

    def save(state, path):
        states[state["done"]] = state.pop("random")
        beside(state, path)

    def load(path):
        saved = torch.load(path)
        return saved | {"random": states.get(saved["done"], [torch.get_rng_state()] * 2)}

    return survivor(save, load)


RIGHT = {
    "survive": [
        with_dcp,
        survivor(last_of_many, newest, rank=1),
        survivor(by_a_link, each=3),
        by_a_thread(copy.deepcopy, 1),
        in_a_log(cut_off=True),
        survivor(in_two_files_by_turns, the_whole_newest),
    ]
}
WRONG = {
    "survive": [
        survivor(torch.save),
        survivor(removed_before),
        survivor(rank=None, name="{}.pt"),
        survivor(each=4),
        survivor(best=9.0),
        survivor(a_file_a_step, by_the_alphabet),
        survivor(in_the_epoch=True),
        survivor(late=True),
        survivor(late=True, each=3),
        leaves_nothing,
        first_file_is_whole,
        by_a_thread(copy.deepcopy, 99),
        by_a_thread(dict, 1),
        in_a_log(cut_off=False),
        remembered(),
    ]
}
