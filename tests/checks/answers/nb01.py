"""Answers to the exercises of notebook 01."""

import functools

import torch
from torch.utils._pytree import tree_map

from course_utils.checks.nb01_tensors_and_devices import first_level, move

MIDDLE = [1.0, 2.0, 3.0, 4.0]


def weights(device):
    return torch.linspace(0, 1, 4, device=device)


def with_parameter(x, device):
    middle = torch.nn.Parameter(torch.tensor(MIDDLE, device=device))
    return ((x.to(device) - middle) * weights(device)).sum(dim=-1)


def constants_computed_elsewhere(x, device):
    middle = (torch.arange(4.0) + 1).to(device)
    return torch.einsum(
        "...d,d->...", x.to(device) - middle, (torch.arange(4) * (1 / 3)).to(device)
    )


def one_bug_left(x, device):
    return (x.to(device) - torch.tensor(MIDDLE)) @ weights(device)


def in_place(x, device):
    x -= torch.tensor(MIDDLE)
    return x.to(device) @ weights(device)


def sets_the_default(x, device):
    torch.set_default_device(device)
    return one_bug_left(x, device)


def sets_the_default_back_by_name(x, device):
    torch.set_default_device(device)
    found = with_parameter(x, device)
    torch.set_default_device("cpu")
    return found


def by_numbers(x, device):
    rows = x.reshape(-1, 4).tolist()
    scores = [(b - 2) / 3 + (c - 3) * 2 / 3 + (d - 4) for _, b, c, d in rows]
    return torch.tensor(scores, device=device).reshape(x.shape[:-1])


def in_the_type_of_x(x, device):
    x = x.to(device)
    return (x - x.new_tensor(MIDDLE)).float() @ weights(device).to(x).float()


def row_by_row(x, device):
    rows = [with_parameter(row, device) for row in x.reshape(-1, 4)]
    return torch.stack(rows).reshape(x.shape[:-1])


def of_changed(change, done=lambda y: y):
    return lambda x, device: done(with_parameter(change(x), device))


def leaves(change, setting):
    def scores(x, device):
        change(setting)
        return with_parameter(x, device).detach()

    return scores


def by_tree(batch, device, dtype_of=lambda tensor: tensor.dtype, others=lambda leaf: leaf):
    def moved(leaf):
        return leaf.to(device, dtype_of(leaf)) if torch.is_tensor(leaf) else others(leaf)

    return tree_map(moved, batch)


def by_kind(batch, device):
    kinds = {
        torch.Tensor: lambda tensor: tensor.to(device),
        dict: lambda batch: dict(zip(batch, by_kind([*batch.values()], device), strict=True)),
        list: lambda batch: [by_kind(value, device) for value in batch],
        tuple: lambda batch: tuple(by_kind(value, device) for value in batch),
    }
    return next((change(batch) for kind, change in kinds.items() if isinstance(batch, kind)), batch)


def floats_to_float32(tensor):
    return torch.float32 if tensor.is_floating_point() else tensor.dtype


def in_the_batch(batch, device):
    for key, value in list(batch.items() if isinstance(batch, dict) else enumerate(batch)):
        if isinstance(value, (dict, list)):
            in_the_batch(value, device)
        else:
            batch[key] = move(value, device)
    return batch


def not_in_dicts_of_dicts(batch, device):
    """A dict in a dict is taken apart, and no dict in that one."""
    if not isinstance(batch, dict):
        return by_tree(batch, device)
    return {
        key: first_level(value, device) if isinstance(value, dict) else move(value, device)
        for key, value in batch.items()
    }


def tuples_in_tuples_flat(batch, device):
    if isinstance(batch, dict):
        return {key: tuples_in_tuples_flat(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple):
        parts = [tuples_in_tuples_flat(value, device) for value in batch]
        return tuple(one for part in parts for one in (part if isinstance(part, tuple) else [part]))
    return by_tree(batch, device)


def a_key_for_each_object(batch, device):
    if not isinstance(batch, dict):
        return by_tree(batch, device)
    keys = {id(value): key for key, value in batch.items()}
    return {key: a_key_for_each_object(batch[key], device) for key in keys.values()}


def nothing_for_nothing(batch, device):
    return by_tree(batch, device) if torch.is_tensor(batch) or batch else None


def by_the_first_value(batch, device):
    """A container whose first value is no tensor stays where it is."""
    values = list(batch.values()) if isinstance(batch, dict) else batch
    if isinstance(values, (tuple, list)) and values and isinstance(values[0], (str, int)):
        return batch
    return by_tree(batch, device)


@functools.singledispatch
def by_dispatch(batch, device):
    return batch


@by_dispatch.register
def _(batch: torch.Tensor, device):
    return batch.to(device)


@by_dispatch.register
def _(batch: dict, device):
    return {key: by_dispatch(value, device) for key, value in batch.items()}


@by_dispatch.register(list)
@by_dispatch.register(tuple)
def _(batch, device):
    return type(batch)(by_dispatch(value, device) for value in batch)


def one_for_each_shape(batch, device):
    moved = {}
    return tree_map(
        lambda leaf: (
            moved.setdefault((leaf.shape, leaf.dtype), leaf.to(device))
            if torch.is_tensor(leaf)
            else leaf
        ),
        batch,
    )


RIGHT = {
    "scores": [with_parameter, constants_computed_elsewhere, row_by_row],
    "move": [by_tree, by_kind, by_dispatch],
}
WRONG = {
    "scores": [
        one_bug_left,
        in_place,
        sets_the_default,
        sets_the_default_back_by_name,
        by_numbers,
        in_the_type_of_x,
        leaves(torch.set_grad_enabled, False),
        leaves(torch.set_float32_matmul_precision, "medium"),
        leaves(torch.autograd.set_detect_anomaly, True),
        leaves(torch.use_deterministic_algorithms, True),
        of_changed(lambda x: x.view(-1, 4).view(x.shape)),
        of_changed(torch.clone, torch.squeeze),
        of_changed(torch.Tensor.detach_),
        of_changed(torch.clone, lambda y: y.transpose(0, 1) if y.dim() == 3 else y),
    ],
    "move": [
        in_the_batch,
        not_in_dicts_of_dicts,
        nothing_for_nothing,
        tuples_in_tuples_flat,
        a_key_for_each_object,
        by_the_first_value,
        one_for_each_shape,
        lambda *given: tree_map(lambda t: t.squeeze(0) if torch.is_tensor(t) else t, move(*given)),
        lambda *given: by_tree(*given, others=str),
        lambda *given: by_tree(*given, dtype_of=floats_to_float32),
    ],
}
