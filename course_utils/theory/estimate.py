"""The formulas of the planner, `cost.py`: bytes held, bytes sent and seconds of one step of a plan. No torch."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from .. import drawing
from ..errors import CourseError
from ..style import duration, size
from .sizes import MIXED, Cluster, Model, Plan, Precision

CATEGORIES = ("parameters", "gradients", "optimizer", "activations", "gathered")


@dataclass(frozen=True)
class Cost:
    """What one step of a plan takes on the device that has most to carry."""

    plan: Plan
    memory: dict[str, float]  # bytes by category
    sent: dict[str, float]  # bytes by kind of parallelism: data, tensor, pipeline; context and experts where split
    seconds: dict[str, float]  # compute, bubble and what of the messages is not hidden: one after the other
    limit: float = field(repr=False)  # bytes a device has
    hidden: float = 0.0  # seconds of messages that travel while the device computes

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


def mfu(model: Model, *, batch: int, seconds: float, devices: int, peak: float) -> float:
    """Model FLOPs utilization (PaLM, appendix B): operations that the model needs, over what the devices' sheet allows.

    What is computed a second time, to save memory, does not count; what the device waits does.
    """
    return model.operations(batch) / seconds / devices / peak


def estimate(model: Model, plan: Plan, cluster: Cluster, *, batch: int, precision: Precision = MIXED) -> Cost:
    """Memory, traffic and time of one step on `batch` sequences; `cost.py` says at its top what is left out.

    Raises:
        CourseError: the plan does not divide the model or the batch.
    """
    dp, tp, pp, cp, ep = plan.dp, plan.tp, plan.pp, plan.context, plan.experts
    for what, whole, parts in (("heads", model.heads, tp), ("layers", model.layers, pp * plan.chunks),
                               ("sequences of the batch", batch, dp * plan.micro), ("experts", model.experts, ep),
                               ("tokens of a sequence", model.context, cp * (tp if plan.sequence else 1))):
        if whole % parts:
            raise CourseError(f"{plan}: {parts} does not divide the {whole} {what}.")
    micros = batch // (dp * plan.micro)
    if plan.chunks > 1 and micros % pp:
        raise CourseError(f"{plan}: an interleaved schedule takes micro-batches by the {pp}; there are {micros}.")
    split = (model, plan, micros, precision)
    # The first stage holds most micro-batches, and the embedding; only the last one can have more, by its logits.
    memory = max((_memory(i, *split) for i in {0, pp - 1}), key=lambda part: sum(part.values()))
    sent, turns = _traffic(*split)
    links = {"data": cluster.ring(dp * cp, tp), "tensor": cluster.ring(tp), "context": cluster.ring(cp, tp),
             "experts": cluster.exchange(ep, tp * cp),
             "pipeline": cluster.far if plan.devices > cluster.node else (cluster.latency, 1 / cluster.bandwidth),
             }
    takes = {kind: turns[kind] * links[kind][0] + count * links[kind][1] for kind, count in sent.items()}
    compute = model.operations(batch, recompute=plan.recompute) / plan.devices / cluster.flops
    # Gradients are whole in the last micro-batch's backward; weights that are gathered each time have all of them.
    behind = {"data": compute if plan.zero >= 2 else compute / micros,
              "context": compute * model.context / (6 * model.width + model.context)}  # its share: the attention
    seconds = {"compute": compute, "bubble": 0.0} | takes
    for kind, room in behind.items():
        if cluster.overlap and kind in takes:  # the first, or last, layer's have nothing to hide behind
            seconds[kind] = max(takes[kind] * pp / model.layers, takes[kind] - room)
    # The stages of a pipeline that fills work as they do later, the messages inside a stage included.
    inside = sum(seconds.get(kind, 0) for kind in ("compute", "tensor", "context", "experts"))
    seconds["bubble"] = inside * bubble(pp, micros, chunks=plan.chunks)
    hidden = sum(takes[kind] - seconds[kind] for kind in takes)
    return Cost(plan, memory, sent, seconds, cluster.memory, hidden)


def _memory(i: int, model: Model, plan: Plan, micros: int, precision: Precision) -> dict[str, float]:
    """Bytes on rank `i` of the pipeline when 1F1B or the interleaved schedule holds the most micro-batches."""
    tp, pp, cp, each, replicas = plan.tp, plan.pp, plan.context, precision.activation, plan.dp * plan.context
    memory = states(model.stage(i, pp, tp), dp=replicas, zero=plan.zero, precision=precision)
    experts = model.layers / pp * model.routed(tp, plan.experts)
    routed = states(experts, dp=replicas // plan.experts, zero=plan.zero, precision=precision)
    memory = {name: count + routed[name] for name, count in memory.items()}
    held = min(pp - i, micros)
    if plan.chunks > 1:  # as `schedules.interleaved` goes forward before its first backward
        held = min((plan.chunks - 1) * pp + 2 * (pp - 1 - i) + 1, micros * plan.chunks) / plan.chunks
    layer = model.activations(plan.micro, tp, each, cp=cp, sequence=plan.sequence, recompute=plan.recompute)
    tokens = model.context / cp * plan.micro
    again, parts = plan.recompute is True, tp if plan.sequence else 1
    kept = held * model.layers / pp * (tokens * model.width * each / parts if again else layer)
    if i == pp - 1:  # the loss keeps its float32 logits, the last norm and the output layer their inputs
        kept += tokens * (4 * model.vocabulary / (tp if model.split_vocabulary else 1) + 2 * each * model.width / parts)
    whole = (model.layer(tp) + model.routed(tp, plan.experts)) * (replicas > 1)
    passing = whole * (precision.gradient * (plan.zero >= 2) + 2 * precision.parameter * (plan.zero == 3))
    return memory | {"activations": kept + layer * again, "gathered": passing}


def _traffic(model: Model, plan: Plan, micros: int, precision: Precision) -> tuple[dict[str, float], dict[str, float]]:
    """Bytes that the busiest device sends in a step, and the messages it waits for, by kind of parallelism."""
    tp, pp, cp, ep, layers = plan.tp, plan.pp, plan.context, plan.experts, model.layers / plan.pp
    replicas, again = plan.dp * cp, plan.recompute is True
    dense = max(model.stage(i, pp, tp) for i in {0, pp - 1})
    held = ((dense, replicas), (layers * model.routed(tp, ep), replicas // ep))  # an expert's copies are fewer
    reduced = sum(ring("reduce-scatter", part * precision.gradient, ranks) for part, ranks in held)
    gathered = sum(ring("all-gather", part * precision.parameter, ranks) for part, ranks in held)
    gathers = 2 * micros if plan.zero == 3 else 1  # before forward and before backward, or once after the step
    data = reduced * (micros if plan.zero >= 2 else 1) + gathered * gathers
    once = {0: 2, 1: 2, 2: (micros + 1) * layers, 3: 3 * micros * layers}[plan.zero]
    hidden = model.context / cp * plan.micro * model.width * precision.activation
    # All-reduces after attention and MLP, forward and backward; or as much in reduce-scatters and all-gathers.
    sums = (4 + 2 * again) * layers * micros
    # Each part sends activations on and gradients back; the first and the last part, the only two of pp 2, one of them.
    hops = micros * (2 * plan.chunks - (pp == 2)) * (pp > 1)
    sent = {"data": data, "tensor": sums * ring("all-reduce", hidden, tp),
            "pipeline": hops * hidden / (tp if plan.sequence else 1)}
    turns = {"data": once * (replicas - 1), "tensor": sums * 2 * (tp - 1), "pipeline": hops}
    if cp > 1:  # keys and values go round, in backward with their gradients
        rounds = (3 + again) * layers * micros
        sent["context"], turns["context"] = rounds * 2 * (cp - 1) * hidden / tp, rounds * (cp - 1)
    if ep > 1:  # tokens to their experts and back, forward and backward
        routes = (4 + 2 * again) * layers * micros
        count = model.chosen * hidden / (tp if plan.sequence else 1)
        sent["experts"], turns["experts"] = routes * (ep - 1) / ep * count, routes * (ep - 1)
    return sent, turns


def changed(one: Plan, other: Plan) -> list[str]:
    """Names of what differs between two plans."""
    return [f.name for f in fields(Plan) if getattr(one, f.name) != getattr(other, f.name)]
