import pytest
import torch

from course_utils.data import digits
from course_utils.errors import CourseError


def test_shapes_ranges_and_strata():
    train, test = digits()
    x, y = train.tensors
    assert x.shape == (1437, 64)
    assert x.dtype == torch.float32
    assert (x.min(), x.max()) == (0, 1)
    assert y.shape == (1437,)
    assert y.dtype == torch.int64
    assert len(test) == 360
    assert all(35 <= n <= 37 for n in torch.bincount(test.tensors[1], minlength=10))


def test_same_seed_same_split():
    assert torch.equal(digits().train.tensors[0], digits().train.tensors[0])
    assert not torch.equal(digits().train.tensors[0], digits(seed=1).train.tensors[0])


@pytest.mark.parametrize("test", [0, 1, 1.5, -0.1, "0.2", True, None])
def test_a_share_that_is_none(test):
    with pytest.raises(CourseError, match="share kept for testing"):
        digits(test=test)
