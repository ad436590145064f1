"""A TPU's arithmetic on XLA's CPU client: the factors of every product of `nn.Linear` are rounded to bfloat16."""

import functools

import torch
import torch.nn.functional as F


def bfloat16(values):
    return values.bfloat16().float()


class RoundedLinear(torch.autograd.Function):
    """x @ w.T + b, forward and backward, as a TPU computes it unless it is told otherwise."""

    @staticmethod
    def forward(ctx, x, w, b):
        ctx.save_for_backward(x, w)
        return bfloat16(x) @ bfloat16(w).T + b

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return bfloat16(grad) @ bfloat16(w), bfloat16(grad).T @ bfloat16(x), grad.sum(0)


def rounded(answer):
    """`answer`, and what its process computes afterwards, with such products."""

    @functools.wraps(answer)
    def run(*args):
        F.linear = lambda x, w, b: RoundedLinear.apply(x, w, b)
        return answer(*args)

    return run
