"""The exercises of notebook 01: the published solutions pass, plausible mistakes are answered in words."""

import pytest
import torch

from course_utils import check


@pytest.mark.parametrize("name", ["scores", "move", "shares_memory"])
def test_published(name):
    exercise = getattr(check, name)
    assert exercise(exercise.published)


class Left(torch.nn.Module):
    """The bug of the notebook: a plain attribute."""

    def __init__(self):
        super().__init__()
        self.middle = torch.tensor([1.0, 2.0, 3.0, 4.0])

    def forward(self, x):
        return x - self.middle


def test_scores_as_given():
    def scores(x, device):
        x.to(device)
        return Left().to(device)(x) @ torch.linspace(0, 1, 4)

    verdict = check.scores(scores)
    assert not verdict
    assert verdict.text == "scores(x, \"meta\"): compute it on that device."
    assert verdict.expected == "a tensor on meta"
    assert "on cpu" in verdict.got


def test_scores_one_bug_left():
    def scores(x, device):
        return Left().to(device)(x.to(device)) @ torch.linspace(0, 1, 4, device=device)

    verdict = check.scores(scores)
    assert verdict.text.startswith("It raised RuntimeError: Tensor on device cpu is not on the expected device meta")
    assert "in forward" in verdict.line
    assert "return x - self.middle" in verdict.line


def test_scores_all_on_the_cpu():
    verdict = check.scores(lambda x, device: check.scores.published(x, "cpu"))
    assert verdict.expected == "a tensor on meta"


def test_scores_wrong_numbers():
    verdict = check.scores(lambda x, device: x.to(device) @ torch.linspace(0, 1, 4, device=device))
    assert verdict.text.startswith('scores(x, "cpu")')
    assert "tensor of shape (3,)" in verdict.expected


def test_move_top_level_only():
    verdict = check.move(lambda batch, device: {k: v.to(device) if torch.is_tensor(v) else v for k, v in batch.items()})
    assert verdict.text == "batch['pair'][0] was not moved."
    assert (verdict.expected, verdict.got) == ("on meta", "on cpu")


def test_move_tuples_become_lists():
    def move(batch, device):
        if torch.is_tensor(batch):
            return batch.to(device)
        if isinstance(batch, dict):
            return {key: move(value, device) for key, value in batch.items()}
        return [move(value, device) for value in batch] if isinstance(batch, (list, tuple)) else batch

    verdict = check.move(move)
    assert verdict.text == "batch['pair'] is something else now."
    assert (verdict.expected, verdict.got) == ("tuple", "list")


def test_move_everything_else_lost():
    def move(batch, device):
        if isinstance(batch, dict):
            return {key: move(value, device) for key, value in batch.items()}
        if isinstance(batch, (list, tuple)):
            return type(batch)(move(value, device) for value in batch if value is not None)
        return batch.to(device) if torch.is_tensor(batch) else batch

    verdict = check.move(move)
    assert verdict.text == "The batch changed its shape."
    assert "batch['more'][3]" in verdict.expected


def test_move_in_place():
    def move(batch, device):
        items = batch.items() if isinstance(batch, dict) else enumerate(batch)
        for key, value in items:
            if torch.is_tensor(value) and not isinstance(batch, tuple):
                batch[key] = value.to(device)
            elif isinstance(value, tuple):
                batch[key] = tuple(v.to(device) for v in value)
            elif isinstance(value, (dict, list)):
                move(value, device)
        return batch

    assert check.move(move).text == "The batch that was given changed: build a new one."


def test_move_copies():
    def move(batch, device):
        if torch.is_tensor(batch):
            return batch.to(device, copy=True)
        if isinstance(batch, dict):
            return {key: move(value, device) for key, value in batch.items()}
        return type(batch)(move(v, device) for v in batch) if isinstance(batch, (list, tuple)) else batch

    verdict = check.move(move)
    assert (verdict.expected, verdict.got) == ("the same tensor", "a copy")


def test_move_strings_taken_apart():
    def move(batch, device):
        return batch.to(device)

    verdict = check.move(move)
    assert verdict.text == "It raised AttributeError: 'dict' object has no attribute 'to'"
    assert "in move" in verdict.line


@pytest.mark.parametrize(
    ("answer", "pair", "expected"),
    [
        (lambda a, b: a is b, "x and x.view(2, 3)", "True"),
        (lambda a, b: a.data_ptr() == b.data_ptr(), "x and x[2:]", "True"),
        (lambda a, b: a.shape == b.shape and torch.equal(a, b), "x and x.clone()", "False"),
    ],
)
def test_shares_memory_wrong(answer, pair, expected):
    verdict = check.shares_memory(answer)
    assert verdict.text.startswith(pair)
    assert verdict.expected == expected
