"""Run a function from a notebook cell on several ranks, and get results, metrics, output and errors back.

The ranks are real processes with a real process group; `_rank.py` is what happens inside one.
"""

from __future__ import annotations

import functools
import linecache
import os
import pickle
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from . import _failures, _rank
from ._arguments import check_arguments, packed
from ._processes import Ranks, warm_up
from .errors import RankError
from .timeline import Span, Timeline

if TYPE_CHECKING:
    from .live import LivePlot

__all__ = ["Run", "launch", "warm_up"]

MOST_LINES = 2_000  # printed lines a launch shows; a notebook that is sent more becomes unusable
DRAIN = 0.1  # seconds in which the other ranks' news may arrive before the first cause is named


@dataclass
class Run:
    """What a launch gave back."""

    ranks: int
    device: str
    backend: str | None
    results: list = field(default_factory=list)  # what the function returned, by rank
    metrics: list[dict] = field(default_factory=list)  # what `report` sent: rank, time (s), step, and the values
    output: list[str] = field(default_factory=list)  # what each rank printed
    timeline: Timeline = field(default_factory=lambda: Timeline([]))
    seconds: float = 0.0

    def column(self, name: str, *, rank: int = 0) -> list[float]:
        """The values that one rank reported under `name`, in order."""
        return [record[name] for record in self.metrics if record["rank"] == rank and name in record]

    def __repr__(self) -> str:
        group = self.backend or "no process group"
        return f"Run({self.ranks} ranks on {self.device}, {group}, {self.seconds:.2f} s)"


def launch(
    function: Callable,
    *args: Any,
    ranks: int | None = None,
    device: str | None = None,
    backend: str | None = None,
    live: LivePlot | None = None,
    time_limit: float | None = 300.0,
    show: bool = True,
    init_group: bool = True,
    **kwargs: Any,
) -> Run:
    """Run `function(*args, **kwargs)` on every rank and wait for all of them.

    Inside, it is ordinary `torch.distributed`: the environment of `torchrun`, the process group initialised,
    `pick()` the rank's device. The same function runs unchanged under `torchrun`.

    Args:
        function: any function, closure or class, defined in a cell or a module; it travels by value.
        ranks: how many processes; by default one an accelerator where there are two or more, else 4.
        device: "cpu", "cuda", "xpu"; by default the accelerators where each rank gets its own, else the CPU.
        backend: "gloo", "nccl", …; by default the one of the device, and gloo where ranks share a GPU.
        live: a `LivePlot` to draw what ranks `report()` while they run.
        time_limit: seconds until everything is ended and the ranks that did not finish are named; None: no limit.
        show: print what ranks print, each line with its rank.
        init_group: False leaves `torch.distributed.init_process_group()` to the function.

    Returns:
        A `Run`: results, metrics, output and timeline.

    Raises:
        LaunchError, DeviceError: nothing was started; the message says what to change.
        RankError: a rank raised, died or never finished; all others were ended.
    """
    placement = check_arguments(
        function, ranks=ranks, device=device, backend=backend, live=live, time_limit=time_limit, init_group=init_group
    )
    payload = packed(function, args, kwargs)
    if placement.note:
        print(placement.note)
    began = time.perf_counter()
    run = Run(placement.ranks, placement.device, placement.backend, [None] * placement.ranks)
    heard = _Heard(run, live, show)
    store = _open_store()
    task = _rank.Task(
        payload=payload,
        cells=_cells(),
        env=dict(os.environ) | placement.env | {"MASTER_PORT": str(store.port)},
        cwd=os.getcwd(),
        device=placement.device,
        backend=placement.backend,
        threads=placement.threads,
        # The limit of the launch is to speak first: it knows all ranks.
        timeout=None if time_limit is None else time_limit + 60,
        began=began,
    )
    memory_kills = _failures.kills_for_memory()
    if live is not None:
        live.open()
    try:
        with Ranks(placement.ranks) as processes:
            processes.start(task)
            failure = heard.until_done(processes, time_limit)
            if failure is None:
                processes.release()
            else:
                message = failure(processes, _failures.kills_for_memory() > memory_kills)
            heard.take(processes.drain())
    finally:
        heard.close(time.perf_counter() - began)
    if failure is not None:
        raise RankError(message.text, rank=message.rank, cause=message.cause, traceback=message.traceback, run=run)
    return run


@dataclass
class _Message:
    rank: int | None
    cause: str
    text: str
    traceback: str = ""


