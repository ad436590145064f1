"""What is trained, and on what: the same numbers everywhere; no other random number changes."""

import pytest
import torch

from course_utils.lessons.data import digits, text
from course_utils.lessons.models import GPT, mlp


@pytest.mark.parametrize("make", [mlp, lambda: GPT(100)], ids=["mlp", "GPT"])
def test_a_model_is_equal_everywhere_and_leaves_the_global_generator_alone(make):
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one = make()
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(2)
    torch.testing.assert_close(one.state_dict(), make().state_dict(), rtol=0, atol=0)


def test_gpt_looks_only_back():
    model = GPT(10, layers=2, width=16, heads=2, context=8)
    ids = torch.arange(8)[None]
    other = ids.clone()
    other[0, 5] = 9
    a, b = model(ids), model(other)
    assert a.shape == (1, 8, 10)
    assert torch.equal(a[:, :5], b[:, :5])
    assert not torch.allclose(a[:, 5:], b[:, 5:])


def test_heads_that_do_not_divide_the_width_are_refused():
    with pytest.raises(ValueError, match="24 heads do not divide a width of 64"):
        GPT(10, heads=24)


def test_gpt_on_the_meta_device_holds_no_numbers():
    with torch.device("meta"):
        assert {p.device.type for p in GPT(100).parameters()} == {"meta"}


def test_shapes_ranges_and_strata():
    train, test = digits()
    x, y = train.tensors
    assert (x.shape, x.dtype, x.min(), x.max()) == ((1437, 64), torch.float32, 0, 1)
    assert (y.shape, y.dtype) == ((1437,), torch.int64)
    assert len(test) == 360
    assert all(35 <= n <= 37 for n in torch.bincount(test.tensors[1], minlength=10))
    assert torch.equal(x, digits().train.tensors[0])


def test_text_is_all_there_and_comes_back():
    everything = text()
    assert len(everything.train) > 300_000
    assert "lambda" in "".join(everything.vocabulary[i] for i in everything.train.tolist())


def test_batches_of_text_are_one_character_apart_and_the_same_for_the_same_step():
    everything = text()
    x, y = everything.batch(3, size=5, context=20)
    assert x.shape == y.shape == (5, 20)
    assert torch.equal(x[:, 1:], y[:, :-1])
    assert torch.equal(x, everything.batch(3, size=5, context=20)[0])
    assert not torch.equal(x, everything.batch(4, size=5, context=20)[0])
