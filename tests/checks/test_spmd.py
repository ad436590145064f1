"""The exercises on SPMD: published solutions pass, plausible wrong answers fail in words."""

from __future__ import annotations

import pytest

pytest.importorskip("torch_xla")


from course_utils import check, xla
from tests.checks.rounded import rounded


@pytest.fixture(autouse=True, scope="module")
def setup():
    xla.setup()


@pytest.mark.parametrize("name", ["shard_batch", "shard_mlp"])
def test_solution(name):
    exercise = getattr(check, name)
    verdict = exercise(exercise.published)
    assert verdict, str(verdict)


def marked(*marks):
    """Annotates by name: (tensor, names of the mesh's axes)."""

    def annotate(named, mesh):
        import torch_xla.distributed.spmd as xs

        for name, axes in marks:
            xs.mark_sharding(named[name], mesh, axes)

    return annotate


def batch(*marks):
    annotate = marked(*marks)

    def shard_batch(x, y, mesh):
        annotate({"x": x, "y": y}, mesh)

    return shard_batch


def mlp(*marks):
    annotate = marked(*marks)

    def shard_mlp(mlp, x, mesh):
        annotate({"x": x} | dict(mlp.named_parameters()), mesh)

    return shard_mlp


def backwards(x, y, mesh):
    """Another mesh than the one given."""
    import torch_xla.distributed.spmd as xs

    other = xs.Mesh(mesh.device_ids[::-1], (len(mesh.device_ids),), ("data",))
    xs.mark_sharding(x, other, ("data", None))
    xs.mark_sharding(y, other, ("data",))


