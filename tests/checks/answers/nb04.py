"""Answers to the exercises of notebook 04."""

import torch
from torch.utils import _pytree

from course_utils.checks.nb04_dataparallel import scatter

# -- scatter -----------------------------------------------------------------------------------------------------------


def by_index(batch, devices):
    """Number of parts first, then every part by itself."""

    def parts(value):
        if torch.is_tensor(value):
            return len(value.chunk(len(devices)))
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, tuple) else ()
        return min(map(parts, inner), default=len(devices))

    def part(value, i):
        if torch.is_tensor(value):
            return value.chunk(len(devices))[i].to(devices[i])
        if isinstance(value, dict):
            return {key: part(inner, i) for key, inner in value.items()}
        return tuple(part(inner, i) for inner in value) if isinstance(value, tuple) else value

    return tuple(part(batch, i) for i in range(parts(batch)))


def by_leaf(batch, devices):
    leaves, spec = _pytree.tree_flatten(batch, is_leaf=lambda value: not isinstance(value, (tuple, dict)))
    columns = [
        [part.to(d) for part, d in zip(leaf.split(-(-len(leaf) // len(devices))), devices, strict=False)]
        if torch.is_tensor(leaf) else [leaf] * len(devices) for leaf in leaves
    ]
    return [_pytree.tree_unflatten(row, spec) for row in zip(*columns, strict=False)]


def of_tensors(cut):
    """The solution with another way to cut a tensor."""

    def scatter(batch, devices):
        if torch.is_tensor(batch):
            return cut(batch, devices)
        if isinstance(batch, dict):
            return [dict(zip(batch, row, strict=True)) for row in scatter(tuple(batch.values()), devices)]
        if isinstance(batch, tuple):
            return list(zip(*(scatter(value, devices) for value in batch), strict=False))
        return [batch] * len(devices)

    return scatter


def detached(batch, devices):
    return [part.detach().requires_grad_(batch.requires_grad) for part in scatter(batch, devices)]


def lists_too(batch, devices):
    if isinstance(batch, list):
        return [list(row) for row in zip(*(lists_too(value, devices) for value in batch), strict=False)]
    return scatter(batch, devices)


def in_place(batch, devices):
    if isinstance(batch, dict):
        for key in batch:
            batch[key] = in_place(batch[key], devices)
        return [dict(zip(batch, row, strict=True)) for row in zip(*batch.values(), strict=False)]
    return scatter(batch, devices)


# -- gather ------------------------------------------------------------------------------------------------------------


def of_outputs(join):
    """The solution with another way to join tensors."""

    def gather(outputs, device):
        if isinstance(outputs[0], dict):
            columns = zip(*(output.values() for output in outputs), strict=True)
            return {key: gather(list(column), device) for key, column in zip(outputs[0], columns, strict=True)}
        return join([output if output.dim() else output.reshape(1) for output in outputs], device)

    return gather


def into_an_empty_one(outputs, device):
    outputs = [output.to(device) for output in outputs]
    found = torch.zeros(sum(map(len, outputs)), *outputs[0].shape[1:], dtype=outputs[0].dtype, device=device)
    start = 0
    for output in outputs:
        found[start : start + len(output)] = output
        start += len(output)
    return found


def joined(outputs, device):
    return torch.cat([output.to(device) for output in outputs])


def first_one_changed(outputs, device):
    for key in outputs[0] if isinstance(outputs[0], dict) else ():
        outputs[0][key] = first_one_changed([output[key] for output in outputs], device)
    return outputs[0] if isinstance(outputs[0], dict) else of_outputs(joined)(outputs, device)


RIGHT = {
    "scatter": [by_index, by_leaf],
    "gather": [of_outputs(into_an_empty_one), of_outputs(lambda o, d: torch.concatenate([x.to(d) for x in o], dim=0))],
}
WRONG = {
    "scatter": [
        of_tensors(detached), lists_too, in_place,
        of_tensors(lambda batch, devices: [part.to(devices.pop(0)) for part in batch.chunk(len(devices))]),
        of_tensors(lambda batch, devices: list(batch.chunk(len(devices)))),
        of_tensors(lambda batch, devices: [batch[i :: len(devices)].to(d) for i, d in enumerate(devices)]),
    ],
    "gather": [
        of_outputs(lambda o, d: torch.cat(o).to(d)),  # fails where the parts lie on several devices
        of_outputs(lambda o, d: joined([x.detach() for x in o], d)), first_one_changed,
        of_outputs(lambda o, d: joined(o[::-1], d)), of_outputs(lambda o, d: joined(o, d).float()),
        of_outputs(lambda o, d: joined([x.reshape(-1, x.shape[-1]) for x in o], d)),
    ],
}
