"""Exercise of notebook 19, on two real ranks: started again from what a kill would leave.

Nothing is killed: the folder is copied in a step, before every change of a file, with half of what
was written into a file, and at the end. Threads write slowly, so that a write nobody waits for is
unfinished by then.
"""

import contextlib
import functools
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from ..ranks.values import pack, unpack
from .compare import AtMost
from .exercise import exercise, on_cpus, patched
from .instruments import everyones

# EACH: steps in an epoch. Saves after every 2 or 3 steps meet the end of one, those after every
# third step of an epoch lie more than 3 apart, and step 10 comes before step 9 by the alphabet.
EPOCHS, EACH = 4, 4
CHANGES = {"open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.symlink"}


class Kills:
    """Copies of a folder as a kill would leave it, by the number of steps that are done."""

    def __init__(self, home: Path) -> None:
        self.home = self.folder = home
        self.steps: Collection[int] = ()
        self.done = 0
        self.kept: list[tuple[int, Path]] = []
        self.writing: Path | None = None
        self._held = b""  # what the file `writing` held when the folder was last looked at
        self._last: Path | None = None  # the copy made then
        self._trains = threading.get_native_id()
        self._lock = threading.Lock()
        sys.addaudithook(self._heard)  # for as long as the process lives

    def keep(self) -> None:
        """Copy the folder if it is time, also with half of what was written since last time."""
        with self._lock, contextlib.suppress(OSError):  # a file may go while the folder is copied
            last, self._last = self._last, None
            if self.writing and self.writing.exists():
                held, self._held = self._held, self.writing.read_bytes()
                if last and held != self._held:
                    pairs = enumerate(zip(held, self._held, strict=False))
                    same = next((at for at, (a, b) in pairs if a != b), len(held))
                    half = (same + len(self._held)) // 2
                    file = self._copy(last) / self.writing.relative_to(self.folder)
                    file.write_bytes(self._held[:half] + held[half:])
            if self.done in self.steps:
                self._last = self._copy(self.folder)

    def writer(self, real: Callable, file: Any, *args: Any) -> Any:
        """The writer of `torch.save`, which opens a file by C++: here it says so."""
        if isinstance(file, str):
            sys.audit("open", file, "wb", os.O_WRONLY | os.O_TRUNC)
        return real(file, *args)

    def _heard(self, event: str, args: tuple) -> None:
        if event not in CHANGES or isinstance(args[0], int):  # a file that is open
            return
        path = Path(os.path.abspath(os.fsdecode(args[0])))
        writes = event != "open" or args[2] & (os.O_WRONLY | os.O_RDWR)
        if not (writes and self.folder in path.parents):
            return
        if self.steps and threading.get_native_id() != self._trains:
            time.sleep(0.2)
        self.keep()
        if event == "open":
            self.writing = path
            emptied = args[2] & os.O_TRUNC or not path.exists()
            self._held = b"" if emptied else path.read_bytes()

    def _copy(self, folder: Path) -> Path:
        copy = shutil.copytree(folder, self.home / f"{dist.get_rank()}-{len(self.kept)}")
        self.kept.append((self.done, copy))
        return copy


def train(
    answer: Callable, start: Path | None, kills: Kills, steps: Collection[int] = ()
) -> tuple[list[int], list]:
    """Call the answer with a copy of `start`; the number of each step's batch, weights after it."""
    rank = dist.get_rank()
    folder = Path(everyones(tempfile.mkdtemp(dir=kills.home))[0])
    if start and rank == 0:
        shutil.copytree(start, folder, dirs_exist_ok=True)
    dist.barrier()
    kills.folder = folder
    kills.steps = steps
    kills.done = 0
    kills.writing = None

    torch.manual_seed(100 + rank)
    # With this seed no step from 11 to 14 has the least loss so far, on either rank.
    rows = torch.rand(30, 6, generator=torch.Generator().manual_seed(10))
    dataset = TensorDataset(rows, torch.arange(30) % 3)
    sampler = DistributedSampler(dataset, seed=1)
    loader = DataLoader(dataset, 4, sampler=sampler)
    model = DDP(
        nn.Sequential(
            nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3)
        )
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    batches = []
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        batches += [rows[mine] for mine in torch.tensor([*sampler]).split(4)]
    sampler.set_epoch(0)
    numbers: list[int] = []
    after: list[torch.Tensor] = []
    trains = False

    def forward(module: nn.Module, inputs: tuple) -> None:
        nonlocal trains
        trains = torch.is_grad_enabled()
        if not trains:
            return
        known = (n for n, batch in enumerate(batches) if torch.equal(batch, inputs[0]))
        numbers.append(next(known, -1))
        if len(numbers) == 1 and len({*everyones(numbers[0])}) > 1:
            raise RuntimeError(f"the ranks go on with different steps: {everyones(numbers[0])}")
        if rank == 0 or kills.writing:
            kills.keep()

    def stepped(*_: Any) -> None:
        nonlocal trains
        if not trains:  # get_state_dict makes an empty step
            return
        state = model.state_dict().items()  # each rank has running statistics of its own
        shared = [v.detach().flatten().double() for name, v in state if "running" not in name]
        after.append(torch.cat(shared))
        kills.done = numbers[-1] + 1
        trains = False
        if kills.done in steps:
            time.sleep(0.02 * rank)  # another rank may be ahead

    model.module[0].register_forward_pre_hook(forward)  # which is always called by position
    optimizer.register_step_post_hook(stepped)
    writer = functools.partial(kills.writer, torch._C.PyTorchFileWriter)
    number = os.getpid() + folder.stat().st_ino  # another one after each start
    with (
        mock.patch("torch._C.PyTorchFileWriter", writer),
        mock.patch("os.getpid", return_value=number),
    ):
        answer(model, optimizer, sampler, loader, EPOCHS, folder)
    dist.barrier()  # rank 0 may still write
    if rank == 0:
        kills.keep()
    kills.steps = ()
    return numbers, after


