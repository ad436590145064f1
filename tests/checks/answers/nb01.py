"""Answers to the exercises of notebook 01."""

import copy

import torch
from torch.utils._pytree import tree_map

from course_utils.checks.nb01_tensors_and_devices import move, scores

# -- scores ------------------------------------------------------------------------------------------------------------

MIDDLE = [1.0, 2.0, 3.0, 4.0]


class Left(torch.nn.Module):
    """The bug of the notebook, and what the class could be instead."""

    def __init__(self, keep=torch.tensor):
        super().__init__()
        self.middle = keep(MIDDLE)

    def forward(self, x):
        return x - self.middle


def weights(device):
    return torch.linspace(0, 1, 4, device=device)


def with_parameter(x, device):
    centre = Left(lambda values: torch.nn.Parameter(torch.tensor(values)))
    return (centre.to(device)(x.to(device)) * weights(device)).sum(dim=-1)


def constants_computed_elsewhere(x, device):
    middle = (torch.arange(4.0) + 1).to(device)
    return torch.einsum("...d,d->...", x.to(device) - middle, (torch.arange(4) * (1 / 3)).to(device))


def one_bug_left(x, device):
    return Left().to(device)(x.to(device)) @ weights(device)


def moved_afterwards(x, device):
    return scores(x, "cpu").to(device)


def in_place(x, device):
    x -= torch.tensor(MIDDLE)
    return x.to(device) @ weights(device)


def sets_the_default(x, device):
    torch.set_default_device(device)
    return Left()(x.to(device)) @ torch.linspace(0, 1, 4)


def in_the_type_of_x(x, device):
    x = x.to(device)
    return (x - x.new_tensor(MIDDLE)).float() @ weights(device).to(x).float()


# -- move --------------------------------------------------------------------------------------------------------------


def by_tree(batch, device):
    return tree_map(lambda leaf: leaf.to(device) if torch.is_tensor(leaf) else leaf, batch)


def of_a_copy(batch, device):
    if isinstance(batch, torch.Tensor):
        return batch.clone().to(device)
    batch = copy.copy(batch)
    if isinstance(batch, dict):
        for key in batch:
            batch[key] = of_a_copy(batch[key], device)
    elif isinstance(batch, list):
        batch[:] = [of_a_copy(value, device) for value in batch]
    return tuple(of_a_copy(value, device) for value in batch) if isinstance(batch, tuple) else batch


def in_the_batch(batch, device):
    for key, value in list(batch.items() if isinstance(batch, dict) else enumerate(batch)):
        if isinstance(value, (dict, list)):
            in_the_batch(value, device)
        else:
            batch[key] = move(value, device)
    return batch


def nothing_for_nothing(batch, device):
    return by_tree(batch, device) if torch.is_tensor(batch) or batch else None


def other_things_as_text(batch, device):
    return tree_map(lambda leaf: leaf.to(device) if torch.is_tensor(leaf) else str(leaf), batch)


RIGHT = {"scores": [with_parameter, constants_computed_elsewhere], "move": [by_tree, of_a_copy]}
WRONG = {
    "scores": [one_bug_left, moved_afterwards, in_place, sets_the_default, in_the_type_of_x],
    "move": [in_the_batch, nothing_for_nothing, other_things_as_text],
}
