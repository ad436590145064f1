"""The published solutions of notebook 14 against torch's meshes on real ranks, and every plan that
there is.
"""

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from course_utils import launch, pick, planner
from course_utils.checks.nb14_choosing_a_strategy import BUDGETS, groups, within_budget

SHAPES = ((2, 1, 3), (3, 2, 1), (1, 2, 3))  # dp, tp, pp


def meshes():
    """This rank's groups in torch's meshes."""
    made = [
        init_device_mesh(pick().type, (pp, dp, tp), mesh_dim_names=("pipeline", "data", "tensor"))
        for dp, tp, pp in SHAPES
    ]
    return [
        {axis: dist.get_process_group_ranks(mesh.get_group(axis)) for axis in mesh.mesh_dim_names}
        for mesh in made
    ]


def test_groups_are_those_of_torchs_meshes():
    for rank, found in enumerate(launch(meshes, ranks=6).results):
        assert found == [groups(rank, *shape) for shape in SHAPES]


def test_no_plan_within_the_budget_is_faster():
    for model, cluster, devices, batch, most in BUDGETS:
        able = [
            c
            for c in planner.plans(model, cluster, devices=devices, batch=batch)
            if c.total <= cluster.memory and sum(c.sent.values()) <= most
        ]
        best = min(able, key=lambda c: c.step)
        assert (
            planner.estimate(
                model, within_budget(model, cluster, devices, batch, most), cluster, batch=batch
            ).step
            == best.step
        )
