"""A solution of notebook 14 against torch's meshes on real ranks. (Answers have the fastest of all
plans for the other.)
"""

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from course_utils import launch, pick
from course_utils.checks.nb14_choosing_a_strategy import groups

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
