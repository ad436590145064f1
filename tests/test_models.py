import pytest
import torch

from course_utils.errors import CourseError
from course_utils.models import LinearRegression, mlp


def test_mlp_is_equal_everywhere_and_leaves_the_global_generator_alone():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one = mlp()
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(2)
    two = mlp()
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert not torch.equal(one[0].weight, mlp(seed=1)[0].weight)


def test_mlp_is_initialised_as_torch_does():
    ours, theirs = mlp(256)[2], torch.nn.Linear(256, 256)
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert a.std().item() == pytest.approx(b.std().item(), rel=0.15)
    assert mlp(32)(torch.zeros(5, 64)).shape == (5, 10)


@pytest.mark.parametrize("width", [0, -1, 2.5, "64", True, None])
def test_a_width_that_is_none(width):
    with pytest.raises(CourseError, match="whole number from 1"):
        mlp(width)


def test_linear_regression():
    assert LinearRegression(2, 5)(torch.zeros(3, 2)).shape == (3, 5)
