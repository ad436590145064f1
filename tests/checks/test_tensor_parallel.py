"""The exercises on tensor parallelism: published solutions pass, plausible wrong answers fail in words."""

import copy

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, PrepareModuleInput, RowwiseParallel, parallelize_module
from torch.nn.functional import gelu, linear, scaled_dot_product_attention

from course_utils import check, pick
from course_utils.lessons.tensor_parallel import Columns, Rows, add_up, all_reduced, fan_out, mine
from tests.checks.judging import judge, solved


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


def whole_hidden(x, up, down):
    rank, ranks = place()
    hidden = gelu(up(fan_out(x))).chunk(ranks, -1)[rank]
    return add_up(linear(hidden, down.weight.chunk(ranks, dim=1)[rank])) + down.bias


def masked(x, up, down):
    rank, ranks = place()
    hidden = gelu(up(fan_out(x)))
    mask = torch.zeros_like(hidden)
    mask.chunk(ranks, -1)[rank].fill_(1)
    return add_up(linear(hidden * mask, down.weight)) + down.bias


class Louder(torch.autograd.Function):
    @staticmethod
    def forward(ctx, weight):
        return weight.view_as(weight)

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient


def other_gradients(x, up, down, ranks_concerned=(0, 1, 2, 3)):
    rank, ranks = place()
    weight = up.weight.chunk(ranks)[rank]
    weight = Louder.apply(weight) if rank in ranks_concerned else weight
    hidden = gelu(linear(fan_out(x), weight, up.bias.chunk(ranks)[rank]))
    return add_up(linear(hidden, down.weight.chunk(ranks, dim=1)[rank])) + down.bias


