"""A solution of notebook 14 against torch's meshes on real ranks. (Answers have the fastest of all
plans for the other.)
"""

import pytest
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from course_utils import launch, pick
from course_utils.checks.nb14_choosing_a_strategy import groups


def of_a_mesh(dp, tp, pp):
    """This rank's groups in torch's mesh."""
    axes = ("pipeline", "data", "tensor")
    mesh = init_device_mesh(pick().type, (pp, dp, tp), mesh_dim_names=axes)
    return {axis: dist.get_process_group_ranks(mesh.get_group(axis)) for axis in axes}


@pytest.mark.parametrize("shape", [(2, 1, 3), (3, 2, 1), (1, 2, 3)])  # dp, tp, pp
def test_groups_are_those_of_torchs_meshes(shape):
    for rank, found in enumerate(launch(of_a_mesh, *shape, ranks=6).results):
        assert found == groups(rank, *shape)
