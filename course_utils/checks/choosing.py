"""The exercises on choosing a strategy: who is in which group, and a plan for a budget of memory and links."""

from __future__ import annotations

import operator
from collections.abc import Callable

from .. import planner
from ..machine import pick
from ..planner import Cluster, Model, Plan
from ..ranks.launch import launch
from ..style import size
from .old import exercise, expect, wrong

SECONDS = 30.0
AXES = ("pipeline", "data", "tensor")


def groups(rank: int, dp: int, tp: int, pp: int) -> dict[str, list[int]]:
    stage, replica, part = rank // (dp * tp), rank // tp % dp, rank % tp
    return {
        "tensor": [(stage * dp + replica) * tp + i for i in range(tp)],
        "data": [(stage * dp + i) * tp + part for i in range(dp)],
        "pipeline": [(i * dp + replica) * tp + part for i in range(pp)],
    }


def _real_groups(shapes: list[tuple[int, int, int]]) -> list[dict[str, list[int]]]:
    """This rank's groups in meshes of torch, one for each (pp, dp, tp)."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    meshes = [init_device_mesh(pick().type, shape, mesh_dim_names=AXES) for shape in shapes]
    return [{axis: dist.get_process_group_ranks(mesh.get_group(axis)) for axis in AXES} for mesh in meshes]


@exercise(
    groups,
    "Write a rank as three coordinates: rank = (stage * dp + replica) * tp + part. Division and remainder by tp give "
    "`part`, then by dp give `replica`.",
    "A group is all ranks that differ from yours in one coordinate only. The tensor group has the ranks "
    "(stage * dp + replica) * tp + i for i in range(tp): neighbours, because tensor is the innermost axis.",
    "data: (stage * dp + i) * tp + part for i in range(dp); pipeline: (i * dp + replica) * tp + part for i "
    "in range(pp).",
)
def _groups(answer: Callable[[int, int, int, int], dict[str, list[int]]]) -> str:
    shapes = [(1, 2, 2), (2, 1, 2), (2, 2, 1), (4, 1, 1)]
    run = launch(_real_groups, shapes, ranks=4, time_limit=SECONDS, show=False)
    for number, (pp, dp, tp) in enumerate(shapes):
        for rank, found in enumerate(run.results):
            expect(f"groups({rank}, dp={dp}, tp={tp}, pp={pp}), beside torch's mesh on 4 real ranks",
                   {axis: found[number][axis] for axis in ("tensor", "data", "pipeline")},
                   _ordered(answer(rank, dp, tp, pp)))
    for rank, dp, tp, pp in [(0, 3, 2, 4), (17, 3, 2, 4), (23, 3, 2, 4), (9999, 128, 8, 16)]:
        said = _ordered(answer(rank, dp, tp, pp))
        expect(f"groups({rank}, dp={dp}, tp={tp}, pp={pp})", groups(rank, dp, tp, pp), said)
    return "The groups of torch's own meshes on 4 real ranks, and right on 24 and 16,384."


def _ordered(said: object) -> object:
    """The learner's groups in the order of ours, a dictionary may come in any; the ranks as Python's own integers."""
    if isinstance(said, dict) and set(said) == set(AXES):
        return {axis: [_whole(rank) for rank in said[axis]] if isinstance(said[axis], (list, tuple)) else said[axis]
                for axis in ("tensor", "data", "pipeline")}
    return said


def _whole(value: object) -> object:
    """A whole number of numpy or torch as Python's own; anything else as it is."""
    return operator.index(value) if hasattr(value, "__index__") and not isinstance(value, bool) else value


SEVEN = Model(layers=36, width=4096, heads=32, vocabulary=51_200, context=2048)
FORTY = Model(layers=48, width=8192, heads=64, vocabulary=51_200, context=2048)
GOOD = Cluster(memory=80e9, flops=175e12, bandwidth=250e9, node=8, far_bandwidth=25e9)
SLOW = Cluster(memory=40e9, flops=175e12, bandwidth=25e9, node=8, far_bandwidth=1e9)
PIPES = Plan(dp=2, pp=16, zero=1, recompute=True)  # exactly within the last budget
BUDGETS = ((SEVEN, GOOD, 16, 512, 1e12), (FORTY, GOOD, 32, 128, 240.3e9), (SEVEN, SLOW, 64, 512, 29.5e9),
           (FORTY, SLOW, 32, 512, sum(planner.estimate(FORTY, PIPES, SLOW, batch=512).sent.values())))


def within_budget(model: Model, cluster: Cluster, devices: int, batch: int, most_sent: float) -> Plan:
    for found in planner.plans(model, cluster, devices=devices, batch=batch):  # those that fit first, fastest first
        if found.fits and sum(found.sent.values()) <= most_sent:
            return found.plan
    raise planner.DoesNotFit("No plan keeps to the budget.")


@exercise(
    within_budget,
    "planner.plans(model, cluster, devices=devices, batch=batch) lists the cost of every plan: those that fit first, "
    "the fastest first.",
    "Each has .fits, and .sent: a dictionary of the bytes for data, tensor and pipeline parallelism. The budget is for "
    "their sum.",
    "Go through the list and return the .plan of the first that fits and whose sum(found.sent.values()) <= most_sent.",
)
def _within_budget(answer: Callable[[Model, Cluster, int, int, float], Plan]) -> str:
    for model, cluster, devices, batch, most in BUDGETS:
        case = (f"{model.parameters / 1e9:.3g} B parameters on {devices} devices of {size(cluster.memory)}, "
                f"{size(most)} sent")
        plan = answer(model, cluster, devices, batch, most)
        if isinstance(plan, planner.Cost):
            wrong(f"{case}: return its plan, found.plan, not the whole cost.", expected="a Plan", got="a Cost")
        if not isinstance(plan, Plan):
            expect(f"{case}: what it returned", within_budget(model, cluster, devices, batch, most), plan)
        if plan.devices != devices:
            wrong(f"{case}: the plan takes another number of devices.", expected=devices, got=f"{plan.devices}: {plan}")
        got = planner.estimate(model, plan, cluster, batch=batch)
        want = planner.estimate(model, within_budget(model, cluster, devices, batch, most), cluster, batch=batch)
        sent = sum(got.sent.values())
        if not got.fits:
            wrong(f"{case}: the plan does not fit.", expected=f"at most {size(cluster.memory)} a device",
                  got=f"{size(got.total)} with {plan}")
        if sent > most:
            wrong(f"{case}: the plan sends too much.", expected=f"at most {size(most)} a step",
                  got=f"{size(sent)} with {plan}")
        if got.step > want.step * 1.0001:
            wrong(f"{case}: it fits and keeps to the budget, but there is a faster plan.",
                  expected=f"{want.step:.3g} s a step", got=f"{got.step:.3g} s with {plan}")
    return f"The fastest plan within memory and links, {len(BUDGETS)} times."