def survive(model, optimizer, sampler, loader, epochs, folder):
    rank, last = dist.get_rank(), folder / "last.pt"
    done = 0
    random = None
    if last.exists():
        saved = torch.load(last, map_location="cpu")
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        done, random = saved["done"], saved["random"][rank]
        torch.set_rng_state(random)
    for epoch in range(done // len(loader), epochs):
        sampler.set_epoch(epoch)
        for step, (x, y) in enumerate(loader, start=epoch * len(loader)):
            if step < done:
                torch.set_rng_state(random)  # a loader that starts draws a number
                continue
            loss = cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            everyones = [None] * dist.get_world_size()
            dist.all_gather_object(everyones, torch.get_rng_state())
            if rank == 0:
                state = {
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "done": step + 1,
                }
                torch.save(state | {"random": everyones}, last.with_suffix(".new"))
                os.replace(last.with_suffix(".new"), last)


def restored_late(model, optimizer, sampler, loader, epochs, folder):
    last = folder / "last.pt"
    random = torch.load(last)["random"][dist.get_rank()] if last.exists() else None

    def restore(*_: Any) -> None:
        hook.remove()
        if random is not None:
            torch.set_rng_state(random)

    hook = model.register_forward_pre_hook(restore)
    survive(model, optimizer, sampler, loader, epochs, folder)


def once_for_each_state() -> Callable:
    return functools.lru_cache(torch.set_rng_state)


@exercise(
    survive,
    ranks=(2,),
    seconds=60.0,
    tol=1e-6,
    launch=on_cpus,
    mistakes={
        "the random numbers, for dropout, are not restored": patched(
            survive, "torch.set_rng_state"
        ),
        "a loader that starts draws a random number: restore them once more after the batches "
        "that are skipped": patched(
            survive, "torch.set_rng_state", new_callable=once_for_each_state
        ),
        "after a whole epoch the random numbers are restored too late: the loader of the next one "
        "draws a number first, so restore them before it starts": restored_late,
        "the optimizer's moments are not restored": patched(
            survive, "torch.optim.Optimizer.load_state_dict"
        ),
    },
)
def _(answer):
    start = None
    count = 0
    # What an answer keeps in variables is lost at a kill: each start has a new one.
    new = functools.partial(unpack, *pack(answer, "the answer cannot be started again"))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as own:
        kills = Kills(Path(everyones(own)[0]))
        for steps in ((0, 1, EACH), (EACH + 3, 14, EPOCHS * EACH)):
            numbers, after = train(new(), start, kills, steps)
            if start is None:
                yield "nobody kills it: the batches, by their numbers in the loop", numbers
                yield "nobody kills it: the weights after each step", torch.stack(after)
                loops = after
            states = [state for kept in everyones(kills.kept) for state in kept]
            for done in steps:
                folders = [folder for at, folder in states if at == done]
                again = [train(new(), folder, kills) for folder in folders]
                count += len(again)
                begun = [numbers[0] if numbers else done for numbers, _ in again]
                earliest = max(range(len(again)), key=lambda i: (-begun[i], i))
                start = folders[earliest]  # of these the last one, where half a file may be left
                moment = "in a step, in a write (which leaves half a file) or after it"
                where = f"killed after {done} of {len(loops)} steps, {moment}, and started again"
                others = [
                    numbers
                    for (numbers, _), first in zip(again, begun, strict=True)
                    if numbers != [*range(first, len(loops))]
                ]
                words = "times that it does not take the loop's batches to the end"
                yield f"{where}: {words}", len(others)
                yield f"{where}: steps that it does twice", AtMost(done - min(begun), 3)
                off = [
                    (weights - loops[n]).abs().max()
                    for run in again
                    for n, weights in zip(*run, strict=True)
                ]
                yield f"{where}: how far its weights get from the loop's", max(off, default=0)
    yield (
        "",
        f"Started again from what {count} kills would leave, it always has the weights of the "
        "loop.",
    )
