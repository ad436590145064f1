"""What a plan costs before it runs: memory, bytes sent, seconds a step of a GPT on many devices.

ZeRO       Rajbhandari et al. 2020, arXiv:1910.02054: bytes of states; volumes 2, 2, 2 and 3 times
           the parameters
Megatron   Narayanan et al. 2021, arXiv:2104.04473: parameters, operations, bubble (p-1)/m, volumes
           8bsh(t-1)/t, bsh
Memory     Korthikanti et al. 2022, arXiv:2205.05198: activations, but for dropout's masks and
           attention's scores
DDP, FSDP  Li et al. 2020, arXiv:2006.15704, and Zhao et al. 2023, arXiv:2304.11277: which messages
           hide
Links      NCCL, src/graph/tuning.cc: 2(p-1) turns, of which 2(nodes-1) are far; a ring uses all of
           a node's links

What hides: gradients behind backward (of the last micro-batch; with ZeRO 2 and 3 of all), weights
that ZeRO gathers behind forward (of the first micro-batch; ZeRO 3's behind every forward and
backward), but for one layer; what HSDP adds up between its groups behind the last backward. Stages
of unequal depth cost as if all were as deep as the deepest. What is left out, so that you can
follow every number: tensor and pipeline messages hide behind nothing; rings are plain rings, no
trees; layers are equally slow, and small matrices as fast as large ones, so that micro-batch 1
looks best and many tensor parts too good; no memory is lost to fragments, buckets and workspaces;
optimizer, data and split losses take no time. `tests/test_planner.py` holds all of it against the
papers.
"""

import math
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


# Half precision; Adam's two moments and a master copy in float32 (ZeRO, section 3.1).
MIXED = Precision(2, 2, 12, 2)


@dataclass(frozen=True, kw_only=True)
class Model:
    """A GPT by its sizes, without dropout."""

    layers: int
    width: int
    heads: int
    vocabulary: int
    context: int
    tied: bool = True  # the output layer is the token embedding
    split_vocabulary: bool = True  # by tensor parallelism: embedding and output layer, too
    fused: bool = True  # attention writes no scores to memory, as in FlashAttention

    @property
    def parameters(self) -> float:
        both_stages = self.stage(0, 2, 1) + self.stage(1, 2, 1)
        return both_stages - self.width * self.vocabulary if self.tied else both_stages

    def layer(self, tp: int = 1) -> float:
        """Parameters of one layer on one of `tp` ranks; norms and some biases are on all."""
        return (12 * self.width**2 + 7 * self.width) / tp + 6 * self.width

    def stage(self, i: int, pp: int, tp: int) -> float:
        """Parameters on one rank of stage `i`; the last stage has a copy of tied embeddings."""
        table = self.width * self.vocabulary / (tp if self.split_vocabulary else 1)
        first = table + self.context * self.width
        last = 2 * self.width + table
        if self.tied and pp == 1:  # the one table is on this rank already
            last -= table
        if not self.tied:
            last += self.vocabulary  # biases of the output layer

        count = self.layers * self.layer(tp) / pp
        if i == 0:
            count += first
        if i == pp - 1:
            count += last
        return count

    def operations(self, batch: int, *, recompute: bool = False) -> float:
        """Multiplications and additions of a step on `batch` sequences (Megatron, equation 3)."""
        passes = 4 if recompute else 3  # backward is two forwards
        layer = 24 * self.width**2 + 4 * self.context * self.width
        logits = 6 * self.width * self.vocabulary
        return batch * self.context * (self.layers * passes * layer + logits)

    def activations(self, micro: int, tp: int, each: int, *, sequence: bool = False) -> float:
        """Bytes that a layer keeps for backward, `each` a number (Memory, equations 2 and 4)."""
        # By token and unit of width: inputs of norms and linear layers; what tensor parts split.
        whole = 4 / tp if sequence else 4
        split = 12 / tp
        return self.context * micro * self.width * each * (whole + split)

    def moved(self, plan: "Plan", batch: int, each: int) -> float:
        """Bytes a device writes to its memory and reads in a step: what layers keep, and scores."""
        kept = self.activations(1, plan.tp, each, sequence=plan.sequence)
        if not self.fused:  # softmax, its dropout and that one's mask (Memory, equation 1)
            kept += self.heads / plan.tp * self.context**2 * (2 * each + 1)
        passes = 4 if plan.recompute else 3
        return 2 * passes * kept * self.layers / plan.pp * batch / plan.dp


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Equal devices: what one has and does, its links inside a node (near) and to others (far)."""

    memory: float  # bytes a device
    flops: float  # operations a second of a device's arithmetic alone
    bandwidth: float  # bytes/s a device sends to its neighbour
    memory_bandwidth: float = float("inf")  # bytes/s between a device and its memory
    latency: float = 5e-6  # s a message
    node: int = 16_384  # devices that share near links
    far_bandwidth: float | None = None  # bytes/s of each device's own link to other nodes
    far_latency: float | None = None

    @property
    def far(self) -> tuple[float, float]:
        """Seconds a message and seconds a byte between nodes."""
        latency = self.latency if self.far_latency is None else self.far_latency
        bandwidth = self.bandwidth if self.far_bandwidth is None else self.far_bandwidth
        return latency, 1 / bandwidth

    def ring(self, ranks: int, apart: int = 1) -> tuple[float, float]:
        """Seconds a turn and seconds a byte in a ring of ranks that are `apart` devices apart.

        As NCCL's: only turns to another node take a far message's time, and a ring uses all the far
        links of its node.
        """
        inside = max(1, min(ranks, self.node // apart))
        if inside >= ranks:
            return self.latency, 1 / self.bandwidth
        late, byte = self.far
        crossing = (ranks / inside - 1) / (ranks - 1)
        turn = self.latency + crossing * (late - self.latency)
        return turn, max(1 / self.bandwidth, byte / inside)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Who holds what: dp replicas of a model whose layers have tp parts, in pp stages.

    Ranks run along tp, then dp, then pp.
    """

    dp: int = 1
    tp: int = 1
    pp: int = 1
    zero: int = 0  # split over the replicas: 1 optimizer states, 2 gradients too, 3 parameters too
    group: int = 0  # with ZeRO 3, split over so many replicas each (HSDP); 0: over all
    micro: int = 1  # sequences in a micro-batch
    chunks: int = 1  # of layers on a stage; 1 is 1F1B, more is interleaved
    sequence: bool = False  # tensor parts split the sequence where they do not split the layer
    recompute: bool = False  # keep only each layer's input, and compute the rest again in backward

    @property
    def devices(self) -> int:
        return self.dp * self.tp * self.pp

    @property
    def sharing(self) -> int:
        """Replicas that split what ZeRO splits."""
        return self.group or self.dp

    def __str__(self) -> str:
        words = [f"dp {self.dp}", f"tp {self.tp}", f"pp {self.pp}", f"ZeRO {self.zero}"]
        if self.group:
            words[-1] += f" in groups of {self.group}"
        words.append(f"micro-batch {self.micro}")
        if self.chunks > 1:
            words.append(f"{self.chunks} chunks")
        if self.sequence:
            words.append("sequence")
        if self.recompute:
            words.append("recompute")
        return ", ".join(words)


