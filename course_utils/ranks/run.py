"""What a launch gives back."""

from dataclasses import dataclass, field
from typing import NoReturn

from ..errors import CourseError
from ..style import plural
from ..timeline import Timeline


@dataclass
class Run:
    """What a launch gave back.

    Attributes:
        ranks: how many.
        device: the kind that each had: "cpu", "cuda", …
        backend: of the process group that `launch` has joined; None: it has joined none.
        results: what the function returned, by rank; what a rank changed of its arguments stayed
            there.
        metrics: the records of `report`, in the order of time: `rank`, `time` (s since the launch),
            `step` and the values.
        output: what each rank printed.
        timeline: the spans of all ranks, in s since an arbitrary moment that all share.
        seconds: from the launch until everything was ended.
        unit: "rank", or, from `xla.launch`, "core", or "program" with SPMD.
    """

    ranks: int
    device: str
    backend: str | None
    results: list = field(default_factory=list)
    metrics: list[dict] = field(default_factory=list)
    output: list[str] = field(default_factory=list)
    timeline: Timeline = field(default_factory=lambda: Timeline([]))
    seconds: float = 0.0
    unit: str = "rank"

    def column(self, name: str, *, rank: int = 0) -> list[float]:
        """The values that one rank reported under `name`, in order.

        Raises:
            CourseError: no rank reported it, or there is no such rank; the message says what there
                is.
        """
        if rank not in range(self.ranks):
            raise CourseError(f"rank={rank!r}: there are {self.units}, counted from 0.")
        names = set().union(*self.metrics)
        if name not in names:
            there = ", ".join(sorted(names)) or "nothing"
            raise CourseError(f"no {self.unit} reported {name!r}; there is: {there}.")
        return [
            record[name] for record in self.metrics if record["rank"] == rank and name in record
        ]

    def __getitem__(self, _: object) -> NoReturn:  # loops and `a, b = run` ask for it, too
        raise TypeError("a Run is no list: what the function returned, by rank, is its .results")

    def __repr__(self) -> str:
        backend = self.backend or "init_group=False"
        return f"Run({self.units} on {self.device}, {backend}, {self.seconds:.2f} s)"

    @property
    def units(self) -> str:
        """`4 ranks`, `1 core`."""
        return plural(self.ranks, self.unit)

    def label(self, rank: int) -> str:
        """`rank 2 of 4`."""
        if self.unit == "program":
            return "the SPMD program"
        return f"{self.unit} {rank} of {self.ranks}"
