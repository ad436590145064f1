"""Answers to the exercises of notebook 04."""

from collections import OrderedDict

import torch
from torch.utils import _pytree

from course_utils.checks.nb04_dataparallel import scatter


def by_leaf(batch, devices):
    leaves, spec = _pytree.tree_flatten(batch)
    columns = [
        by_rows(leaf, devices) if torch.is_tensor(leaf) else [leaf] * len(devices)
        for leaf in leaves
    ]
    return tuple(_pytree.tree_unflatten(row, spec) for row in zip(*columns, strict=False))


def of_tensors(cut, containers=(tuple, list, dict)):
    """A scatter with its own way to cut a tensor; these containers are taken apart."""

    def scatter(batch, devices):
        if isinstance(batch, containers):
            values = batch.values() if isinstance(batch, dict) else batch
            rows = zip(*(scatter(value, devices) for value in values), strict=False)
            return [
                dict(zip(batch, row, strict=True)) if isinstance(batch, dict) else type(batch)(row)
                for row in rows
            ]
        return cut(batch, devices) if torch.is_tensor(batch) else [batch] * len(devices)

    return scatter


def by_rows(batch, devices):
    most = (len(batch) + len(devices) - 1) // len(devices)
    return [
        batch[start : start + most].to(devices[start // most])
        for start in range(0, len(batch), most)
    ]


def numbers_are_rows(batch, devices):
    """A container without tensors is cut, too."""
    if isinstance(batch, dict):
        rows = zip(*(numbers_are_rows(value, devices) for value in batch.values()), strict=False)
        return [dict(zip(batch, row, strict=True)) for row in rows]
    if isinstance(batch, (list, tuple)) and not any(map(torch.is_tensor, batch)):
        most = -(-len(batch) // len(devices))
        return [batch[i * most : (i + 1) * most] for i in range(len(devices))]
    return scatter(batch, devices)


def in_turn(batch, devices):
    parts = batch.chunk(len(devices))
    return [part.to((devices.append(devices[0]), devices.pop(0))[1]) for part in parts]


def in_place(batch, devices):
    parts = scatter(batch, devices)
    if isinstance(batch, dict):
        batch.clear()
    return parts


def not_if(few, otherwise):
    def short(batch, devices):
        return otherwise(batch, devices) if few(batch, devices) else by_rows(batch, devices)

    return of_tensors(short)


def of_outputs(join, kind=dict):
    """A gather with its own way to join tensors, and its own kind of dict."""

    def gather(outputs, device):
        if isinstance(outputs[0], dict):
            keys = outputs[0]
            return kind((key, gather([output[key] for output in outputs], device)) for key in keys)
        return join([output if output.dim() else output.reshape(1) for output in outputs], device)

    return gather


def into_an_empty_one(outputs, device):
    found = torch.zeros(
        sum(map(len, outputs)), *outputs[0].shape[1:], dtype=outputs[0].dtype, device=device
    )
    start = 0
    for output in outputs:
        found[start : start + len(output)] = output.to(device)
        start += len(output)
    return found


def joined(outputs, device):
    return torch.cat([output.to(device) for output in outputs])


def by_name(found):
    return {str(key): by_name(one) for key, one in found.items()} if type(found) is dict else found


def one_is_returned(outputs, device):
    return outputs[0] if len(outputs) == 1 else of_outputs(joined)(outputs, device)


def by_place(outputs, device):
    if isinstance(outputs[0], dict):
        columns = zip(*(output.values() for output in outputs), strict=True)
        return {
            key: by_place(column, device) for key, column in zip(outputs[0], columns, strict=True)
        }
    return of_outputs(joined)(outputs, device)


def one_number_is_a_loss(outputs, device):
    flat = [output.reshape(1) if output.numel() == 1 else output for output in outputs]
    return torch.cat([output.to(device) for output in flat])


def first_one_changed(outputs, device):
    found = of_outputs(joined)(outputs, device)
    if isinstance(found, dict):
        outputs[0].update(found)
    return found


def in_order(key):
    return of_outputs(lambda outputs, device: joined(sorted(outputs, key=key), device))


RIGHT = {
    "scatter": [by_leaf, of_tensors(by_rows)],
    "gather": [of_outputs(into_an_empty_one), of_outputs(joined, OrderedDict)],
}
WRONG = {
    "scatter": [
        of_tensors(
            lambda batch, devices: [
                part.detach().requires_grad_(batch.requires_grad)
                for part in by_rows(batch, devices)
            ]
        ),
        of_tensors(by_rows, (tuple, dict)),
        in_place,
        of_tensors(in_turn),
        numbers_are_rows,
        not_if(lambda batch, devices: len(devices) == 1, lambda batch, devices: [batch]),
        not_if(
            lambda batch, devices: len(batch) < len(devices),
            lambda batch, devices: [batch.to(devices[0])],
        ),
        not_if(
            lambda batch, devices: len(batch) == 1,
            lambda batch, devices: [batch[0].to(devices[0])],
        ),
    ],
    "gather": [
        # fails where they lie on several devices
        of_outputs(lambda outputs, device: torch.cat(outputs).to(device)),
        of_outputs(lambda outputs, device: joined([output.detach() for output in outputs], device)),
        of_outputs(lambda outputs, device: joined(outputs, device).float()),
        first_one_changed,
        one_is_returned,
        by_place,
        of_outputs(one_number_is_a_loss),
        in_order(len),
        in_order(lambda output: -len(output)),
        in_order(lambda output: output.flatten()[0].item()),
        lambda outputs, device: of_outputs(joined)(outputs[:4], device),
        lambda outputs, device: by_name(of_outputs(joined)(outputs, device)),
    ],
}