@dataclass(frozen=True)
class Cost:
    """What one step of a plan takes on the device that has most to carry."""

    plan: Plan
    memory: dict[str, float]  # bytes: parameters, gradients, optimizer, activations, gathered
    sent: dict[str, float]  # bytes, by kind of parallelism: data, tensor, pipeline
    # compute, bubble and what of the messages is not hidden: one after the other
    seconds: dict[str, float]
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
        fit = "fits" if self.fits else "does not fit"
        sent = size(sum(self.sent.values()))
        return (
            f"{self.plan}: {size(self.total)} ({fit}), sends {sent}, {duration(self.step)} a step"
        )


def states(
    parameters: float, *, dp: int = 1, zero: int = 0, precision: Precision = MIXED
) -> dict[str, float]:
    """Bytes of parameters, gradients, optimizer states on one of `dp` replicas (ZeRO, figure 1)."""
    each = zip(("parameters", "gradients", "optimizer"), precision[:3], (3, 2, 1), strict=True)
    return {name: parameters * count / (dp if zero >= stage else 1) for name, count, stage in each}


def ring(name: str, count: float, ranks: int) -> float:
    """Bytes a rank sends in a ring's all-reduce, all-gather or reduce-scatter of `count` bytes."""
    turns = {"all-reduce": 2, "all-gather": 1, "reduce-scatter": 1}
    return turns[name] * (ranks - 1) / ranks * count


