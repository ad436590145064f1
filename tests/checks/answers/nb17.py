"""Answers to the exercise of notebook 17; they need torch_xla."""

from course_utils.checks.nb17_spmd import shard_mlp

X, UP, BIAS, DOWN = ("data", None), ("model", None), ("model",), (None, "model")


def marked(x=X, up=UP, bias=BIAS, down=DOWN, last=None):
    """Annotates what is not None."""

    def shard_mlp(mlp, x_, mesh):
        import torch_xla.distributed.spmd as xs

        tensors = (mlp.down.weight, mlp.down.bias, mlp.up.bias, mlp.up.weight, x_)
        for tensor, axes in zip(tensors, (down, last, bias, up, x), strict=True):
            if axes is not None:
                xs.mark_sharding(tensor, mesh, axes)

    return shard_mlp


def by_spec(mlp, x, mesh):
    import torch_xla.distributed.spmd as xs

    xs.set_global_mesh(mesh)
    for tensor, axes in ((x, X), (mlp.up.weight, UP), (mlp.up.bias, BIAS), (mlp.down.weight, DOWN)):
        xs.ShardingSpec(xs.get_global_mesh(), axes).apply(tensor)


def frozen(mlp, x, mesh):
    shard_mlp(mlp, x, mesh)
    mlp.requires_grad_(False)


def a_mesh_of_its_own(mlp, x, mesh):
    import numpy as np
    import torch_xla.distributed.spmd as xs

    shard_mlp(mlp, x, xs.Mesh(np.arange(8), (2, 4), ("data", "model")))


RIGHT = {"shard_mlp": [by_spec, marked((0, None), (1, None), (1,), (None, 1), (None,))]}
WRONG = {
    "shard_mlp": [
        # as they are multiplied
        a_mesh_of_its_own,
        frozen,
        marked(x=None),
        marked(("model", None), ("data", None), ("data",), (None, "data")),
    ]
}
NEEDS_XLA = {*RIGHT}
