"""What a launch gives back, and what its ranks print meanwhile."""

import re
from collections import defaultdict
from dataclasses import dataclass, field

from ..style import plural
from ..timeline import Timeline

MOST_OUTPUT = 64 << 20  # bytes kept of what a rank prints
MOST_LINES = 2_000  # printed lines a launch shows; a notebook that is sent more becomes unusable
HIDDEN = re.compile(
    rb"^\[Gloo\] Rank \d+ is connected"  # torch 2.9 of every process group
    rb"|rendezvous\.cc"  # XLA's CPU client of a core that is late
    rb"|<TorchTpu/(ApiStage|Performance)/|^WARNING: All log messages b"  # TorchTPU of itself
    rb"|Time stats are currently only collected for CPU and CUDA"  # DDP on other devices
    rb"|TensorBody\.h:\d+\] Warning: The \.grad attribute"  # TorchTPU of its views
)


@dataclass
class Run:
    """What a launch gave back."""

    ranks: int
    device: str
    backend: str | None
    results: list = field(default_factory=list)  # what the function returned, by rank
    metrics: list[dict] = field(default_factory=list)  # of `report`: rank, time (s), step, values
    output: list[str] = field(default_factory=list)  # what each rank printed
    timeline: Timeline = field(default_factory=lambda: Timeline([]))
    seconds: float = 0.0
    unit: str = "rank"  # or, from `xla.launch`, "core", or "program" with SPMD

    def column(self, name: str, *, rank: int = 0) -> list[float]:
        """The values that one rank reported under `name`, in order."""
        return [
            record[name] for record in self.metrics if record["rank"] == rank and name in record
        ]

    def __repr__(self) -> str:
        backend = self.backend or "init_group=False"
        return f"Run({self.units} on {self.device}, {backend}, {self.seconds:.2f} s)"

    @property
    def units(self) -> str:
        """`4 ranks`, `1 core`."""
        return plural(self.ranks, self.unit)


class Output:
    """What the ranks of one launch print, kept by rank; with `show` the cell prints it, too."""

    def __init__(self, unit: str, *, show: bool) -> None:
        self.unit = unit
        self.room = MOST_LINES if show else 0
        self.printed: defaultdict[int | None, bytearray] = defaultdict(bytearray)
        self.rest: defaultdict[int | None, bytes] = defaultdict(bytes)  # of an unfinished line

    def add(self, rank: int | None, data: bytes) -> None:
        """Take what a rank printed; None: cores that share a process, which tells not who."""
        *lines, self.rest[rank] = (self.rest[rank] + data).split(b"\n")
        lines = [line for line in lines if not HIDDEN.search(line)]
        if len(self.printed[rank]) < MOST_OUTPUT:
            self.printed[rank] += b"".join(line + b"\n" for line in lines)

        if lines and self.room > 0:
            label = self._label(rank)
            shown = [line.decode(errors="replace")[:1000] for line in lines[: self.room]]
            print("\n".join(label + line for line in shown))
            self.room -= len(lines)
            if self.room < 0:
                print(f"… more than {MOST_LINES} lines: the rest is in run.output[rank], not shown")

    def _label(self, rank: int | None) -> str:
        if self.unit == "program":
            return ""
        return f"[{self.unit}s] " if rank is None else f"[{self.unit} {rank}] "

    def texts(self, ranks: int) -> list[str]:
        """All that each rank printed, when no more will come."""
        for rank in [rank for rank, rest in self.rest.items() if rest]:
            self.add(rank, b"\n")
        return [self.printed[rank].decode(errors="replace") for rank in range(ranks)]
