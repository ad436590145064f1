import pytest
import torch

from course_utils.lessons import data
from course_utils.lessons.models import GPT, mlp


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


def test_gpt_is_equal_everywhere_and_leaves_the_global_generator_alone():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one = GPT(100)
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(2)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), GPT(100).parameters(), strict=True))
    assert sum(p.numel() for p in one.parameters()) == 4 * (12 * 64**2 + 13 * 64) + (2 * 100 + 64 + 2) * 64 + 100


def test_gpt_looks_only_back():
    model = GPT(10, layers=2, width=16, heads=2, context=8)
    ids = torch.arange(8)[None]
    other = ids.clone()
    other[0, 5] = 9
    a, b = model(ids), model(other)
    assert a.shape == (1, 8, 10)
    assert torch.equal(a[:, :5], b[:, :5])
    assert not torch.allclose(a[:, 5:], b[:, 5:])


def test_gpt_on_the_meta_device_holds_no_numbers():
    with torch.device("meta"):
        assert {p.device.type for p in GPT(100).parameters()} == {"meta"}


def test_gpt_learns():
    everything = data.text()
    model = GPT(len(everything.vocabulary))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for step in range(60):
        x, y = everything.batch(step, size=8, context=32)
        loss = torch.nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] > 4
    assert sum(losses[-10:]) / 10 < 3.4


def test_heads_share_the_width():
    with pytest.raises(ValueError, match="equal share"):
        GPT(10, width=64, heads=5)
