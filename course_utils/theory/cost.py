"""What a plan costs before it runs: memory, bytes sent and seconds a step of a GPT on 1 to 16,384 devices.

Sources of the formulas:
    ZeRO       Rajbhandari et al. 2020, arXiv:1910.02054: bytes of states, volumes 2, 2, 2 and 3 times the parameters
    Megatron   Narayanan et al. 2021, arXiv:2104.04473: parameters, operations, bubble (p-1)/m, volumes 8bsh(t-1)/t, bsh
    Memory     Korthikanti et al. 2022, arXiv:2205.05198: activations sbh(10 + 24/t + 5as/(ht)) bytes a layer, split
               sequences sbh(34 + 5as/h)/t, and attention recomputed: without the term with a
    DDP, FSDP  Li et al. 2020, arXiv:2006.15704, and Zhao et al. 2023, arXiv:2304.11277: which messages hide
    Rings      Liu et al. 2023, arXiv:2310.01889: keys and values pass (c-1)/c of 2bsh, hidden behind the attention
    Experts    Lepikhin et al. 2020, arXiv:2006.16668: two all-to-alls of the routed tokens a layer, and two back
    Links      NCCL, src/graph/tuning.cc: 2(p-1) turns, of which 2(nodes-1) are far; a ring uses all of a node's links

What hides: the gradients' reduction behind the last micro-batch (with ZeRO 2 and 3, and with ZeRO 3's weights, behind
all of them), but for one layer, and a ring of context behind attention. What is left out, so that you can follow every
number: tensor, pipeline and experts' messages hide behind nothing; rings are plain rings, no trees; layers are equally
slow, and small matrices as fast as large ones, so that micro-batch 1 looks best and many tensor parts too good; no
memory is lost to fragments, buckets and workspaces; tokens go to all experts alike; optimizer, data and split losses
take no time. The formulas are in `estimate.py`, the sizes they need in `sizes.py`; here is the search: which plan fits,
is fastest, or is nearest to one that does not. `benchmarks/planner.py` holds all of it against the papers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from math import gcd

from ..errors import CourseError
from ..style import duration, size
from .estimate import Cost, bubble, changed, estimate, largest, mfu, ring, states
from .sizes import FLOAT32, MIXED, MOST_DEVICES, Cluster, Model, Plan, Precision

__all__ = ["FLOAT32", "MIXED", "Cluster", "Cost", "DoesNotFit", "Model", "Plan", "Precision", "best", "bubble",
           "estimate", "largest", "mfu", "nearest", "plans", "ring", "size", "states"]


WORDS = {
    "dp": lambda plan: f"dp {plan.dp}",
    "tp": lambda plan: f"tp {plan.tp}",
    "pp": lambda plan: f"pp {plan.pp}",
    "zero": lambda plan: f"ZeRO {plan.zero}",
    "micro": lambda plan: f"micro-batch {plan.micro}",
    "chunks": lambda plan: f"{plan.chunks} chunks",
    "recompute": lambda plan: "recompute" if plan.recompute else "no recompute",
    "sequence": lambda plan: "sequence" if plan.sequence else "whole sequences",
    "context": lambda plan: f"context {plan.context}",
    "experts": lambda plan: f"experts {plan.experts}",
}


class DoesNotFit(CourseError):
    """A plan needs more memory than a device has.

    Attributes:
        cost: what the plan would take; None where no plan was named.
        nearest: the cost of the nearest plan that fits, on as few more devices as possible; None: nothing fits.
    """

    def __init__(self, message: str, *, cost: Cost | None, nearest: Cost | None) -> None:
        super().__init__(message)
        self.cost, self.nearest = cost, nearest


def plans(
    model: Model, cluster: Cluster, *, devices: int, batch: int, precision: Precision = MIXED, recompute: bool = True,
    context: int = 1,
) -> list[Cost]:
    """Every plan on exactly `devices` that divides the model and the batch; those that fit first, fastest first.

    Tensor parts stay inside a node (Megatron, takeaway 1), and split the sequence, too, wherever it can be divided.
    Chunks are not searched.

    Args:
        recompute: try plans that compute activations again, too.
        context: try up to so many ranks to a sequence.
    """
    if isinstance(devices, bool) or not isinstance(devices, int) or not 1 <= devices <= MOST_DEVICES:
        raise CourseError(f"plans(devices={devices!r}): devices is a whole number from 1 to {MOST_DEVICES:,}.")
    found = [estimate(model, plan, cluster, batch=batch, precision=precision)
             for plan in _divisions(model, cluster.node, devices, batch, recompute, context)]
    return sorted(found, key=lambda cost: (not cost.fits, cost.step, cost.total))


def best(
    model: Model, cluster: Cluster, *, devices: int, batch: int, precision: Precision = MIXED, recompute: bool = True,
    context: int = 1,
) -> Cost:
    """The fastest plan that fits on `devices`; the arguments are those of `plans`.

    Raises:
        DoesNotFit: no plan does; it says how many devices are needed.
    """
    options = {"batch": batch, "precision": precision, "recompute": recompute, "context": context}
    found = plans(model, cluster, devices=devices, **options)
    if found and found[0].fits:
        return found[0]
    what = f"{size(model.parameters * sum(precision[:3]))} of states for {model.parameters / 1e9:.3g} B parameters"
    if found:
        least = min(found, key=lambda cost: cost.total)
        why = (f"Nothing fits on {_devices(devices)} of {size(cluster.memory)} ({what}). "
               f"The smallest need is {size(least.total)} a device: {least.plan}.")
    else:
        why = (f"No plan divides {model.layers} layers, {model.heads} heads and {batch} sequences "
               f"on {_devices(devices)}.")
    fit = _on_more(model, cluster, devices=devices, **options)
    raise DoesNotFit(f"{why} {_advice(fit)}", cost=None, nearest=fit)


def nearest(model: Model, plan: Plan, cluster: Cluster, *, batch: int, precision: Precision = MIXED) -> Cost:
    """The cost of `plan`, if it fits.

    Raises:
        DoesNotFit: it does not; it says by how much, what takes the room, and which plan with the fewest changes fits.
    """
    cost = estimate(model, plan, cluster, batch=batch, precision=precision)
    if cost.fits:
        return cost
    parts = sorted(((part, name) for name, part in cost.memory.items() if part), reverse=True)
    room = ", ".join(f"{name} {size(part)}" for part, name in parts)
    why = (f"{plan} does not fit: a device needs {size(cost.total)}, {size(cost.total - cluster.memory)} more than the "
           f"{size(cluster.memory)} it has: {room}.")
    same = {"batch": batch, "precision": precision, "recompute": True, "context": plan.context}
    fitting = [c for c in plans(model, cluster, devices=plan.devices, **same) if c.fits]
    # A plan with one thing changed is nearer than a faster one with three; ZeRO changes least of all.
    fit = min(fitting, key=lambda c: (len(set(changed(plan, c.plan)) - {"zero"}), c.step), default=None)
    if fit is None:
        fit = _on_more(model, cluster, devices=plan.devices, **same)
        raise DoesNotFit(f"{why} Nothing else fits on {_devices(plan.devices)}. {_advice(fit)}", cost=cost, nearest=fit)
    names = ", ".join(words(fit.plan) for words in (WORDS[name] for name in changed(plan, fit.plan)))
    raise DoesNotFit(f"{why} Nearest that fits: {names}, all else equal: {size(fit.total)} a device, "
                     f"{duration(fit.step)} a step.", cost=cost, nearest=fit)


def _advice(fit: Cost | None) -> str:
    if fit is None:
        return (f"Nor does anything on more of them, at powers of two up to {MOST_DEVICES:,} and with this batch: take "
                "more memory a device.")
    return f"The fewest that do, at powers of two: {fit.plan.devices:,} ({fit.plan}; {size(fit.total)} a device)."


def _on_more(model: Model, cluster: Cluster, *, devices: int, **options: object) -> Cost | None:
    """The fastest fitting plan on the next power of two, the one after it, …"""
    devices = 1 << devices.bit_length()
    while devices <= MOST_DEVICES:
        found = plans(model, cluster, devices=devices, **options)
        if found and found[0].fits:
            return found[0]
        devices *= 2
    return None


def _divisions(model: Model, node: int, devices: int, batch: int, recompute: bool, context: int) -> Iterator[Plan]:
    for tp, cp in product(_divisors(devices), repeat=2):
        if tp > node or cp > context or devices % (tp * cp) or model.heads % tp or model.context % cp:
            continue
        sequence = tp > 1 and model.context // cp % tp == 0
        for pp in _divisors(devices // tp // cp):
            dp = devices // tp // cp // pp
            if model.layers % pp or batch % dp:
                continue
            for ep, micro in product(_divisors(gcd(dp, model.experts)), _divisors(batch // dp)):
                plan = Plan(dp=dp, tp=tp, pp=pp, micro=micro, sequence=sequence, context=cp, experts=ep)
                for zero in range(4 if dp * cp > 1 else 1):
                    for again in (False, True) if recompute else (False,):
                        yield replace(plan, zero=zero, recompute=again)


def _divisors(whole: int) -> list[int]:
    return [n for n in range(1, whole + 1) if whole % n == 0]


def _devices(count: int) -> str:
    return f"{count:,} device{'s' if count > 1 else ''}"
