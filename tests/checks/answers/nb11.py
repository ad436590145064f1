"""Answers to the exercises of notebook 11."""

import copy

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.functional import gelu, linear

from course_utils import pick
from course_utils.checks.nb11_tensor_parallel import attention_part, mlp_part
from course_utils.lessons.tensor_parallel import add_up, fan_out, mine


def by_torch(module, plan, **options):
    mesh = init_device_mesh(pick().type, (dist.get_world_size(),))
    return parallelize_module(module, mesh, plan, **{"src_data_rank": None, **options})


def every_nth(x, up, down):
    nth = slice(dist.get_rank(), None, dist.get_world_size())
    hidden = gelu(linear(fan_out(x), up.weight[nth], up.bias[nth]))
    return add_up(linear(hidden, down.weight[:, nth])) + down.bias


def with_a_plan(x, up, down):
    layers = torch.nn.Sequential(copy.deepcopy(up), torch.nn.GELU(), copy.deepcopy(down))
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel(use_local_output=False)}
    return by_torch(layers, plan)(x)


def plan_that_sends_weights(x, up, down):
    down = by_torch(down, RowwiseParallel(), src_data_rank=0)
    return down(gelu(by_torch(up, ColwiseParallel(), src_data_rank=0)(x)))


def summand(x, up, down):
    """This rank's, without the last bias."""
    return linear(gelu(linear(x, mine(up.weight), mine(up.bias))), mine(down.weight, 1))


def shares_the_bias(x, up, down):
    down.bias.data /= dist.get_world_size()
    return add_up(summand(fan_out(x), up, down) + down.bias)


def with_the_bias_of_one_rank(part):
    def answer(x, *layers):
        bias = [*layers[-1].parameters()][-1]
        return part(x, *layers) - bias + add_up(bias * (dist.get_rank() == 0))

    return answer


def with_frozen_weights(part):
    def answer(x, *layers):
        for layer in layers:
            layer.requires_grad_(False)
        return part(x, *layers)

    return answer


def unknown_to_autograd(x, up, down):
    total = summand(x, up, down).detach()
    dist.all_reduce(total)
    return total + down.bias


def records_no_more(x, up, down):
    y = mlp_part(x, up, down)
    torch.set_grad_enabled(False)
    return y


def head_by_head(x, attention):
    x, total = fan_out(x), 0
    for rows in mine(torch.arange(x.shape[-1])).split(attention.head):
        parts = (attention.q, attention.k, attention.v)
        q, k, v = (linear(x, part.weight[rows], part.bias[rows]) for part in parts)
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
        scores = (q @ k.transpose(1, 2) / len(rows) ** 0.5).masked_fill(later, float("-inf"))
        total = total + scores.softmax(-1) @ v @ attention.out.weight[:, rows].T
    return add_up(total) + attention.out.bias


def attention_with_a_plan(x, attention):
    whole = Replicate()
    by_torch(attention, PrepareModuleInput(input_layouts=whole, desired_input_layouts=whole))
    plan = {name: ColwiseParallel() for name in "qkv"} | {"out": RowwiseParallel()}
    return by_torch(attention, plan)(x)


RIGHT = {
    "mlp_part": [every_nth, with_a_plan],
    "attention_part": [head_by_head, attention_with_a_plan],
}
WRONG = {
    "mlp_part": [
        unknown_to_autograd,
        plan_that_sends_weights,
        shares_the_bias,
        records_no_more,
        with_the_bias_of_one_rank(mlp_part),
        with_frozen_weights(mlp_part),
        lambda x, up, down: add_up(
            summand(fan_out(x), up, down) + (down.bias if dist.get_rank() == 1 else 0)
        ),
        lambda x, up, down: down(gelu(up(x))),
    ],
    "attention_part": [
        lambda x, attention: attention(x),
        with_the_bias_of_one_rank(attention_part),
        with_frozen_weights(attention_part),
    ],
}
