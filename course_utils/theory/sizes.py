"""What a plan is made of: the sizes of a model, of a cluster and of the plan itself. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ..errors import CourseError

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
    """A GPT by its sizes. `fused`: attention keeps no scores and there is no dropout, as in `models.GPT`.

    experts, chosen: each layer has that many MLPs and a router that sends every token to `chosen` of them.
    """

    layers: int
    width: int
    heads: int
    vocabulary: int
    context: int
    tied: bool = True  # the output layer is the token embedding
    split_vocabulary: bool = True  # tensor parallelism splits the embedding and the output layer, too
    fused: bool = True
    experts: int = 1
    chosen: int = 1

    def __post_init__(self) -> None:
        _whole(self, "layers", "width", "heads", "vocabulary", "context", "experts", "chosen")
        if self.width % self.heads:
            raise CourseError(f"Model(width={self.width}, heads={self.heads}): the width is a multiple of the heads.")
        if self.chosen > self.experts:
            raise CourseError(f"Model(experts={self.experts}, chosen={self.chosen}): a token goes to at most all.")

    @property
    def parameters(self) -> int:
        whole = sum(self.stage(i, 2, 1) for i in (0, 1)) - self.tied * self.width * self.vocabulary
        return whole + self.layers * self.routed()

    def layer(self, tp: int = 1) -> float:
        """Parameters of one layer on one of `tp` ranks, all but routed experts; norms and some biases are on all."""
        h = self.width
        if self.experts > 1:  # attention, norms and the router
            return (4 * h**2 + 3 * h) / tp + 5 * h + self.experts * h
        return (12 * h**2 + 7 * h) / tp + 6 * h

    def routed(self, tp: int = 1, ep: int = 1) -> float:
        """Parameters of the experts of one layer on one rank; 0 where there is one MLP for all tokens."""
        return (self.experts > 1) * self.experts / ep * ((8 * self.width**2 + 4 * self.width) / tp + self.width)

    def stage(self, i: int, pp: int, tp: int) -> float:
        """Parameters on one rank of stage `i`, but routed experts; the last stage has a copy of tied embeddings."""
        table = self.width * self.vocabulary / (tp if self.split_vocabulary else 1)
        first = table + self.context * self.width
        last = 2 * self.width + (0 if self.tied and pp == 1 else table) + (0 if self.tied else self.vocabulary)
        return self.layers * self.layer(tp) / pp + (i == 0) * first + (i == pp - 1) * last

    def operations(self, batch: int, *, recompute: bool | str = False) -> float:
        """Multiplications and additions of one step on `batch` sequences, backward included (Megatron, eq. 3).

        recompute: as in a `Plan`; "attention" adds a forward of its two products, unless they are fused (Memory,
        appendix A, in words; its equation 8 counts them three times).
        """
        h, s = self.width, self.context
        attention = 4 * s * h
        layer = 8 * h * h + attention + 16 * h * h * self.chosen
        passes = 4 if recompute is True else 3  # backward is two forwards
        again = attention if recompute == "attention" and not self.fused else 0
        return batch * s * (self.layers * (passes * layer + again) + 6 * h * self.vocabulary)

    def activations(
        self, micro: int, tp: int, each: int, *, cp: int = 1, sequence: bool = False, recompute: bool | str = False
    ) -> float:
        """Bytes that one layer keeps for backward: 4 + 12/tp numbers of `each` bytes per token and unit of width.

        The 4, norms' and linear layers' inputs, are split too where tensor parts split the `sequence` (Memory, eq. 4).
        """
        whole, k = tp if sequence else 1, self.chosen
        numbers = (3 + k + k * (self.experts > 1)) / whole + (4 + 8 * k) / tp
        masks = 0 if self.fused else 2 / whole
        scores = 0 if self.fused or recompute == "attention" else 5 * self.heads * self.context / (self.width * tp)
        return self.context / cp * micro * self.width * (each * numbers + masks + scores)


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Equal devices: what one has and does, and its links inside a node (near) and between nodes (far)."""

    memory: float  # bytes a device
    flops: float  # operations a second of a device's arithmetic, while nobody talks and nobody waits
    bandwidth: float  # bytes/s a device sends to its neighbour
    latency: float = 5e-6  # s a message
    node: int = MOST_DEVICES  # devices that share near links
    far_bandwidth: float | None = None  # bytes/s of each device's own link to other nodes
    far_latency: float | None = None
    overlap: bool = True  # gradients, ZeRO's weights and context parallelism's ring travel while devices compute

    def __post_init__(self) -> None:
        for name in ("memory", "flops", "bandwidth", "latency", "far_bandwidth", "far_latency"):
            value = getattr(self, name)
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if value is not None and not (number and value >= 0 and (value or "latency" in name)):
                raise CourseError(f"Cluster({name}={value!r}): {name} is a number above 0, of bytes, operations a "
                                  "second, bytes a second or seconds, such as 80e9.")
        _whole(self, "node")

    @property
    def far(self) -> tuple[float, float]:
        """Seconds a message and seconds a byte between nodes."""
        return self.far_latency or self.latency, 1 / (self.far_bandwidth or self.bandwidth)

    def ring(self, ranks: int, apart: int = 1) -> tuple[float, float]:
        """Seconds a turn and seconds a byte in a ring of ranks that are `apart` devices from each other.

        As NCCL does: only the turns that cross to another node take a far message's time, and a ring with several
        devices in each node uses the far links of them all.
        """
        inside = max(1, min(ranks, self.node // apart))
        if inside >= ranks:
            return self.latency, 1 / self.bandwidth
        late, byte = self.far
        crossing = (ranks / inside - 1) / (ranks - 1)
        return self.latency + crossing * (late - self.latency), max(1 / self.bandwidth, byte / inside)

    def exchange(self, ranks: int, apart: int = 1) -> tuple[float, float]:
        """Seconds a message and seconds a byte of an all-to-all: each device sends what leaves its node by itself."""
        inside = max(1, min(ranks, self.node // apart))
        late, byte = self.far
        share = (ranks - inside) / max(1, ranks - 1)
        return max(self.latency, late * (share > 0)), (1 - share) / self.bandwidth + share * byte


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Who holds what: dp replicas of a model split into tp parts of each layer, pp stages and `context` of a sequence.

    Ranks run along `tp` first, then `context`, then `dp`, then `pp`. `experts`: how many replicas share out the
    experts of a layer; they are as many ranks of `dp`, not further ones.
    """

    dp: int = 1
    tp: int = 1
    pp: int = 1
    zero: int = 0  # split over the replicas: 1 optimizer states, 2 gradients too, 3 parameters too
    micro: int = 1  # sequences in a micro-batch
    chunks: int = 1  # of layers on a stage; 1 is 1F1B, more is interleaved
    recompute: bool | str = False  # True: keep only each layer's input; "attention": all but its scores
    sequence: bool = False  # tensor parts split the sequence where they do not split the layer
    context: int = 1  # ranks that share out each sequence, in a ring
    experts: int = 1

    def __post_init__(self) -> None:
        _whole(self, "dp", "tp", "pp", "micro", "chunks", "context", "experts")
        if self.zero not in (0, 1, 2, 3):
            raise CourseError(f"Plan(zero={self.zero!r}): ZeRO has the stages 1, 2 and 3; 0 is plain data parallelism.")
        if self.recompute not in (False, True, "attention"):
            raise CourseError(f"Plan(recompute={self.recompute!r}): recompute is False, True or \"attention\".")
        if self.devices > MOST_DEVICES:
            raise CourseError(f"{self} takes {self.devices:,} devices; the planner goes up to {MOST_DEVICES:,}.")
        if self.dp % self.experts:
            raise CourseError(f"Plan(dp={self.dp}, experts={self.experts}): experts are shared out among replicas, so "
                              "`experts` divides `dp`.")

    @property
    def devices(self) -> int:
        return self.dp * self.tp * self.pp * self.context

    def __str__(self) -> str:
        more = [f"context {self.context}"] * (self.context > 1) + [f"experts {self.experts}"] * (self.experts > 1)
        more += [f"{self.chunks} chunks"] * (self.chunks > 1) + ["sequence"] * self.sequence
        more += [{True: "recompute", "attention": "recompute attention"}[self.recompute]] if self.recompute else []
        first = f"dp {self.dp}, tp {self.tp}, pp {self.pp}, ZeRO {self.zero}, micro-batch {self.micro}"
        return ", ".join([first, *more])


def _whole(owner: object, *names: str) -> None:
    for name in names:
        value = getattr(owner, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise CourseError(f"{type(owner).__name__}({name}={value!r}): {name} is a whole number from 1.")