def estimate(
    model: Model, plan: Plan, cluster: Cluster, *, batch: int, precision: Precision = MIXED
) -> Cost:
    """Memory, traffic and time of a step on `batch` sequences; what is left out is said above."""
    _check(model, plan, batch)
    micros = batch // (plan.dp * plan.micro)
    # Where the stages cannot be equally deep, all wait for the deepest.
    parts = plan.pp * plan.chunks
    if model.layers % parts:
        model = replace(model, layers=math.ceil(model.layers / parts) * parts)

    # The first stage holds most micro-batches, and the embedding; only the last one can have more,
    # by its logits.
    ends = [_memory(i, model, plan, micros, precision) for i in {0, plan.pp - 1}]
    memory = max(ends, key=lambda held: sum(held.values()))

    sent, turns = _traffic(model, plan, micros, precision)
    near = cluster.latency, 1 / cluster.bandwidth
    links = {
        "data": cluster.ring(plan.sharing, plan.tp),
        "between": cluster.ring(plan.dp // plan.sharing, plan.tp * plan.sharing),
        "tensor": cluster.ring(plan.tp),
        "pipeline": cluster.far if plan.devices > cluster.node else near,
    }
    takes = {kind: turns[kind] * late + sent[kind] * byte for kind, (late, byte) in links.items()}

    arithmetic = model.operations(batch, recompute=plan.recompute) / plan.devices / cluster.flops
    moving = model.moved(plan, batch, precision.activation) / cluster.memory_bandwidth
    compute = arithmetic + moving
    between = takes.pop("between")
    data = _not_hidden(takes["data"], between, compute, model, plan, micros)
    hidden = takes["data"] + between - data
    sent["data"] += sent.pop("between")
    # The stages of a pipeline that fills work as they do later, the messages inside a stage
    # included.
    bubble = (compute + takes["tensor"]) * (plan.pp - 1) / (micros * plan.chunks)
    seconds = {"compute": compute, "bubble": bubble} | takes | {"data": data}
    return Cost(plan, memory, sent, seconds, hidden, cluster.memory)


def mfu(model: Model, cost: Cost, *, batch: int, peak: float) -> float:
    """Model FLOPs utilization for devices of `peak` FLOP/s; recomputation does not count."""
    return model.operations(batch) / cost.plan.devices / cost.step / peak


def _check(model: Model, plan: Plan, batch: int) -> None:
    """What is split must be divisible, each stage needs a layer; else a CourseError."""
    if min(plan.dp, plan.tp, plan.pp, plan.micro, plan.chunks, batch) < 1:
        raise CourseError(f"{plan}, batch {batch}: each is a whole number from 1 on.")
    if plan.zero not in range(4):
        raise CourseError(f"Plan(zero={plan.zero}): ZeRO has stages 1 to 3; 0 divides nothing.")
    if plan.group and plan.zero != 3:
        raise CourseError(f"{plan}: groups (HSDP) divide the parameters, too; give zero=3.")
    if plan.pp * plan.chunks > model.layers:
        raise CourseError(f"{plan}: {model.layers} layers are too few for the stages and chunks.")

    splits = [
        ("heads", model.heads, plan.tp),
        ("sequences of the batch", batch, plan.dp * plan.micro),
    ]
    if plan.group:
        splits.append(("replicas", plan.dp, plan.group))
    if plan.sequence:
        splits.append(("tokens of a sequence", model.context, plan.tp))
    if plan.chunks > 1:
        micros = batch // (plan.dp * plan.micro)
        splits.append(("interleaved micro-batches", micros, plan.pp))
    for what, whole, parts in splits:
        if whole % parts:
            raise CourseError(f"{plan}: {parts} does not divide the {whole} {what}.")


def _not_hidden(
    takes: float, between: float, compute: float, model: Model, plan: Plan, micros: int
) -> float:
    """Seconds of the data parallel messages, which take `takes`, that the device waits for.

    Gradients hide behind backward: where they are summed up first, the last one. Gathered weights
    hide behind the next forward, ZeRO 3's behind each. The first, or last, layer's messages have
    nothing to hide behind. The sums between HSDP's groups take `between`, on other links.
    """
    forward = compute / (4 if plan.recompute else 3)
    backward = compute - forward
    forwards = 1 if plan.zero == 3 else micros
    backwards = 1 if plan.zero >= 2 else micros
    # The part of the bytes that are weights, for forward; the rest are for backward.
    weights = {0: 0, 1: 1 / 2, 2: 1 / (micros + 1), 3: 1 / 3}[plan.zero]

    late = max(0, takes * weights - forward / forwards)
    late += max(0, takes * (1 - weights) - backward / backwards)
    sums_late = max(0, between - backward / micros)
    one_layer = plan.pp / model.layers
    return max(takes * one_layer, late) + max(between * one_layer, sums_late)


def _memory(
    i: int, model: Model, plan: Plan, micros: int, precision: Precision
) -> dict[str, float]:
    """Bytes on rank `i` of the pipeline when its schedule holds the most micro-batches."""
    tp, pp, each = plan.tp, plan.pp, precision.activation
    parts = tp if plan.sequence else 1
    tokens = model.context * plan.micro
    inputs = tokens * model.width * each / parts  # of a layer
    layer = model.activations(plan.micro, tp, each, sequence=plan.sequence)

    held = min(pp - i, micros)  # micro-batches
    if plan.chunks > 1:  # as `schedules.interleaved` goes forward before its first backward
        ahead = (plan.chunks - 1) * pp + 2 * (pp - 1 - i) + 1
        held = min(ahead, micros * plan.chunks) / plan.chunks
    kept = held * model.layers / pp * (inputs if plan.recompute else layer)
    if plan.recompute:
        kept += layer  # the one that is computed again
    if i == pp - 1:  # the loss keeps its float32 logits, the last norm and the output layer inputs
        logits = 4 * model.vocabulary / (tp if model.split_vocabulary else 1)
        kept += tokens * (logits + 2 * each * model.width / parts)

    passing = 0  # bytes a parameter of a layer that is whole for a moment
    if plan.dp > 1 and plan.zero >= 2:
        passing += precision.gradient
    if plan.dp > 1 and plan.zero == 3:
        passing += 2 * precision.parameter
    fixed = states(model.stage(i, pp, tp), dp=plan.sharing, zero=plan.zero, precision=precision)
    return fixed | {"activations": kept, "gathered": model.layer(tp) * passing}


def _traffic(
    model: Model, plan: Plan, micros: int, precision: Precision
) -> tuple[dict[str, float], dict[str, float]]:
    """Bytes that the busiest device sends in a step, and messages it waits for, by parallelism."""
    dp, tp, pp = plan.dp, plan.tp, plan.pp
    layers = model.layers / pp
    mine = max(model.stage(i, pp, tp) for i in {0, pp - 1})

    # Weights are gathered before forward and before backward, or once after the step.
    gathers = 2 * micros if plan.zero == 3 else 1
    reductions = micros if plan.zero >= 2 else 1
    data = gathers * ring("all-gather", mine * precision.parameter, plan.sharing)
    data += reductions * ring("reduce-scatter", mine * precision.gradient, plan.sharing)
    groups = dp // plan.sharing
    rings = {0: 2, 1: 2, 2: (micros + 1) * layers, 3: 3 * micros * layers}[plan.zero]

    # All-reduces after attention and MLP, forward and backward; or as much in reduce-scatters and
    # all-gathers. Split sequences gather a layer's two inputs again in backward (Memory, section
    # 4.2.2): as much as one all-reduce.
    hidden = model.context * plan.micro * model.width * precision.activation
    each_layer = 4
    if plan.recompute:
        each_layer += 2
    if plan.sequence:
        each_layer += 1
    sums = each_layer * layers * micros

    # A part sends activations on and gradients back; the first and the last send one of them.
    hops = 0
    if pp > 1:
        one_way = 1 if pp == 2 else 0  # both stages are ends then
        hops = micros * (2 * plan.chunks - one_way)

    sent = {
        "data": data,
        "between": ring("all-reduce", mine * precision.gradient / plan.sharing, groups),
        "tensor": sums * ring("all-reduce", hidden, tp),
        "pipeline": hops * hidden / (tp if plan.sequence else 1),
    }
    turns = {
        "data": rings * (plan.sharing - 1),
        "between": 2 * layers * (groups - 1),
        "tensor": sums * 2 * (tp - 1),
        "pipeline": hops,
    }
    return sent, turns


def plans(model: Model, cluster: Cluster, *, devices: int, batch: int) -> list[Cost]:
    """Every plan on exactly `devices` that divides heads and batch: those that fit, fastest first.

    Tensor parts stay inside a node (Megatron, takeaway 1) and split sequences where they can;
    HSDP's groups are a node's replicas; a stage is one chunk, or interleaves as many as may help.
    """
    found = []
    for tp, pp in product(_divisors(math.gcd(devices, model.heads)), _divisors(devices)):
        dp, left = divmod(devices, tp * pp)
        if left or batch % dp or tp > cluster.node or pp > model.layers:
            continue
        sequence = tp > 1 and model.context % tp == 0
        kinds = [(zero, 0) for zero in range(4 if dp > 1 else 1)]
        inside = cluster.node // tp
        if 1 < inside < dp and dp % inside == 0:
            kinds.append((3, inside))
        for micro, (zero, group), again in product(_divisors(batch // dp), kinds, (False, True)):
            interleaves = batch // dp // micro % pp == 0
            for chunks in _chunks(model.layers, pp) if interleaves else [1]:
                plan = Plan(
                    dp=dp,
                    tp=tp,
                    pp=pp,
                    zero=zero,
                    group=group,
                    micro=micro,
                    chunks=chunks,
                    sequence=sequence,
                    recompute=again,
                )
                found.append(estimate(model, plan, cluster, batch=batch))
    return sorted(found, key=lambda cost: (not cost.fits, cost.step, cost.total))


def _chunks(layers: int, pp: int) -> list[int]:
    """How many chunks a stage may have: for chunks of each depth as few as hold all layers."""
    if pp == 1:
        return [1]
    counts = {math.ceil(layers / (pp * depth)) for depth in range(1, layers // pp + 1)}
    return sorted(count for count in counts | {1} if pp * count <= layers)


def _divisors(whole: int) -> list[int]:
    return [n for n in range(1, whole + 1) if whole % n == 0]
