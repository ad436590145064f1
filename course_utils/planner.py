"""What a plan costs before it runs: memory, bytes sent and seconds a step of a GPT on 1 to 16,384 devices.

ZeRO       Rajbhandari et al. 2020, arXiv:1910.02054: bytes of states, volumes 2, 2, 2 and 3 times the parameters
Megatron   Narayanan et al. 2021, arXiv:2104.04473: parameters, operations, bubble (p-1)/m, volumes 8bsh(t-1)/t, bsh
Memory     Korthikanti et al. 2022, arXiv:2205.05198: activations, but for dropout's masks and attention's scores
DDP, FSDP  Li et al. 2020, arXiv:2006.15704, and Zhao et al. 2023, arXiv:2304.11277: which messages hide
Links      NCCL, src/graph/tuning.cc: 2(p-1) turns, of which 2(nodes-1) are far; a ring uses all of a node's links

What hides: gradients behind backward (of the last micro-batch; with ZeRO 2 and 3 of all), weights that ZeRO gathers
behind forward (of the first micro-batch; ZeRO 3's behind every forward and backward), but for one layer. What is left
out, so that you can follow every number: tensor and pipeline messages hide behind nothing; rings are plain rings, no
trees; layers are equally slow, and small matrices as fast as large ones, so that micro-batch 1 looks best and many
tensor parts too good; no memory is lost to fragments, buckets and workspaces; optimizer, data and split losses take no
time. `tests/test_planner.py` holds all of it against the papers.
"""

from dataclasses import dataclass, replace
from itertools import product
from typing import NamedTuple

from .errors import CourseError
from .style import duration, size


class Precision(NamedTuple):
    """Bytes of one number of each kind; optimizer: all that Adam keeps for one parameter."""

    parameter: int
    gradient: int
    optimizer: int
    activation: int


MIXED = Precision(
    2, 2, 12, 2
)  # half precision; Adam's two moments and a master copy in float32 (ZeRO, section 3.1)