def other_gradients_on_rank_0(x, up, down):
    return other_gradients(x, up, down, ranks_concerned=(0,))


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (whole, "Rank 0 of 2 computes more than its part"),
        (whole_hidden, "Rank 0 of 2 computes more than its part"),
        (masked, "Rank 0 of 2 computes more than its part"),
        (other_gradients, "The gradient of up.weight is wrong"),
        (other_gradients_on_rank_0, "The gradient of up.weight is wrong"),
        (no_reduction, "mlp_part(x, up, down) on rank 0 of 2: "),
        (bias_on_every_rank, "the last bias is to be added once"),
        (no_fan_out, "The gradient of x on rank 0 of 2 is only this rank's part of it"),
        (gathers_the_hidden, "can do with less communication"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_mlp_wrong(answer, words):
    verdict = judge("mlp_part", answer, words)
    assert verdict.expected
    assert verdict.got


def with_modules(x, up, down):
    return Rows(down)(gelu(Columns(up)(x)))


def every_nth(x, up, down):
    rank, ranks = place()
    hidden = gelu(linear(fan_out(x), up.weight[rank::ranks], up.bias[rank::ranks]))
    return add_up(linear(hidden, down.weight[:, rank::ranks])) + down.bias


def bias_on_rank_0(x, up, down):
    rank, ranks = place()
    return add_up(linear(hidden_part(fan_out(x), up), down.weight.chunk(ranks, dim=1)[rank],
                         down.bias if rank == 0 else None))


def share_of_the_bias(x, up, down):
    return add_up(partial_sum(fan_out(x), up, down) + down.bias / dist.get_world_size())


def with_mine(x, up, down):
    hidden = gelu(fan_out(x) @ mine(up.weight).T + mine(up.bias))
    return add_up(hidden @ mine(down.weight, 1).T) + down.bias


def with_a_hook(x, up, down):
    x = x.view_as(x)
    x.register_hook(all_reduced)
    return add_up(partial_sum(x, up, down)) + down.bias


def on_every_rank(**kwargs):
    mesh = init_device_mesh(pick().type, (dist.get_world_size(),))
    return {"device_mesh": mesh, "src_data_rank": None, **kwargs}


def with_a_plan(x, up, down):
    mlp = torch.nn.Sequential(copy.deepcopy(up), torch.nn.GELU(), copy.deepcopy(down))
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    return parallelize_module(mlp, **on_every_rank(parallelize_plan=plan))(x)


def with_a_plan_in_place(x, up, down):
    up = parallelize_module(up, **on_every_rank(parallelize_plan=ColwiseParallel()))
    down = parallelize_module(down, **on_every_rank(parallelize_plan=RowwiseParallel(use_local_output=False)))
    return down(gelu(up(x)))


@pytest.mark.parametrize("answer", [with_modules, with_mine, with_a_hook, with_a_plan, with_a_plan_in_place, every_nth,
                                    bias_on_rank_0, share_of_the_bias])
def test_mlp_right_in_other_ways(answer):
    solved("mlp_part", answer)


def plan_that_deals_the_weights(x, up, down):
    return parallelize_module(down, **on_every_rank(parallelize_plan=RowwiseParallel(), src_data_rank=0))(
        gelu(parallelize_module(up, **on_every_rank(parallelize_plan=ColwiseParallel()))(x)))


def plan_with_both_by_columns(x, up, down):
    hidden = parallelize_module(up, **on_every_rank(parallelize_plan=ColwiseParallel(output_layouts=Replicate())))(x)
    plan = ColwiseParallel(output_layouts=Replicate())
    return parallelize_module(down, **on_every_rank(parallelize_plan=plan))(gelu(hidden))


def test_mlp_with_a_plan_that_sends_more():
    verdict = check.mlp_part(plan_that_deals_the_weights)
    assert verdict.state == "wrong"
    assert "src_data_rank=None" in verdict.text
    verdict = check.mlp_part(plan_with_both_by_columns)
    assert verdict.state == "wrong"
    assert "can do with less communication" in verdict.text
    assert "src_data_rank" not in verdict.text


def test_mlp_detached():
    verdict = check.mlp_part(lambda x, up, down: (add_up(partial_sum(x, up, down)) + down.bias).detach())
    assert verdict.state == "wrong"
    assert "cut off from x" in verdict.text


def test_mlp_without_gradient():
    verdict = check.mlp_part(lambda x, up, down: bare_all_reduce(x, up, down) + down.bias.detach())
    assert "unknown to autograd" in verdict.text


def test_mlp_says_what_was_sent():
    verdict = check.mlp_part(gathers_the_hidden)
    assert verdict.expected == "1 all-reduce of 960 bytes"
    assert verdict.got == "2 all-reduce of 4800 bytes"


def attention_with(x, attention, *, by, is_causal=True):
    rank, ranks = place()

    def heads(layer):
        mine = linear(x, layer.weight.chunk(ranks)[by(rank)], layer.bias.chunk(ranks)[by(rank)])
        return mine.unflatten(-1, (-1, attention.head)).transpose(1, 2)

    x = fan_out(x)
    mixed = scaled_dot_product_attention(*map(heads, (attention.q, attention.k, attention.v)), is_causal=is_causal)
    out = attention.out.weight.chunk(ranks, dim=1)[rank]
    return add_up(linear(mixed.transpose(1, 2).flatten(2), out)) + attention.out.bias


def other_heads(x, attention):
    return attention_with(x, attention, by=lambda rank: 0)


def not_split(x, attention):
    return attention(x)


def whole_heads(x, attention):
    rank, ranks = place()
    x = fan_out(x)
    q, k, v = (part(x).unflatten(-1, (-1, attention.head)).transpose(1, 2)
               for part in (attention.q, attention.k, attention.v))
    mixed = scaled_dot_product_attention(q, k, v, is_causal=True).chunk(ranks, 1)[rank]
    out = attention.out.weight.chunk(ranks, dim=1)[rank]
    return add_up(linear(mixed.transpose(1, 2).flatten(2), out)) + attention.out.bias


def with_softmax(x, attention):
    """Right, without torch's attention."""
    rank, ranks = place()
    x = fan_out(x)
    q, k, v = (linear(x, part.weight.chunk(ranks)[rank], part.bias.chunk(ranks)[rank])
               .unflatten(-1, (-1, attention.head)).transpose(1, 2)
               for part in (attention.q, attention.k, attention.v))
    later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
    scores = (q @ k.transpose(2, 3) / attention.head**0.5).masked_fill(later, float("-inf"))
    mixed = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
    return add_up(linear(mixed, attention.out.weight.chunk(ranks, dim=1)[rank])) + attention.out.bias


def with_modules_in_place(x, attention):
    x = fan_out(x)
    for name in "qkv":
        setattr(attention, name, Columns(getattr(attention, name), enter=lambda x: x))
    attention.out = Rows(attention.out)
    return attention(x)


def head_by_head(x, attention):
    rank, ranks = place()
    x, size = fan_out(x), attention.head
    each = attention.q.weight.shape[0] // size // ranks
    total = 0
    for first in range(rank * each * size, (rank + 1) * each * size, size):
        q, k, v = (linear(x, part.weight[first : first + size], part.bias[first : first + size])
                   for part in (attention.q, attention.k, attention.v))
        mixed = scaled_dot_product_attention(q, k, v, is_causal=True)
        total = total + mixed @ attention.out.weight[:, first : first + size].T
    return add_up(total) + attention.out.bias


def with_one_product(x, attention):
    parts = attention.q, attention.k, attention.v
    weight, bias = torch.cat([mine(part.weight) for part in parts]), torch.cat([mine(part.bias) for part in parts])
    q, k, v = linear(fan_out(x), weight, bias).unflatten(-1, (3, -1, attention.head)).permute(2, 0, 3, 1, 4)
    mixed = scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
    return add_up(linear(mixed, mine(attention.out.weight, 1))) + attention.out.bias


def with_a_plan_for_attention(x, attention):
    shared = PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Replicate())
    parallelize_module(attention, **on_every_rank(parallelize_plan=shared))
    plan = {name: ColwiseParallel() for name in "qkv"} | {"out": RowwiseParallel()}
    return parallelize_module(attention, **on_every_rank(parallelize_plan=plan))(x)


