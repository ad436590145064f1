"""The published solutions of notebook 01 against arithmetic by hand and torch's own walk through a
nested batch.
"""

from collections import namedtuple

import torch
from torch.utils._pytree import tree_map

from course_utils.checks.nb01_tensors_and_devices import move, scores


def test_scores_are_those_of_the_formula():
    x = torch.tensor([[1, 2, 3, 4], [2, 2, 3, 7]])
    assert scores(x, "cpu").tolist() == [0, 3]  # (x - [1, 2, 3, 4]) · [0, 1/3, 2/3, 1]
    assert scores(x, "meta").device.type == "meta"


def test_move_is_torchs_tree_map():
    Pair = namedtuple("Pair", "x y")
    batch = {"a": [Pair(torch.ones(2), "text"), ()], "b": (torch.ones(1, dtype=torch.int8), None)}
    assert str(move(batch, "meta")) == str(
        tree_map(lambda v: v.to("meta") if torch.is_tensor(v) else v, batch)
    )
