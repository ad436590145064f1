"""What a plan is made of: the sizes of a model, of a cluster and of the plan itself. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ..ground.errors import CourseError

MOST_DEVICES = 16_384


class Precision(NamedTuple):
    """Bytes of one number of each kind; optimizer: all that Adam keeps for one parameter."""

    parameter: int
    gradient: int
    optimizer: int
    activation: int


MIXED = Precision(2, 2, 12, 2)
"""Half precision, with Adam's two moments and a master copy in float32: 16 bytes a parameter (ZeRO, section 3.1)."""
FLOAT32 = Precision(4, 4, 8, 4)
"""Everything in float32, as plain torch does it: 16 bytes a parameter, too."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """A GPT by its sizes. `fused`: attention keeps no scores and there is no dropout, as in `models.GPT`."""

    layers: int
    width: int
    heads: int
    vocabulary: int
    context: int
    tied: bool = True  # the output layer is the token embedding
    split_vocabulary: bool = True  # tensor parallelism splits the embedding and the output layer, too
    fused: bool = True

    def __post_init__(self) -> None:
        _whole(self, "layers", "width", "heads", "vocabulary", "context")
        if self.width % self.heads:
            raise CourseError(f"Model(width={self.width}, heads={self.heads}): the width is a multiple of the heads.")

    @property
    def parameters(self) -> int:
        return sum(self.stage(i, 2, 1) for i in (0, 1)) - self.tied * self.width * self.vocabulary

    def layer(self, tp: int = 1) -> float:
        """Parameters of one layer on one of `tp` ranks: norms and the biases of row-split layers are on all."""
        return (12 * self.width**2 + 7 * self.width) / tp + 6 * self.width

    def stage(self, i: int, pp: int, tp: int) -> float:
        """Parameters on one rank of stage `i`; the last of several stages has a copy of tied embeddings."""
        table = self.width * self.vocabulary / (tp if self.split_vocabulary else 1)
        first = table + self.context * self.width
        last = 2 * self.width + (0 if self.tied and pp == 1 else table) + (0 if self.tied else self.vocabulary)
        return self.layers * self.layer(tp) / pp + (i == 0) * first + (i == pp - 1) * last

    def operations(self, batch: int, *, recompute: bool = False) -> float:
        """Multiplications and additions of one step on `batch` sequences, backward included (Megatron, eq. 3)."""
        h, s = self.width, self.context
        passes = 4 if recompute else 3  # backward is two forwards
        return batch * s * (passes * self.layers * (24 * h * h + 4 * s * h) + 6 * h * self.vocabulary)

    def activations(self, micro: int, tp: int, each: int) -> float:
        """Bytes that one layer keeps for backward: 4 + 12/tp numbers of `each` bytes per token and unit of width."""
        scores = 0 if self.fused else 2 + 5 * self.heads * self.context / (self.width * tp)
        return self.context * micro * self.width * (each * (4 + 12 / tp) + scores)


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Equal devices: what one has and does, and its links inside a node (near) and between nodes (far)."""

    memory: float  # bytes a device
    flops: float  # operations a second of a device's arithmetic, while nobody talks and nobody waits
    bandwidth: float  # bytes/s a device sends to its neighbour
    latency: float = 5e-6  # s a message
    node: int = MOST_DEVICES  # devices that share near links
    far_bandwidth: float | None = None
    far_latency: float | None = None

    def __post_init__(self) -> None:
        for name in ("memory", "flops", "bandwidth", "latency", "far_bandwidth", "far_latency"):
            value = getattr(self, name)
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if value is not None and not (number and value >= 0 and (value or "latency" in name)):
                raise CourseError(f"Cluster({name}={value!r}): {name} is a number above 0, of bytes, operations a "
                                  "second, bytes a second or seconds, such as 80e9.")  # fmt: skip
        _whole(self, "node")

    def link(self, span: int) -> tuple[float, float]:
        """Seconds a message and seconds a byte in a group that spreads over `span` devices."""
        if span <= self.node:
            return self.latency, 1 / self.bandwidth
        return self.far_latency or self.latency, 1 / (self.far_bandwidth or self.bandwidth)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Who holds what: dp replicas of a model split into tp parts of each layer and pp stages."""

    dp: int = 1
    tp: int = 1
    pp: int = 1
    zero: int = 0  # split over the replicas: 1 optimizer states, 2 gradients too, 3 parameters too
    micro: int = 1  # sequences in a micro-batch
    chunks: int = 1  # of layers on a stage; 1 is 1F1B, more is interleaved
    recompute: bool = False  # keep only each layer's input, compute the rest again in backward

    def __post_init__(self) -> None:
        _whole(self, "dp", "tp", "pp", "micro", "chunks")
        if self.zero not in (0, 1, 2, 3):
            raise CourseError(f"Plan(zero={self.zero!r}): ZeRO has the stages 1, 2 and 3; 0 is plain data parallelism.")
        if self.devices > MOST_DEVICES:
            raise CourseError(f"{self} takes {self.devices:,} devices; the planner goes up to {MOST_DEVICES:,}.")

    @property
    def devices(self) -> int:
        return self.dp * self.tp * self.pp

    def __str__(self) -> str:
        more = f", {self.chunks} chunks" * (self.chunks > 1) + ", recompute" * self.recompute
        return f"dp {self.dp}, tp {self.tp}, pp {self.pp}, ZeRO {self.zero}, micro-batch {self.micro}{more}"


def size(count: float) -> str:
    """Bytes in words, with decimal units as in the papers: 31_400_000_000 -> "31.4 GB"."""
    for unit, worth in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= 0.9995 * worth:
            return f"{count / worth:.3g} {unit}" if count < 999.5 * worth else f"{count / worth:,.0f} {unit}"
    return f"{count:.0f} B"


def _whole(owner: object, *names: str) -> None:
    for name in names:
        value = getattr(owner, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise CourseError(f"{type(owner).__name__}({name}={value!r}): {name} is a whole number from 1.")


def duration(seconds: float) -> str:
    """Seconds in words: 0.0124 -> "12.4 ms"."""
    if seconds < 1:
        return f"{1000 * seconds:.3g} ms"
    return f"{seconds:.3g} s" if seconds < 100 else f"{seconds:,.0f} s"
