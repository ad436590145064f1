import torch

from course_utils.lessons.data import digits, text


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
    assert torch.equal(x, digits().train.tensors[0])


def test_text_is_all_there_and_comes_back():
    everything = text()
    assert everything.train.dtype == torch.int64
    assert len(everything.train) > 300_000
    assert 80 <= len(everything.vocabulary) <= 200
    assert "lambda" in "".join(everything.vocabulary[i] for i in everything.train.tolist())


def test_batches_of_text_are_one_character_apart_and_the_same_for_the_same_step():
    everything = text()
    x, y = everything.batch(3, size=5, context=20)
    assert x.shape == y.shape == (5, 20)
    assert torch.equal(x[:, 1:], y[:, :-1])
    assert x.is_contiguous()
    assert y.is_contiguous()
    assert torch.equal(x, everything.batch(3, size=5, context=20)[0])
    assert not torch.equal(x, everything.batch(4, size=5, context=20)[0])
