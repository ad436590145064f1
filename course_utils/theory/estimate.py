"""The formulas of the planner, `cost.py`: bytes held, bytes sent and seconds of one step of a plan. No torch."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from ..ground import drawing
from ..ground.errors import CourseError
from .sizes import MIXED, Cluster, Model, Plan, Precision, duration, size

CATEGORIES = ("parameters", "gradients", "optimizer", "activations", "gathered")


@dataclass(frozen=True)
class Cost:
    """What one step of a plan takes on the device that has most to carry."""

    plan: Plan
    memory: dict[str, float]  # bytes by category
    sent: dict[str, float]  # bytes by kind of parallelism: data, tensor, pipeline
    seconds: dict[str, float]  # compute, bubble, data, tensor, pipeline: one after the other
    limit: float = field(repr=False)  # bytes a device has

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
        sent = sum(self.sent.values())
        return f"{self.plan}: {size(self.total)} ({fit}), sends {size(sent)}, {duration(self.step)} a step"

    def _repr_html_(self) -> str:
        return drawing.of(self).html


def states(parameters: float, *, dp: int = 1, zero: int = 0, precision: Precision = MIXED) -> dict[str, float]:
    """Bytes of parameters, gradients and optimizer states on one of `dp` replicas (ZeRO, figure 1)."""
    each = zip(CATEGORIES[:3], precision[:3], (3, 2, 1), strict=True)
    return {name: parameters * count / (dp if zero >= stage else 1) for name, count, stage in each}


def largest(memory: float, *, dp: int = 1, mp: int = 1, zero: int = 0, precision: Precision = MIXED) -> float:
    """Parameters of the largest model whose states fit in `memory` bytes a device (ZeRO, table 2); mp: tp times pp."""
    return mp * memory / sum(states(1.0, dp=dp, zero=zero, precision=precision).values())


def ring(name: str, count: float, ranks: int) -> float:
    """Bytes that each rank sends in a ring collective on `count` bytes: all-reduce, all-gather or reduce-scatter."""
    turns = {"all-reduce": 2, "all-gather": 1, "reduce-scatter": 1}
    if name not in turns:
        raise CourseError(f"ring({name!r}): it knows {', '.join(turns)}.")
    return turns[name] * (ranks - 1) / ranks * count


def bubble(stages: int, micros: int, *, chunks: int = 1) -> float:
    """Idle time of a pipeline, as a share b of the time its work takes: (p-1)/(m v) (Megatron, section 2.2).

    Of the whole step, work and idle time, it is b/(1+b): that is `schedules.bubble`.
    """
    return (stages - 1) / (micros * chunks)


def estimate(model: Model, plan: Plan, cluster: Cluster, *, batch: int, precision: Precision = MIXED) -> Cost:
    """Memory, traffic and time of one step on `batch` sequences; see the top of this file for what is left out.

    Raises:
        CourseError: the plan does not divide the model or the batch.
    """
    dp, tp, pp = plan.dp, plan.tp, plan.pp
    for what, whole, parts in (("heads", model.heads, tp), ("layers", model.layers, pp * plan.chunks),
                               ("sequences of the batch", batch, dp * plan.micro)):  # fmt: skip
        if whole % parts:
            raise CourseError(f"{plan}: {parts} does not divide the {whole} {what}.")
    micros = batch // (dp * plan.micro)
    if plan.chunks > 1 and micros % pp:
        raise CourseError(f"{plan}: an interleaved schedule takes micro-batches by the {pp}; there are {micros}.")
    split = (model, plan, micros, precision)
    memory = max((_memory(i, *split) for i in range(pp)), key=lambda part: sum(part.values()))
    sent, links = _traffic(*split)
    spans = {"data": tp * dp, "tensor": tp, "pipeline": plan.devices}
    compute = model.operations(batch, recompute=plan.recompute) / plan.devices / cluster.flops
    seconds = {"compute": compute, "bubble": 0.0}
    for kind, count in sent.items():
        message, byte = cluster.link(spans[kind])
        seconds[kind] = links[kind] * message + count * byte
    # The stages of a pipeline that fills work as they do later, tensor messages included.
    seconds["bubble"] = (compute + seconds["tensor"]) * bubble(pp, micros, chunks=plan.chunks)
    return Cost(plan, memory, sent, seconds, cluster.memory)


def _memory(i: int, model: Model, plan: Plan, micros: int, precision: Precision) -> dict[str, float]:
    """Bytes on rank `i` of the pipeline when 1F1B or the interleaved schedule holds the most micro-batches."""
    tp, pp, each = plan.tp, plan.pp, precision.activation
    memory = states(model.stage(i, pp, tp), dp=plan.dp, zero=plan.zero, precision=precision)
    held = min(pp - i, micros)
    if plan.chunks > 1:  # as `schedules.interleaved` goes forward before its first backward
        held = min((plan.chunks - 1) * pp + 2 * (pp - 1 - i) + 1, micros * plan.chunks) / plan.chunks
    layer = model.activations(plan.micro, tp, each)
    tokens = model.context * plan.micro
    kept = held * model.layers / pp * (tokens * model.width * each if plan.recompute else layer)
    if i == pp - 1:  # the loss keeps its float32 logits, the last norm and the output layer their inputs
        kept += tokens * (4 * model.vocabulary / (tp if model.split_vocabulary else 1) + 2 * each * model.width)
    whole = model.layer(tp) * (plan.dp > 1)
    passing = whole * (precision.gradient * (plan.zero >= 2) + 2 * precision.parameter * (plan.zero == 3))
    return memory | {"activations": kept + layer * plan.recompute, "gathered": passing}


def _traffic(model: Model, plan: Plan, micros: int, precision: Precision) -> tuple[dict[str, float], dict[str, float]]:
    """Bytes that the busiest device sends in a step, and the messages it waits for, by kind of parallelism."""
    dp, tp, pp, layers = plan.dp, plan.tp, plan.pp, model.layers / plan.pp
    held = max(model.stage(i, pp, tp) for i in range(pp))
    grads = ring("reduce-scatter", held * precision.gradient, dp) * (micros if plan.zero >= 2 else 1)
    gathers = 2 * micros if plan.zero == 3 else 1  # before forward and before backward, or once after the step
    params = ring("all-gather", held * precision.parameter, dp) * gathers
    once = {0: 2, 1: 2, 2: (micros + 1) * layers, 3: 3 * micros * layers}[plan.zero]
    hidden = model.context * plan.micro * model.width * precision.activation
    sums = (4 + 2 * plan.recompute) * layers * micros  # all-reduces: after attention and MLP, forward and backward
    # Each part sends activations on and gradients back; the first and the last part, the only two of pp 2, one of them.
    hops = micros * (2 * plan.chunks - (pp == 2)) * (pp > 1)
    sent = {"data": grads + params, "tensor": sums * ring("all-reduce", hidden, tp), "pipeline": hops * hidden}
    return sent, {"data": once * (dp - 1), "tensor": sums * 2 * (tp - 1), "pipeline": hops}


def changed(one: Plan, other: Plan) -> list[str]:
    """Names of what differs between two plans."""
    return [f.name for f in fields(Plan) if getattr(one, f.name) != getattr(other, f.name)]
