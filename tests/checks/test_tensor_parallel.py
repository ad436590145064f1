"""The exercises of notebook 09: published solutions pass, plausible wrong answers fail in words."""

import pytest
import torch
import torch.distributed as dist
from torch.nn.functional import gelu, linear, scaled_dot_product_attention

from course_utils import check
from course_utils.lessons.tensor_parallel import add_up, fan_out


@pytest.mark.parametrize("name", ["mlp_part", "attention_part"])
def test_solutions(name):
    exercise = getattr(check, name)
    verdict = exercise(exercise.published)
    assert verdict, str(verdict)
    assert "one all-reduce of 960 bytes each way" in verdict.text


def place():
    return dist.get_rank(), dist.get_world_size()


def hidden_part(x, up):
    rank, ranks = place()
    return gelu(linear(x, up.weight.chunk(ranks)[rank], up.bias.chunk(ranks)[rank]))


def partial_sum(x, up, down):
    rank, ranks = place()
    return linear(hidden_part(x, up), down.weight.chunk(ranks, dim=1)[rank])


def whole(x, up, down):
    return down(gelu(up(x)))


def no_reduction(x, up, down):
    return partial_sum(fan_out(x), up, down) + down.bias


def bias_on_every_rank(x, up, down):
    rank, ranks = place()
    return add_up(linear(hidden_part(fan_out(x), up), down.weight.chunk(ranks, dim=1)[rank], down.bias))


def no_fan_out(x, up, down):
    return add_up(partial_sum(x, up, down)) + down.bias


def bare_all_reduce(x, up, down):
    total = partial_sum(x, up, down).detach()
    dist.all_reduce(total)
    return total


def gathers_the_hidden(x, up, down):
    rank, ranks = place()
    mine = hidden_part(fan_out(x), up)
    padded = torch.cat([mine if r == rank else torch.zeros_like(mine) for r in range(ranks)], dim=-1)
    hidden = fan_out(add_up(padded))
    return add_up(linear(hidden.chunk(ranks, -1)[rank], down.weight.chunk(ranks, dim=1)[rank])) + down.bias


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (whole, "This rank used all of up.weight"),
        (no_reduction, "mlp_part(x, up, down) on rank 0 of 2: "),
        (bias_on_every_rank, "the last bias is to be added once"),
        (no_fan_out, "The gradient of x on rank 0 of 2 is only this rank's part of it"),
        (gathers_the_hidden, "can do with less communication"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_mlp_wrong(answer, words):
    verdict = check.mlp_part(answer)
    assert verdict.state == "wrong"
    assert words in verdict.text, str(verdict)
    assert verdict.expected
    assert verdict.got
    assert "course_utils" not in str(verdict)


def test_mlp_without_gradient():
    verdict = check.mlp_part(lambda x, up, down: bare_all_reduce(x, up, down) + down.bias.detach())
    assert "unknown to autograd" in verdict.text


def test_mlp_says_what_was_sent():
    verdict = check.mlp_part(gathers_the_hidden)
    assert verdict.expected == "1 all-reduce of 960 bytes"
    assert verdict.got == "2 all-reduce of 4800 bytes"


def attention_with(x, attention, *, by):
    rank, ranks = place()

    def heads(layer):
        mine = linear(x, layer.weight.chunk(ranks)[by(rank)], layer.bias.chunk(ranks)[by(rank)])
        return mine.unflatten(-1, (-1, attention.head)).transpose(1, 2)

    x = fan_out(x)
    mixed = scaled_dot_product_attention(*map(heads, (attention.q, attention.k, attention.v)), is_causal=True)
    out = attention.out.weight.chunk(ranks, dim=1)[rank]
    return add_up(linear(mixed.transpose(1, 2).flatten(2), out)) + attention.out.bias


def other_heads(x, attention):
    return attention_with(x, attention, by=lambda rank: 0)


def not_split(x, attention):
    return attention(x)


def no_heads(x, attention):
    rank, ranks = place()
    x = fan_out(x)
    q, k, v = (linear(x, part.weight.chunk(ranks)[rank], part.bias.chunk(ranks)[rank]).unsqueeze(1)
               for part in (attention.q, attention.k, attention.v))  # fmt: skip
    mixed = scaled_dot_product_attention(q, k, v, is_causal=True).squeeze(1)
    return add_up(linear(mixed, attention.out.weight.chunk(ranks, dim=1)[rank])) + attention.out.bias


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (other_heads, "attention_part(x, attention) on rank 0 of 2: off by"),
        (not_split, "This rank used all of q.weight"),
        (no_heads, "attention_part(x, attention) on rank 0 of 2: off by"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_attention_wrong(answer, words):
    verdict = check.attention_part(answer)
    assert verdict.state == "wrong"
    assert words in verdict.text, str(verdict)
    assert verdict.expected
    assert verdict.got


def test_an_answer_that_raises_is_shown_with_its_line():
    def mlp_part(x, up, down):
        return linear(x, up.weight.chunk(dist.get_world_size(), dim=1)[0])

    verdict = check.mlp_part(mlp_part)
    assert "raised RuntimeError" in verdict.text
    assert "return linear(x, up.weight.chunk(dist.get_world_size(), dim=1)[0])" in verdict.text
    assert "course_utils" not in str(verdict)


def test_stubs_are_not_yet():
    def mlp_part(x, up, down):
        ...

    def attention_part(x, attention):
        """Not written."""

    assert check.mlp_part(mlp_part).state == "not yet"
    assert check.attention_part(attention_part).state == "not yet"