@pytest.mark.parametrize("answer", [with_softmax, with_modules_in_place, head_by_head, with_one_product,
                                    with_a_plan_for_attention])
def test_attention_right_in_other_ways(answer):
    solved("attention_part", answer)


def three_fan_outs(x, attention):
    for name in "qkv":
        setattr(attention, name, Columns(getattr(attention, name)))
    attention.out = Rows(attention.out)
    return attention(x)


def no_fan_out_for_attention(x, attention):
    for name in "qkv":
        setattr(attention, name, Columns(getattr(attention, name), enter=lambda x: x))
    attention.out = Rows(attention.out)
    return attention(x)


def no_sum(x, attention):
    for name in "qkv":
        setattr(attention, name, Columns(getattr(attention, name), enter=lambda x: x))
    attention.out = Rows(attention.out, leave=lambda x: x)
    return attention(fan_out(x))


def bias_from_every_rank(x, attention):
    y = no_sum(x, attention)
    return add_up(y)


def not_causal(x, attention):
    return attention_with(x, attention, by=lambda rank: rank, is_causal=False)


def heads_of_the_next_rank(x, attention):
    return attention_with(x, attention, by=lambda rank: (rank + 1) % dist.get_world_size())


def no_heads(x, attention):
    rank, ranks = place()
    x = fan_out(x)
    q, k, v = (linear(x, part.weight.chunk(ranks)[rank], part.bias.chunk(ranks)[rank]).unsqueeze(1)
               for part in (attention.q, attention.k, attention.v))
    mixed = scaled_dot_product_attention(q, k, v, is_causal=True).squeeze(1)
    return add_up(linear(mixed, attention.out.weight.chunk(ranks, dim=1)[rank])) + attention.out.bias


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (other_heads, "attention_part(x, attention) on rank 0 of 2: off by"),
        (not_split, "Rank 0 of 2 computes more than its part"),
        (whole_heads, "Rank 0 of 2 computes more than its part"),
        (no_heads, "attention_part(x, attention) on rank 0 of 2: off by"),
        (not_causal, "attention_part(x, attention) on rank 0 of 2: off by"),
        (heads_of_the_next_rank, "attention_part(x, attention) on rank 0 of 2: off by"),
        (no_sum, "attention_part(x, attention) on rank 0 of 2: off by"),
        (bias_from_every_rank, "the last bias is to be added once"),
        (three_fan_outs, "The backward pass can do with less communication"),
        (no_fan_out_for_attention, "The gradient of x on rank 0 of 2 is only this rank's part of it"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_attention_wrong(answer, words):
    verdict = judge("attention_part", answer, words)
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
