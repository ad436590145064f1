"""What a launch gives back."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..timeline import Timeline


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
    name: str = ""  # of the function
    unit: str = "rank"  # what there are `ranks` of: "rank"; from `xla.launch` "core", or "program" with SPMD

    def column(self, name: str, *, rank: int = 0) -> list[float]:
        """The values that one rank reported under `name`, in order."""
        return [record[name] for record in self.metrics if record["rank"] == rank and name in record]

    def __repr__(self) -> str:
        group = self.backend or "no process group"
        units = f"{self.ranks} {self.unit}{'s' * (self.ranks != 1)}"
        return f"Run({units} on {self.device}, {group}, {self.seconds:.2f} s)"
