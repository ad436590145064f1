"""Exercises of notebook 14: who is in which group, and a plan for a budget of memory and links."""

from dataclasses import replace

from .. import planner
from ..planner import Cluster, Model
from .compare import AtMost, kind
from .exercise import exercise

SHAPES = ((2, 2, 2), (3, 2, 4), (1, 1, 3), (5, 1, 1), (1, 4, 2))  # dp, tp, pp
SOME_RANKS = ((9999, 128, 8, 16), (1234, 7, 16, 12))


def groups(rank, dp, tp, pp):
    """The ranks in each group of `rank`, by axis, in order.

    Ranks run along tensor first, then data, then pipeline.
    """
    stage, replica, part = rank // (dp * tp), rank // tp % dp, rank % tp
    return {
        "tensor": [(stage * dp + replica) * tp + i for i in range(tp)],
        "data": [(stage * dp + i) * tp + part for i in range(dp)],
        "pipeline": [(i * dp + replica) * tp + part for i in range(pp)],
    }


def data_first(rank, dp, tp, pp):
    swapped = groups(rank, tp, dp, pp)
    return swapped | {"tensor": swapped["data"], "data": swapped["tensor"]}


@exercise(
    groups,
    mistakes={
        "here ranks run along `data` first; they are to run along `tensor` first, then `data`, "
        "then `pipeline`": data_first,
    },
)
def _(answer):
    every = [(rank, dp, tp, pp) for dp, tp, pp in SHAPES for rank in range(dp * tp * pp)]
    for given in (*every, *SOME_RANKS):
        case = "groups({}, dp={}, tp={}, pp={})".format(*given)
        found = answer(*given)
        yield case, found
        members = [one for ranks in found.values() for one in ranks]
        kinds = {"an int" if hasattr(one, "__index__") else kind(one) for one in members}
        yield f"{case}, what a rank is", " or ".join(sorted(kinds))
    yield (
        "",
        "These are the groups of torch's meshes: right for every rank of five, and for two of "
        "large ones.",
    )


SEVEN = Model(layers=36, width=4096, heads=32, vocabulary=51_200, context=2048)
FORTY = Model(layers=48, width=8192, heads=64, vocabulary=51_200, context=2048)
SLOW = Cluster(memory=40e9, flops=175e12, bandwidth=25e9, node=8, far_bandwidth=1e9)
FAST = replace(SLOW, far_bandwidth=25e9)
CASES = ((SEVEN, FAST, 16, 64), (FORTY, SLOW, 32, 512))


def within_budget(model, cluster, devices, batch, most_sent):
    """The fastest `planner.Plan` that fits; each device sends at most `most_sent` bytes a step."""
    # those that fit first, fastest first
    costs = planner.plans(model, cluster, devices=devices, batch=batch)
    return next(
        found.plan for found in costs if found.fits and sum(found.sent.values()) <= most_sent
    )


def front(costs):
    """Those that fit, if every faster one sends more: what they send, and their seconds."""
    best = []
    for found in costs:
        sent = sum(found.sent.values())
        if found.fits and (not best or sent < best[-1][0]):
            best.append((sent, found.step))
    return best


def largest_kind(model, cluster, devices, batch, most_sent):
    costs = planner.plans(model, cluster, devices=devices, batch=batch)
    return next(
        found.plan for found in costs if found.fits and max(found.sent.values()) <= most_sent
    )


@exercise(
    within_budget,
    seconds=40,  # to search all plans, several times
    mistakes={
        "the budget is for the sum of all kinds of messages": largest_kind,
    },
)
def _(answer):
    for model, cluster, devices, batch in CASES:
        best = front(planner.plans(model, cluster, devices=devices, batch=batch))
        for most in [sent - less for sent, _ in best[:-1] for less in (0, 1)]:
            size = f"{model.parameters / 1e9:.3g} B parameters on {devices} devices"
            case = f"{size}, at most {most:,.0f} bytes"
            plan = answer(model, cluster, devices, batch, most)
            yield f"{case}: what it returns", kind(plan)
            yield f"{case}: devices of the plan", plan.devices
            cost = planner.estimate(model, plan, cluster, batch=batch)
            memory = AtMost(int(cost.total), int(cluster.memory))
            yield f"{case}: bytes of memory on a device", memory
            sent = AtMost(int(sum(cost.sent.values())), int(most))
            yield f"{case}: bytes that a device sends", sent
            fastest = next(step for sent, step in best if sent <= most)
            seconds = AtMost(round(cost.step, 6), round(fastest, 6))
            yield f"{case}: seconds of a step, of all plans within the budget", seconds
    yield "", "The fastest plan within memory and links, also where a faster one sends a byte more."
