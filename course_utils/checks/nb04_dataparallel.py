"""Exercises of notebook 04: scatter and gather, as `nn.DataParallel` needs them."""

import torch
from torch.utils._pytree import tree_map

from .compare import kind, kinds, show
from .exercise import exercise


def scatter(batch, devices):
    """One part of `batch` for each device that gets one.

    Tensors are cut by rows, containers by value, the rest stays as it is.
    """
    if isinstance(batch, torch.Tensor):
        chunks = batch.chunk(len(devices))
        return [part.to(device) for part, device in zip(chunks, devices, strict=False)]
    if isinstance(batch, dict):
        parts = scatter(tuple(batch.values()), devices)
        return [dict(zip(batch, values, strict=True)) for values in parts]
    if isinstance(batch, (tuple, list)):
        columns = [scatter(value, devices) for value in batch]
        return [type(batch)(part) for part in zip(*columns, strict=False)]
    return [batch] * len(devices)


def first_level(batch, devices):
    if isinstance(batch, dict):
        parts = first_level(tuple(batch.values()), devices)
        return [dict(zip(batch, values, strict=True)) for values in parts]
    if isinstance(batch, (tuple, list)):
        columns = [
            scatter(value, devices) if torch.is_tensor(value) else [value] * len(devices)
            for value in batch
        ]
        return [type(batch)(part) for part in zip(*columns, strict=False)]
    return scatter(batch, devices)


@exercise(
    scatter,
    tol=0,
    mistakes={
        "a container inside another one has to be cut, too: scatter can call itself for each "
        "value": first_level,
    },
)
def _(answer):
    torch.manual_seed(1)
    x = torch.randn(10, 2)
    y = torch.randperm(10)
    cpu = [torch.device("cpu")] * 4
    other = {
        "x": x,
        "off": False,
        "name": "digits",
        "none": None,
        "zero": 0,
        "empty": "",
        3: "three",
        "list": [x],
        "sizes": [28, 28, 3],
        "names": ("a", "b"),
        "range": {"from": -1.0, "to": 1.0},
    }
    for words, batch, devices in (
        ("a tensor of 10 rows, 4 devices", x, cpu),
        ("[rows, labels, 1], 3 devices", [x, y, 1], cpu[:3]),
        ('a tensor of 10 rows, ["meta"]', x, ["meta"]),
        ('2 labels, ["cpu", "meta", "cpu", "cpu"]', y[:2], ["cpu", "meta", "cpu", "cpu"]),
        ("a tensor of 1 row, 4 devices", x[:1], cpu),
        (
            "{'scale': 0.5, 'x': 5 images}, 4 devices",
            {"scale": 0.5, "x": torch.randn(5, 3, 4)},
            cpu,
        ),
        (
            "(rows, {'y': labels}, (labels, 0, None)), 3 devices",
            (x, {"y": y}, (y, 0, None)),
            cpu[:3],
        ),
        (
            "{'inner': {'y': (labels, [labels])}, 'x': rows}, 4 devices",
            {"inner": {"y": (y, [y])}, "x": x},
            cpu,
        ),
        (
            'a dict with texts, None, and lists with and without rows, ["cpu", "meta"]',
            other,
            ["cpu", "meta"],
        ),
    ):
        given = list(devices)
        parts = answer(batch, given)
        if parts is not None:
            parts = list(parts)
        yield f"scatter({words})", parts
        yield f"scatter({words}): what the parts consist of", kinds(parts)
        yield f"scatter({words}): the batch and the devices afterwards", [batch, given]
    v, w = (torch.ones(4, requires_grad=True) for _ in range(2))
    parts = list(answer({"w": w, "pair": (v, 2)}, ["cpu"] * 2))
    yield "scatter of a dict with tensors that need a gradient", parts
    sums = [i * (part["w"] + part["pair"][0]).sum() for i, part in enumerate(parts, 1)]
    sum(sums).backward()
    yield "the gradients that come back to them", [w.grad, v.grad]
    yield (
        "",
        "Tensors by rows, tuples, lists and dicts value by value, everything else to every device.",
    )


def gather(outputs, device):
    """The replicas' outputs as one, on `device`: rows joined, dicts by key, numbers as a vector."""
    if isinstance(outputs[0], dict):
        return {key: gather([output[key] for output in outputs], device) for key in outputs[0]}
    return torch.cat([torch.atleast_1d(output.to(device)) for output in outputs])


def mean_of_losses(outputs, device):
    if torch.is_tensor(outputs[0]) and outputs[0].dim() == 0:
        return torch.stack(outputs).mean()
    return gather(outputs, device)


@exercise(
    gather,
    tol=0,
    mistakes={
        "the mean of the losses, where a vector with one loss for each replica is asked "
        "for": mean_of_losses,
    },
)
def _(answer):
    torch.manual_seed(1)
    parts = list(torch.randn(12, 3, 2).split((3, 1, 4, 2, 2)))
    losses = list(torch.tensor([0.5, -2.0, 1.25, 0.0, 3.0]))
    x, y = torch.ones(2, 2), torch.zeros(2, 2)
    for words, outputs, device in (
        ("parts of 3, 1, 4, 2 and 2 images", parts, "cpu"),
        ('parts on "meta" and on the CPU, device "meta"', [parts[0].to("meta"), parts[1]], "meta"),
        ('one part, device "meta"', parts[:1], "meta"),
        ("one loss without a dimension", losses[:1], "cpu"),
        ("parts of one row and one column", list(torch.randn(3, 1).chunk(3)), "cpu"),
        ("dicts with their keys in another order", [{"x": x, "y": y}, {"y": y, "x": x}], "cpu"),
        ("labels, int64", list(torch.randperm(10).chunk(2)), "cpu"),
        ("five losses without a dimension", losses, "cpu"),
        (
            "a dict in a dict, and losses",
            [{"all": {3: part}, "loss": one} for part, one in zip(parts, losses, strict=True)],
            torch.device("cpu"),
        ),
        ('dicts, device "meta"', [{"y": part} for part in parts], "meta"),
    ):
        found = answer(outputs, device)
        yield f"gather({words})", found
        consists_of = show(tree_map(kind, found))  # dicts of any type
        yield f"gather({words}): what it consists of", consists_of
        yield f"gather({words}): the outputs afterwards", outputs
    shapes = 2 * ((), (), (2, 3), (1, 3))
    leaves = [torch.ones(shape, requires_grad=True) for shape in shapes]
    inner = [{"loss": leaves[i], "rows": leaves[i + 2]} for i in (4, 5)]
    found = [
        answer(leaves[:2], "cpu"),
        answer(leaves[2:4], "cpu"),
        *answer(inner, "cpu").values(),
    ]
    yield "gather of losses, rows and dicts that need a gradient", found
    sum(vector.cumsum(0).sum() for vector in found).backward()  # each row has another gradient
    yield "the gradients that come back to them", [leaf.grad for leaf in leaves]
    yield (
        "",
        "A loss for each replica comes back as a vector: weigh each by its rows before "
        "`backward()`.",
    )
