"""Exercises of notebook 07: runs to repair, each looked at by its symptom on real ranks."""

from contextlib import nullcontext
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim import SGD

from ..lessons.models import mlp
from ..machine import pick
from ..ranks.traffic import Traffic
from .compare import AtMost
from .exercise import exercise, patched
from .instruments import (
    Steps,
    batch,
    equal_everywhere,
    everyones,
    in_steps,
    returned,
    trained,
    weights,
)


def train_uneven(batches):
    """Train on this list of batches, longer on some ranks; return the trained network."""
    model = DDP(mlp().to(pick()))
    optimizer = SGD(model.parameters(), lr=0.1)
    with model.join():
        for x, y in batches:
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            optimizer.step()
    return model.module


def _fed(own: list[tuple], inputs: list[Tensor]) -> str:
    """What is wrong with what went into a network on this rank; nothing where that is right."""
    numbers = []
    for seen in inputs:
        same = [x.shape == seen.shape and bool((x.cpu() == seen).all()) for x, _ in own]
        numbers.append(same.index(True) if any(same) else -1)
    if -1 in numbers:
        return "what went in is not a whole batch of this rank's list, as it was"
    if inputs and len({*numbers}) < len(own):
        return "a batch of this rank's list did not go in"
    if len(numbers) > len(own):
        return "a batch of this rank's list went in more than once"
    if numbers != sorted(numbers):
        return "this rank's batches went in out of their order"
    return ""


@exercise(train_uneven, ranks=(3,), seconds=7)  # a right answer takes less than one
def _(answer):
    # two ranks have most: if they part in their last steps, that is seen
    for counts in ((2, 5, 5), (6, 1, 2)):
        lists = [[batch(10 * rank + i) for i in range(count)] for rank, count in enumerate(counts)]
        with Steps() as steps:
            network = answer([*lists[dist.get_rank()]])
        where = f"{', '.join(map(str, counts))} batches on the ranks"
        yield f"{where}: what it returns", returned(network)
        yield f"{where}: equal weights on all ranks before each step", steps.equal()
        end = weights(network)
        yield f"{where}: equal weights on all ranks at the end", equal_everywhere(end)
        # gradients are divided by all ranks, as with `join`, or by those that have a batch
        ways = [trained(in_steps(lists), by=by) for by in (dist.get_world_size(), 0)]
        words = "SGD's steps on each batch once, whole and in order, and on no others"
        fault = ""
        if not any(torch.allclose(end, way, rtol=0, atol=1e-5) for way in ways):
            fault = _fed(lists[dist.get_rank()], steps.inputs)
            if not any(everyones(fault)):
                fault = "each batch went in once, in order; look at zero_grad, loss and rate"
        yield f"{where}: what gives these weights", fault or words
    yield (
        "",
        "Every batch counted once, nobody waited for ever, and the weights were equal before every "
        "step.",
    )


def mean_over_tokens(model, pieces, most):
    """Leave the gradient of the mean over all tokens of all ranks, its norm clipped to `most`."""
    tokens = sum((y != -100).sum() for _, y in pieces)
    dist.all_reduce(tokens)
    for number, (x, y) in enumerate(pieces, 1):
        with model.no_sync() if number < len(pieces) else nullcontext():
            loss = cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="sum")
            (loss * dist.get_world_size() / tokens).backward()
    nn.utils.clip_grad_norm_(model.parameters(), most)


one_rank = partial(patched, target="torch.distributed.get_world_size", return_value=1)
own_tokens = patched(mean_over_tokens, "torch.distributed.all_reduce")


def mean_of_means(model, pieces, most):
    for x, y in pieces:
        loss = cross_entropy(model(x).flatten(0, 1), y.flatten())
        (loss / len(pieces)).backward()


# the lengths of each rank's texts, by piece, and the norm that gradients may have
TOKENS = {
    "texts of unequal lengths": ([[[3, 9], [5]], [[2], [4, 4]], [[7, 1], [6]]], 1.1),
    "a rank without a token": ([[[8], [2, 5], [1]], [[0, 0], [0], [0]], [[1], [6], [0]]], 1.1),
    "no token in a first piece": ([[[0], [0, 0]], [[2, 6], [9]], [[0], [1]]], 0.5),
}


def texts(lengths: list[int], seed: int) -> tuple[Tensor, Tensor]:
    """Tokens and labels (rows, tokens), the labels -100 behind each text's length."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(12, (len(lengths), max(lengths) + 2), generator=generator)
    there = torch.arange(ids.shape[1]) < torch.tensor(lengths)[:, None]
    y = ids.roll(-1, 1).where(there, -100)
    return ids.to(pick()), y.to(pick())


def speaker() -> nn.Sequential:
    """Tokens in, logits for the next ones out; the same weights each time."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(12, 24), nn.Linear(24, 12)).to(pick())


@exercise(
    mean_over_tokens,
    ranks=(3, 2),
    seconds=7,
    mistakes={
        "this is a mean of means, in which a token of a short piece counts more": mean_of_means,
        "the tokens of all ranks are to be counted, these are the rank's own": own_tokens,
        "DDP divides by the number of ranks, which is to be undone": one_rank(mean_over_tokens),
        "a token of a rank with few tokens counts more; divide by those of all ranks": one_rank(
            own_tokens
        ),
    },
)
def _(answer):
    for where, (lengths, most) in TOKENS.items():
        pieces = [
            [texts(piece, 10 * rank + i) for i, piece in enumerate(lengths[rank])]
            for rank in range(dist.get_world_size())
        ]
        model = DDP(speaker())
        with Traffic() as traffic:
            answer(model, pieces[dist.get_rank()], most)
        gradients = {name: p.grad for name, p in model.module.named_parameters()}
        none = sum(g is None or not g.isfinite().all() for g in gradients.values())
        yield f"{where}: how many parameters have no gradient, or nan in it", none
        yield f"{where}: the gradient, its norm at most {most}", gradients, 1e-6
        sent = traffic.bytes["all-reduce"] // sum(g.nbytes for g in gradients.values())
        yield f"{where}: how often the gradients are all-reduced", AtMost(sent, 1)
    yield (
        "",
        "The gradient of one process that has all texts, after one all-reduce of gradients.",
    )
