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
from torch.nn.functional import gelu, linear, scaled_dot_product_attention

from course_utils import pick
from course_utils.checks.nb11_tensor_parallel import split
from course_utils.lessons.tensor_parallel import Rows, add_up, as_it_is, fan_out, mine


def by_torch(module, plan, **options):
    mesh = init_device_mesh(pick().type, (dist.get_world_size(),))
    return parallelize_module(module, mesh, plan, **{"src_data_rank": None, **options})


def every_nth(x, up, down):
    nth = slice(dist.get_rank(), None, dist.get_world_size())
    hidden = gelu(linear(fan_out(x), up.weight[nth], up.bias[nth]))
    return add_up(linear(hidden, down.weight[:, nth], down.bias if dist.get_rank() == 0 else None))


def with_a_plan(x, up, down):
    layers = torch.nn.Sequential(copy.deepcopy(up), torch.nn.GELU(), copy.deepcopy(down))
    return by_torch(layers, {"0": ColwiseParallel(), "2": RowwiseParallel(use_local_output=False)})(
        x
    )


def plan_that_sends_weights(x, up, down):
    down = by_torch(down, RowwiseParallel(), src_data_rank=0)
    return down(gelu(by_torch(up, ColwiseParallel(), src_data_rank=0)(x)))


def unknown_to_autograd(x, up, down):
    total = linear(gelu(linear(x, mine(up.weight), mine(up.bias))), mine(down.weight, 1)).detach()
    dist.all_reduce(total)
    return total + down.bias


def whole_hidden(x, up, down):
    return Rows(down)(mine(gelu(up(fan_out(x))), -1))


def heads(of=mine, is_causal=True):
    def by_heads(x, attention):
        x, parts = fan_out(x), (attention.q, attention.k, attention.v)
        q, k, v = (
            linear(x, of(part.weight), of(part.bias))
            .unflatten(-1, (-1, attention.head))
            .transpose(1, 2)
            for part in parts
        )
        mixed = (
            scaled_dot_product_attention(q, k, v, is_causal=is_causal).transpose(1, 2).flatten(2)
        )
        return add_up(linear(mixed, mine(attention.out.weight, 1))) + attention.out.bias

    return by_heads


def head_by_head(x, attention):
    x, total = fan_out(x), 0
    for rows in mine(torch.arange(x.shape[-1])).split(attention.head):
        q, k, v = (
            linear(x, part.weight[rows], part.bias[rows])
            for part in (attention.q, attention.k, attention.v)
        )
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
        scores = (q @ k.transpose(1, 2) / len(rows) ** 0.5).masked_fill(later, float("-inf"))
        total = total + scores.softmax(-1) @ v @ attention.out.weight[:, rows].T
    return add_up(total) + attention.out.bias


def attention_with_a_plan(x, attention):
    by_torch(
        attention, PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Replicate())
    )
    return by_torch(
        attention, {name: ColwiseParallel() for name in "qkv"} | {"out": RowwiseParallel()}
    )(x)


RIGHT = {
    "mlp_part": [every_nth, with_a_plan],
    "attention_part": [head_by_head, attention_with_a_plan],
}
WRONG = {
    "mlp_part": [
        unknown_to_autograd,
        whole_hidden,
        plan_that_sends_weights,
        lambda x, up, down: down(gelu(up(x))),
    ],
    "attention_part": [
        lambda x, attention: split(attention, as_it_is)(x),
        heads(lambda part: part.chunk(dist.get_world_size())[0]),
        heads(is_causal=False),
        lambda x, attention: attention(x),
    ],
}