class _Heard:
    """What the ranks said so far, and whether that is the end."""

    def __init__(self, run: Run, live: LivePlot | None, show: bool) -> None:
        self.run, self.live = run, live
        self.done: set[int] = set()
        self.errors: list[tuple] = []  # (time, rank, name, message, frames, traceback)
        self.deaths: list[tuple[int, int | None]] = []
        self.spans: list[Span] = []
        self.printed = [bytearray() for _ in range(run.ranks)]
        self.printer = _Printer(run.ranks) if show else None

    def until_done(self, processes: Ranks, time_limit: float | None) -> Callable | None:
        """Listen until all ranks returned (None) or one failed (a function that says how)."""
        drain_until = None
        deadline = None if time_limit is None else time.perf_counter() + time_limit
        while len(self.done) < self.run.ranks:
            now = time.perf_counter()
            if (self.errors or self.deaths) and drain_until is None:
                drain_until = now + DRAIN
            if drain_until is not None and now >= drain_until:
                return self._death if self.deaths else self._error
            if deadline is not None and now >= deadline:
                return functools.partial(self._too_late, time_limit)
            waits = [end - now for end in (deadline, drain_until) if end is not None]
            if self.live is not None:
                waits.append(self.live.tick())
            self.take(processes.hear(max(0.0, min(waits)) if waits else None))
        return None

    def take(self, news: Any) -> None:
        for rank, kind, value in news:
            if kind == "metrics":
                self.run.metrics += value[0]
                if self.live is not None:
                    for record in value[0]:
                        self.live.add(record)
            elif kind == "output":
                self.printed[rank] += value
                if self.printer:
                    self.printer.show(rank, value)
            elif kind == "spans":
                self.spans += [Span(rank, name, start, end, lane) for name, start, end, lane in value[0]]
            elif kind == "result":
                self.run.results[rank] = pickle.loads(value[0])
                self.done.add(rank)
            elif kind == "error":
                self.errors.append((value[0], rank, *value[1:]))
            elif kind == "died" and rank not in self.done and rank not in {error[1] for error in self.errors}:
                self.deaths.append((rank, value))

    def close(self, seconds: float) -> None:
        run = self.run
        run.seconds = seconds
        run.output = [bytes(data).decode(errors="replace") for data in self.printed]
        run.metrics.sort(key=lambda record: record["time"])
        run.timeline = Timeline(self.spans)
        if self.printer:
            self.printer.close()
        if self.live is not None:
            self.live.close()

    def _unfinished(self, *but: int) -> list[int]:
        return [rank for rank in range(self.run.ranks) if rank not in self.done and rank not in but]

    def _error(self, processes: Ranks, out_of_memory: bool) -> _Message:
        _, rank, name, message, frames, trace = min(self.errors, key=lambda error: error[0])
        return _Message(rank, name, _failures.raised(rank, self.run.ranks, name, message, frames), trace)

    def _death(self, processes: Ranks, out_of_memory: bool) -> _Message:
        rank, exitcode = self.deaths[0]
        cause, text = _failures.died(rank, self.run.ranks, exitcode, out_of_memory=out_of_memory)
        # Peers that lost the connection have left the place where they were; their errors remember it.
        stacks = {r: [frame[:3] for frame in reversed(frames)] for _, r, _, _, frames, _ in self.errors}
        stacks |= processes.where(self._unfinished(rank, *stacks))
        others = _failures.whereabouts(stacks)
        return _Message(rank, cause, "\n".join([text, *(f"meanwhile {line}" for line in others)]))

    def _too_late(self, time_limit: float, processes: Ranks, out_of_memory: bool) -> _Message:
        late = self._unfinished()
        stacks = _failures.whereabouts(processes.where(late))
        text = [f"{_failures.listed(late)} of {self.run.ranks} had not finished after the time limit of {time_limit:g} s"]
        text += stacks
        if self.done:
            text.append(f"{_failures.listed(sorted(self.done))} had returned: a collective needs every rank.")
        text.append("If the work is only slow, pass a larger time_limit (seconds), or None.")
        return _Message(late[0] if len(late) == 1 else None, "TimeLimit", "\n".join(text), "\n".join(stacks))


class _Printer:
    """Print what ranks print, each line labelled, up to `MOST_LINES`."""

    def __init__(self, ranks: int) -> None:
        self.rest = [b""] * ranks
        self.lines = 0

    def show(self, rank: int, data: bytes) -> None:
        *lines, self.rest[rank] = (self.rest[rank] + data).split(b"\n")
        room = MOST_LINES - self.lines
        if room <= 0 or not lines:
            return
        self.lines += len(lines)
        shown = [f"[rank {rank}] {line.decode(errors='replace')[:1000]}" for line in lines[:room]]
        if len(lines) > room:
            shown.append(f"… more than {MOST_LINES} lines: the rest is in run.output[rank], not shown")
        print("\n".join(shown))

    def close(self) -> None:
        for rank, rest in enumerate(self.rest):
            if rest:
                self.show(rank, b"\n")


def _open_store() -> Any:
    """The ranks' meeting point, in this process; a socket bound to loopback, where torch's own listens everywhere."""
    import socket

    import torch.distributed as dist

    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    return dist.TCPStore(
        "127.0.0.1", port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
    )


def _cells() -> dict:
    """The notebook's cells in `linecache`, without the hook by which IPython keeps them fresh."""
    return {name: entry for name, entry in linecache.cache.items() if len(entry) == 4 and entry[1] is None}