def on_two(x, y, mesh):
    import torch_xla.distributed.spmd as xs

    other = xs.Mesh(mesh.device_ids, (2, len(mesh.device_ids) // 2), ("data", "rest"))
    xs.mark_sharding(x, other, ("data", None))
    xs.mark_sharding(y, other, ("data",))


def by_axis_number(x, y, mesh):
    import torch_xla.distributed.spmd as xs

    xs.mark_sharding(x, mesh, (0, None))
    xs.mark_sharding(y, mesh, (0,))


def by_names(x, y, mesh):
    import torch_xla.distributed.spmd as xs

    for tensor in (x, y):
        xs.mark_sharding(tensor, mesh, mesh.axis_names + (None,) * (tensor.ndim - 1))


def by_spec(x, y, mesh):
    import torch_xla.distributed.spmd as xs

    xs.ShardingSpec(mesh, ("data", None)).apply(x)
    xs.ShardingSpec(mesh, ("data",)).apply(y)


def with_the_global_mesh(x, y, mesh):
    import torch_xla.distributed.spmd as xs

    xs.set_global_mesh(mesh)
    xs.mark_sharding(x, xs.get_global_mesh(), ("data", None))
    xs.mark_sharding(y, xs.get_global_mesh(), ("data",))


def tuples_of_names(x, y, mesh):
    import torch_xla.distributed.spmd as xs

    xs.mark_sharding(x, mesh, (("data",), None))
    xs.mark_sharding(y, mesh, (("data",),))


@pytest.mark.parametrize("answer", [by_axis_number, by_names, by_spec, with_the_global_mesh, tuples_of_names])
def test_shard_batch_in_other_styles(answer):
    verdict = check.shard_batch(answer)
    assert verdict, str(verdict)


@pytest.mark.parametrize(
    ("answer", "what", "expected", "got"),
    [
        (batch(("x", ("data", None))), "y (32,)", "device 0 holds [0:4]", "device 0 holds [0:32]"),
        (batch(("y", ("data",))), "x (32, 16)", "device 0 holds [0:4, 0:16]", "device 0 holds [0:32, 0:16]"),
        (batch(("x", (None, "data")), ("y", ("data",))), "x (32, 16)", "device 0 holds [0:4, 0:16]",
         "device 0 holds [0:32, 0:2]"),
        (backwards, "x (32, 16)", "device 0 holds [0:4, 0:16]", "device 0 holds [28:32, 0:16]"),
        (on_two, "x (32, 16)", "device 0 holds [0:4, 0:16]", "device 0 holds [0:16, 0:16]"),
    ],
    ids=["labels whole", "x whole", "columns", "backwards", "on two"],
)
def test_shard_batch_wrong(answer, what, expected, got):
    verdict = check.shard_batch(answer)
    assert verdict.state == "wrong"
    assert what in verdict.text
    assert (verdict.expected, verdict.got) == (expected, got)


def test_shard_batch_that_raises_shows_the_line():
    def shard_batch(x, y, mesh):
        import torch_xla.distributed.spmd as xs

        xs.mark_sharding(y, mesh, ("data", None))

    verdict = check.shard_batch(shard_batch)
    assert verdict.state == "wrong"
    assert "Partition spec length (2) should be equal to the input rank (1)" in verdict.text
    assert 'xs.mark_sharding(y, mesh, ("data", None))' in verdict.text
    assert "course_utils" not in str(verdict)


UP, BIAS, DOWN = ("up.weight", ("model", None)), ("up.bias", ("model",)), ("down.weight", (None, "model"))
X = ("x", ("data", None))
SWAPPED = {"data": "model", "model": "data", None: None}


def swapped(*marks):
    return mlp(*((name, tuple(SWAPPED[axis] for axis in axes)) for name, axes in marks))


def one_axis(*marks):
    return mlp(*((name, tuple(axis and "model" for axis in axes)) for name, axes in marks))


def frozen(network, x, mesh):
    network.up.weight.requires_grad_(False)
    mlp(X, UP, BIAS, DOWN)(network, x, mesh)


def scaled(network, x, mesh):
    network.up.weight.data.mul_(2)
    mlp(X, UP, BIAS, DOWN)(network, x, mesh)


@pytest.mark.parametrize(
    ("answer", "what", "got"),
    [
        (mlp(UP, BIAS, DOWN), "x (32, 16)", "device 0 holds [0:32, 0:16]"),
        (mlp(X, UP, DOWN), "up.bias (64,)", "device 0 holds [0:64]"),
        (mlp(X, ("up.weight", (None, "model")), BIAS, DOWN), "up.weight (64, 16)", "device 0 holds [0:64, 0:4]"),
        (mlp(X, UP, BIAS, DOWN, ("down.bias", ("model",))), "down.bias (16,)", "device 0 holds [0:4]"),
        (mlp(X, ("up.weight", ("data", "model"))), "up.weight", "device 0 holds [0:32, 0:4]"),
        (swapped(X, UP, BIAS, DOWN), "x (32, 16)", "device 0 holds [0:8, 0:16]"),
        (one_axis(X, UP, BIAS, DOWN), "x (32, 16)", "device 0 holds [0:8, 0:16]"),
        (frozen, "up.weight gets no gradient", "none"),
        (scaled, "the network's output", "tensor"),
    ],
    ids=["batch whole", "bias whole", "up by inputs", "last bias cut", "both dims", "axes swapped", "one axis",
         "frozen", "changed"],
)
def test_shard_mlp_wrong(answer, what, got):
    verdict = check.shard_mlp(answer)
    assert verdict.state == "wrong"
    assert what in verdict.text
    assert got in verdict.got
    assert "course_utils" not in str(verdict)


def other_order(mlp, x, mesh):
    marked(DOWN, BIAS, UP, X)({"x": x} | dict(mlp.named_parameters()), mesh)


def with_whole_marked(mlp, x, mesh):
    marked(X, UP, BIAS, DOWN, ("down.bias", (None,)))({"x": x} | dict(mlp.named_parameters()), mesh)


def by_number(mlp, x, mesh):
    marked(("x", (0, None)), ("up.weight", (1, None)), ("up.bias", (1,)), ("down.weight", (None, 1)))(
        {"x": x} | dict(mlp.named_parameters()), mesh
    )


def in_a_loop(mlp, x, mesh):
    import torch_xla.distributed.spmd as xs

    specs = {"up.weight": ("model", None), "up.bias": ("model",), "down.weight": (None, "model")}
    for name, parameter in mlp.named_parameters():
        if name in specs:
            xs.mark_sharding(parameter, mesh, specs[name])
    xs.mark_sharding(x, mesh, ("data", None))


def by_data(mlp, x, mesh):
    marked(X, UP, BIAS, DOWN)({"x": x} | {name: p.data for name, p in mlp.named_parameters()}, mesh)


@pytest.mark.parametrize("answer", [other_order, with_whole_marked, by_number, in_a_loop, by_data])
def test_shard_mlp_in_other_styles(answer):
    verdict = check.shard_mlp(answer)
    assert verdict, str(verdict)


@pytest.mark.parametrize("name", ["shard_batch", "shard_mlp"])
def test_products_rounded_as_on_a_tpu(name, monkeypatch):
    exercise = getattr(check, name)
    assert exercise(rounded(exercise.published)).state == "wrong"
    monkeypatch.setattr(xla, "tolerance", lambda fine=1e-5: 1000 * fine)
    verdict = exercise(rounded(exercise.published))
    assert verdict, str(verdict)