@dataclass(frozen=True, kw_only=True)
class Model:
    """A GPT by its sizes, without dropout."""

    layers: int
    width: int
    heads: int
    vocabulary: int
    context: int
    tied: bool = True  # the output layer is the token embedding
    split_vocabulary: bool = (
        True  # tensor parallelism splits the embedding and the output layer, too
    )
    fused: bool = True  # attention writes no scores to memory, as in FlashAttention

    @property
    def parameters(self) -> float:
        return self.stage(0, 2, 1) + self.stage(1, 2, 1) - self.tied * self.width * self.vocabulary

    def layer(self, tp: int = 1) -> float:
        """Parameters of one layer on one of `tp` ranks; norms and some biases are on all."""
        return (12 * self.width**2 + 7 * self.width) / tp + 6 * self.width

    def stage(self, i: int, pp: int, tp: int) -> float:
        """Parameters on one rank of stage `i`; the last stage has a copy of tied embeddings."""
        table = self.width * self.vocabulary / (tp if self.split_vocabulary else 1)
        first = table + self.context * self.width
        last = (
            2 * self.width
            + (0 if self.tied and pp == 1 else table)
            + (0 if self.tied else self.vocabulary)
        )
        return self.layers * self.layer(tp) / pp + (i == 0) * first + (i == pp - 1) * last

    def operations(self, batch: int, *, recompute: bool = False) -> float:
        """Multiplications and additions of one step on `batch` sequences, backward included (Megatron, eq. 3)."""
        passes = 4 if recompute else 3  # backward is two forwards
        layer = 24 * self.width**2 + 4 * self.context * self.width
        return (
            batch * self.context * (self.layers * passes * layer + 6 * self.width * self.vocabulary)
        )

    def activations(self, micro: int, tp: int, each: int, *, sequence: bool = False) -> float:
        """Bytes that one layer keeps for backward, in numbers of `each` bytes (Memory, equations 2 and 4)."""
        # By token and unit of width: 4 in inputs of norms and linear layers, 12 in what tensor parts split.
        return self.context * micro * self.width * each * (4 / (tp if sequence else 1) + 12 / tp)

    def moved(self, plan: "Plan", batch: int, each: int) -> float:
        """Bytes a device moves to and from its memory in a step: what a layer keeps, and scores, written and read."""
        kept = self.activations(1, plan.tp, each, sequence=plan.sequence)
        if not self.fused:  # softmax, its dropout and that one's mask (Memory, equation 1)
            kept += self.heads / plan.tp * self.context**2 * (2 * each + 1)
        passes = 4 if plan.recompute else 3
        return 2 * passes * kept * self.layers / plan.pp * batch / plan.dp


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Equal devices: what one has and does, and its links inside a node (near) and between nodes (far)."""

    memory: float  # bytes a device
    flops: (
        float  # operations a second of a device's arithmetic, while nobody talks and nobody waits
    )
    bandwidth: float  # bytes/s a device sends to its neighbour
    memory_bandwidth: float = float("inf")  # bytes/s between a device and its memory
    latency: float = 5e-6  # s a message
    node: int = 16_384  # devices that share near links
    far_bandwidth: float | None = None  # bytes/s of each device's own link to other nodes
    far_latency: float | None = None

    @property
    def far(self) -> tuple[float, float]:
        """Seconds a message and seconds a byte between nodes."""
        return self.far_latency or self.latency, 1 / (self.far_bandwidth or self.bandwidth)

    def ring(self, ranks: int, apart: int = 1) -> tuple[float, float]:
        """Seconds a turn and seconds a byte in a ring of ranks that are `apart` devices from each other, as NCCL's:
        only turns to another node take a far message's time, and a ring uses all the far links of its node."""
        inside = max(1, min(ranks, self.node // apart))
        if inside >= ranks:
            return self.latency, 1 / self.bandwidth
        late, byte = self.far
        crossing = (ranks / inside - 1) / (ranks - 1)
        return self.latency + crossing * (late - self.latency), max(
            1 / self.bandwidth, byte / inside
        )


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Who holds what: dp replicas of a model in tp parts of each layer and pp stages; ranks run along tp, dp, pp."""

    dp: int = 1
    tp: int = 1
    pp: int = 1
    zero: int = 0  # split over the replicas: 1 optimizer states, 2 gradients too, 3 parameters too
    micro: int = 1  # sequences in a micro-batch
    chunks: int = 1  # of layers on a stage; 1 is 1F1B, more is interleaved
    sequence: bool = False  # tensor parts split the sequence where they do not split the layer
    recompute: bool = False  # keep only each layer's input, and compute the rest again in backward

    @property
    def devices(self) -> int:
        return self.dp * self.tp * self.pp

    def __str__(self) -> str:
        more = (
            f", {self.chunks} chunks" * (self.chunks > 1),
            ", sequence" * self.sequence,
            ", recompute" * self.recompute,
        )
        return (
            f"dp {self.dp}, tp {self.tp}, pp {self.pp}, ZeRO {self.zero}, micro-batch {self.micro}"
            + "".join(more)
        )


@dataclass(frozen=True)
class Cost:
    """What one step of a plan takes on the device that has most to carry."""

    plan: Plan
    memory: dict[str, float]  # bytes: parameters, gradients, optimizer, activations, gathered
    sent: dict[str, float]  # bytes, by kind of parallelism: data, tensor, pipeline
    seconds: dict[
        str, float
    ]  # compute, bubble and what of the messages is not hidden: one after the other
    hidden: float  # seconds of messages that travel while the device computes
    limit: float  # bytes a device has

    @property
    def total(self) -> float:
        return sum(self.memory.values())

    @property
    def step(self) -> float:
        return sum(self.seconds.values())

    @property
    def fits(self) -> bool:
        return self.total <= self.limit

    def __repr__(self) -> str:
        fit, sent = "fits" if self.fits else "does not fit", sum(self.sent.values())
        return f"{self.plan}: {size(self.total)} ({fit}), sends {size(sent)}, {duration(self.step)} a step"


def states(
    parameters: float, *, dp: int = 1, zero: int = 0, precision: Precision = MIXED
) -> dict[str, float]:
    """Bytes of parameters, gradients and optimizer states on one of `dp` replicas (ZeRO, figure 1)."""
    each = zip(("parameters", "gradients", "optimizer"), precision[:3], (3, 2, 1), strict=True)
    return {name: parameters * count / (dp if zero >= stage else 1) for name, count, stage in each}


def ring(name: str, count: float, ranks: int) -> float:
    """Bytes that each rank sends in a ring collective on `count` bytes: all-reduce, all-gather or reduce-scatter."""
    turns = {"all-reduce": 2, "all-gather": 1, "reduce-scatter": 1}
    return turns[name] * (ranks - 1) / ranks * count


def estimate(
    model: Model, plan: Plan, cluster: Cluster, *, batch: int, precision: Precision = MIXED
) -> Cost:
    """Memory, traffic and time of one step on `batch` sequences; this file says at its top what is left out."""
    dp, tp, pp = plan.dp, plan.tp, plan.pp
    micros = batch // (dp * plan.micro)
    for what, whole, parts in (
        ("heads", model.heads, tp),
        ("layers", model.layers, pp * plan.chunks),
        ("sequences of the batch", batch, dp * plan.micro),
        ("tokens of a sequence", model.context, tp if plan.sequence else 1),
        ("interleaved micro-batches", micros, pp if plan.chunks > 1 else 1),
    ):
        if whole % parts:
            raise CourseError(f"{plan}: {parts} does not divide the {whole} {what}.")
    # The first stage holds most micro-batches, and the embedding; only the last one can have more, by its logits.
    memory = max(
        (_memory(i, model, plan, micros, precision) for i in {0, pp - 1}),
        key=lambda held: sum(held.values()),
    )
    sent, turns = _traffic(model, plan, micros, precision)
    links = {
        "data": cluster.ring(dp, tp),
        "tensor": cluster.ring(tp),
        "pipeline": cluster.far
        if plan.devices > cluster.node
        else (cluster.latency, 1 / cluster.bandwidth),
    }
    takes = {kind: turns[kind] * late + sent[kind] * byte for kind, (late, byte) in links.items()}
    compute = (
        model.operations(batch, recompute=plan.recompute) / plan.devices / cluster.flops
        + model.moved(plan, batch, precision.activation) / cluster.memory_bandwidth
    )
    seconds = {"compute": compute, "bubble": 0.0} | takes
    # Gradients hide behind backward: where they are summed up first, the last one. Gathered weights hide behind the
    # next forward, ZeRO 3's behind each. The first, or last, layer's messages have nothing to hide behind.
    forward = compute / (4 if plan.recompute else 3)
    room = (
        forward / (1 if plan.zero == 3 else micros),
        (compute - forward) / (1 if plan.zero >= 2 else micros),
    )
    early = {0: 0, 1: 1 / 2, 2: 1 / (micros + 1), 3: 1 / 3}[
        plan.zero
    ]  # of the bytes: weights for forward
    late = sum(
        max(0, takes["data"] * part - has)
        for part, has in zip((early, 1 - early), room, strict=True)
    )
    seconds["data"] = max(takes["data"] * pp / model.layers, late)
    # The stages of a pipeline that fills work as they do later, the messages inside a stage included.
    seconds["bubble"] = (compute + seconds["tensor"]) * (pp - 1) / (micros * plan.chunks)
    return Cost(plan, memory, sent, seconds, takes["data"] - seconds["data"], cluster.memory)


def _memory(
    i: int, model: Model, plan: Plan, micros: int, precision: Precision
) -> dict[str, float]:
    """Bytes on rank `i` of the pipeline when 1F1B or the interleaved schedule holds the most micro-batches."""
    tp, pp, each, parts = plan.tp, plan.pp, precision.activation, plan.tp if plan.sequence else 1
    held = min(pp - i, micros)
    if plan.chunks > 1:  # as `schedules.interleaved` goes forward before its first backward
        held = (
            min((plan.chunks - 1) * pp + 2 * (pp - 1 - i) + 1, micros * plan.chunks) / plan.chunks
        )
    layer, tokens = (
        model.activations(plan.micro, tp, each, sequence=plan.sequence),
        model.context * plan.micro,
    )
    kept = (
        held
        * model.layers
        / pp
        * (tokens * model.width * each / parts if plan.recompute else layer)
    )
    if (
        i == pp - 1
    ):  # the loss keeps its float32 logits, the last norm and the output layer their inputs
        kept += tokens * (
            4 * model.vocabulary / (tp if model.split_vocabulary else 1)
            + 2 * each * model.width / parts
        )
    passing = precision.gradient * (plan.zero >= 2) + 2 * precision.parameter * (plan.zero == 3)
    return states(model.stage(i, pp, tp), dp=plan.dp, zero=plan.zero, precision=precision) | {
        "activations": kept + layer * plan.recompute,
        "gathered": model.layer(tp) * (plan.dp > 1) * passing,
    }


def _traffic(
    model: Model, plan: Plan, micros: int, precision: Precision
) -> tuple[dict[str, float], dict[str, float]]:
    """Bytes that the busiest device sends in a step, and the messages it waits for, by kind of parallelism."""
    dp, tp, pp, layers = plan.dp, plan.tp, plan.pp, model.layers / plan.pp
    mine = max(model.stage(i, pp, tp) for i in {0, pp - 1})
    gathers = (
        2 * micros if plan.zero == 3 else 1
    )  # before forward and before backward, or once after the step
    data = (
        ring("reduce-scatter", mine * precision.gradient, dp) * (micros if plan.zero >= 2 else 1)
        + ring("all-gather", mine * precision.parameter, dp) * gathers
    )
    once = {0: 2, 1: 2, 2: (micros + 1) * layers, 3: 3 * micros * layers}[plan.zero]
    hidden = model.context * plan.micro * model.width * precision.activation
    # All-reduces after attention and MLP, forward and backward; or as much in reduce-scatters and all-gathers.
    # Split sequences gather a layer's two inputs again in backward (Memory, section 4.2.2): as much as one all-reduce.
    sums = (4 + 2 * plan.recompute + plan.sequence) * layers * micros
    # Each part sends activations on and gradients back; the first and the last part, the only two of pp 2, one of them.
    hops = micros * (2 * plan.chunks - (pp == 2)) * (pp > 1)
    sent = {
        "data": data,
        "tensor": sums * ring("all-reduce", hidden, tp),
        "pipeline": hops * hidden / (tp if plan.sequence else 1),
    }
    return sent, {"data": once * (dp - 1), "tensor": sums * 2 * (tp - 1), "pipeline": hops}


def plans(model: Model, cluster: Cluster, *, devices: int, batch: int) -> list[Cost]:
    """Every plan on exactly `devices` that divides the model and the batch; those that fit first, fastest first.

    Tensor parts stay inside a node (Megatron, takeaway 1) and split sequences where they can; chunks are not searched.
    """
    found = []
    for tp, pp in product(_divisors(devices), repeat=2):
        dp = devices // (tp * pp)
        if (
            tp > cluster.node
            or devices % (tp * pp)
            or model.heads % tp
            or model.layers % pp
            or batch % dp
        ):
            continue
        plan = Plan(dp=dp, tp=tp, pp=pp, sequence=tp > 1 and model.context % tp == 0)
        for micro, zero, again in product(
            _divisors(batch // dp), range(4 if dp > 1 else 1), (False, True)
        ):
            plan = replace(plan, micro=micro, zero=zero, recompute=again)
            found.append(estimate(model, plan, cluster, batch=batch))
    return sorted(found, key=lambda cost: (not cost.fits, cost.step, cost.total))


def _divisors(whole: int) -> list[int]:
    return [n for n in range(1, whole + 1) if whole % n == 0]
