"""The exercises on DDP: right answers in many styles pass, plausible wrong ones fail in true words."""

import itertools
import math

import numpy as np
import pytest
import torch
import torch.distributed as dist

from course_utils import check
from course_utils.checks import ddp as module
from tests.checks.judging import judge, solved


@pytest.fixture
def soon(monkeypatch):
    """What hangs, hangs for six seconds."""
    monkeypatch.setattr(module, "SECONDS", 6.0)


# -- rank_share --------------------------------------------------------------------------------------------------------


def filled_up(samples, ranks, rank):
    deck = list(range(samples)) * ranks
    return deck[: math.ceil(samples / ranks) * ranks][rank::ranks]


def with_numpy(samples, ranks, rank):
    return list(np.arange(rank, -(-samples // ranks) * ranks, ranks) % samples)


def as_an_array(samples, ranks, rank):
    return np.arange(rank, -(-samples // ranks) * ranks, ranks) % samples


def as_tensors(samples, ranks, rank):
    return list(torch.arange(rank, -(-samples // ranks) * ranks, ranks) % samples)


def as_a_tuple(samples, ranks, rank):
    return tuple(itertools.islice(itertools.cycle(range(samples)), rank, -(-samples // ranks) * ranks, ranks))


@pytest.mark.parametrize("answer", [module.rank_share, filled_up, with_numpy, as_an_array, as_tensors, as_a_tuple])
def test_rank_share_right(answer):
    solved("rank_share", answer)


def blocks(samples, ranks, rank):
    each = -(-samples // ranks)
    return list(range(samples))[rank * each : (rank + 1) * each]


def unequal(samples, ranks, rank):
    return list(range(rank, samples, ranks))


def filled_once(samples, ranks, rank):
    numbers = list(range(samples))
    numbers += numbers[: -samples % ranks]
    return numbers[rank::ranks]


def raises(samples, ranks, rank):
    return list(range(samples))[rank::ranks][samples]


def for_ever(samples, ranks, rank):
    deck = list(range(samples))
    while len(deck) % ranks:
        deck = deck[:]
    return deck[rank::ranks]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (blocks, "rank_share(16, 4, 0)"),
        (unequal, "rank_share(18, 4, 2)"),
        (filled_once, "rank_share(2, 7, 4)"),
        (lambda samples, ranks, rank: [*unequal(samples, ranks, rank), 0], "rank_share(16, 4, 0)"),
        (lambda samples, ranks, rank: unequal(samples, ranks, rank)[: samples // ranks], "rank_share(18, 4, 0)"),
        (lambda samples, ranks, rank: unequal(samples, ranks, rank - 1), "rank_share(16, 4, 0)"),
        (lambda samples, ranks, rank: set(as_a_tuple(samples, ranks, rank)), "a list was expected, this is a set"),
        (raises, "It raised IndexError"),
        (for_ever, "It had not finished after 6 s"),
    ],
)
@pytest.mark.usefixtures("soon")
def test_rank_share_wrong(answer, words):
    judge("rank_share", answer, words)


# -- replicas_equal ----------------------------------------------------------------------------------------------------


def flat(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def against_rank_0(model):
    mine, first = flat(model), flat(model)
    dist.broadcast(first, src=0)
    same = torch.tensor([float(torch.equal(mine, first))], device=mine.device)
    dist.all_reduce(same, op=dist.ReduceOp.MIN)
    return same.item() == 1


def least_and_most(model):
    low, high = flat(model), flat(model)
    dist.all_reduce(low, op=dist.ReduceOp.MIN)
    dist.all_reduce(high, op=dist.ReduceOp.MAX)
    return bool((low == high).all())


def with_objects(model):
    everyones = [None] * dist.get_world_size()
    dist.all_gather_object(everyones, flat(model).cpu().numpy().tobytes())
    return len(set(everyones)) == 1


def with_numpy(model):
    everyones = [torch.empty_like(flat(model)) for _ in range(dist.get_world_size())]
    dist.all_gather(everyones, flat(model))
    stacked = torch.stack(everyones).cpu().numpy()
    return (stacked == stacked[0]).all()


def a_tensor(model):
    return torch.tensor(least_and_most(model))


EQUAL = [module.replicas_equal, against_rank_0, least_and_most, with_objects, with_numpy, a_tensor]


@pytest.mark.parametrize("answer", EQUAL)
def test_replicas_equal_right(answer):
    solved("replicas_equal", answer)


def compared(statistic):
    def replicas_equal(model):
        mine = statistic(model).detach().reshape(-1)
        everyones = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(everyones, mine)
        return all(torch.equal(theirs, everyones[0]) for theirs in everyones)

    return replicas_equal


def each_for_itself(model):
    first = flat(model)
    mine = first.clone()
    dist.broadcast(first, src=0)
    return torch.equal(mine, first)


def nearly(model):
    everyones = [torch.empty_like(flat(model)) for _ in range(dist.get_world_size())]
    dist.all_gather(everyones, flat(model))
    return all(torch.allclose(theirs, everyones[0]) for theirs in everyones)


def overwrites(model):
    equal = against_rank_0(model)
    for p in model.parameters():
        dist.broadcast(p.detach(), src=0)
    return equal


def in_eval_mode(model):
    return against_rank_0(model.eval())


def frozen(model):
    return against_rank_0(model.requires_grad_(False))


def only_rank_0(model):
    return against_rank_0(model) if dist.get_rank() == 0 else against_rank_0(model) and None


def one_rank_alone(model):
    if dist.get_rank() == 0:
        return against_rank_0(model)
    return True


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (compared(lambda model: flat(model).sum()), "Two weights of rank 1 have changed places"),
        (compared(lambda model: flat(model).sort().values), "Two weights of rank 1 have changed places"),
        (compared(lambda model: next(model.parameters())), "One weight of rank 2 is another"),
        (compared(lambda model: flat(model)[16:]), "Only a frozen weight of rank 0 is another"),
        (nearly, "One weight of rank 2 is another"),
        (each_for_itself, "on ranks 0, 1, 2: True, True, False"),
        (overwrites, "it changed the model"),
        (in_eval_mode, "the model in eval mode"),
        (frozen, "requires_grad is now False"),
        (only_rank_0, "Rank 1 returned nothing"),
        (one_rank_alone, "rank 0 waits in"),
        (lambda model: True, "One weight of rank 2 is another"),
        (lambda model: model[9 * (dist.get_rank() == 1)] is None, "rank 1 of 3 raised IndexError"),
    ],
)
@pytest.mark.usefixtures("soon")
def test_replicas_equal_wrong(answer, words):
    judge("replicas_equal", answer, words)


def test_replicas_equal_stub():
    def replicas_equal(model):
        ranks = dist.get_world_size()  # noqa: F841

    assert check.replicas_equal(replicas_equal).state == "not yet"


# -- hand_ddp ----------------------------------------------------------------------------------------------------------


def start_equal(model):
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, src=0)


def trained(model):
    return [p for p in model.parameters() if p.requires_grad]


def send(parameters, divide=None):
    bucket = torch.cat([p.grad.flatten() for p in parameters])
    dist.all_reduce(bucket)
    bucket /= divide or dist.get_world_size()
    for p, mean in zip(parameters, bucket.split([p.numel() for p in parameters]), strict=True):
        p.grad.copy_(mean.view_as(p))


def hooked(*, start=start_equal, which=trained, send=send):
    """A hand_ddp that calls `send` once as many gradients are ready as there are parameters."""

    def hand_ddp(model):
        start(model)
        mine, ready = which(model), []

        def hook(parameter):
            ready.append(parameter)
            if len(ready) == len(mine):
                ready.clear()
                send(mine)

        for parameter in mine:
            parameter.register_post_accumulate_grad_hook(hook)

    return hand_ddp


def divided_first(parameters):
    bucket = torch.nn.utils.parameters_to_vector([p.grad for p in parameters]) / dist.get_world_size()
    dist.all_reduce(bucket)
    torch.nn.utils.vector_to_parameters(bucket, [p.grad for p in parameters])


def new_gradients(parameters):
    bucket = torch.cat([p.grad.flatten() for p in parameters])
    dist.all_reduce(bucket)
    for p, total in zip(parameters, bucket.split([p.numel() for p in parameters]), strict=True):
        p.grad = total.view_as(p) / dist.get_world_size()


def at_the_end_of_backward(model):
    start_equal(model)
    waiting = []

    def once():
        waiting.clear()
        send(trained(model))

    def hook(parameter):
        if not waiting:
            waiting.append(True)
            torch.autograd.Variable._execution_engine.queue_callback(once)

    for parameter in trained(model):
        parameter.register_post_accumulate_grad_hook(hook)


def names_noted(model):
    start_equal(model)
    mine = dict.fromkeys(p for p in model.parameters() if p.requires_grad)
    seen = set()

    def hook(parameter):
        seen.add(id(parameter))
        if len(seen) == len(mine):
            seen.clear()
            send(list(mine))

    for parameter in mine:
        parameter.register_post_accumulate_grad_hook(hook)


HANDS = [hooked(send=divided_first), hooked(send=new_gradients), at_the_end_of_backward, names_noted]


@pytest.mark.parametrize("answer", [module.hand_ddp, *HANDS])
def test_hand_ddp_right(answer):
    solved("hand_ddp", answer)


def average(parameter):
    dist.all_reduce(parameter.grad)
    parameter.grad /= dist.get_world_size()


def as_in_the_notebook(model):
    for parameter in model.parameters():
        dist.broadcast(parameter.detach(), src=0)
        parameter.register_post_accumulate_grad_hook(average)


def only_trained(model):
    for tensor in [*trained(model), *model.buffers()]:
        dist.broadcast(tensor.detach(), src=0)


def no_buffers(model):
    for tensor in model.parameters():
        dist.broadcast(tensor.detach(), src=0)


def float_buffers(model):
    for tensor in model.state_dict().values():
        if tensor.is_floating_point():
            dist.broadcast(tensor, src=0)


def a_message_each(parameters):
    for parameter in parameters:
        average(parameter)


def all_gathered(parameters):
    for p in parameters:
        everyones = [torch.empty_like(p.grad) for _ in range(dist.get_world_size())]
        dist.all_gather(everyones, p.grad)
        p.grad = torch.stack(everyones).mean(0)


def reduced_and_sent(parameters):
    for p in parameters:
        dist.reduce(p.grad, dst=0)
        p.grad /= dist.get_world_size()
        dist.broadcast(p.grad, src=0)


def on_the_first(model):
    start_equal(model)
    mine = trained(model)
    mine[0].register_post_accumulate_grad_hook(lambda parameter: send(mine))


def when_all_are_there(model):
    start_equal(model)
    mine = trained(model)
    for p in mine:
        p.register_post_accumulate_grad_hook(lambda _: send(mine) if all(q.grad is not None for q in mine) else None)


def by_name(model):
    return [p for _, p in model.named_parameters(remove_duplicate=False) if p.requires_grad]


def replaced(model):
    for name, tensor in list(model.named_parameters()):
        dist.broadcast(tensor.detach(), src=0)
        owner, _, last = name.rpartition(".")
        setattr(model.get_submodule(owner), last, torch.nn.Parameter(tensor.detach().clone()))


def by_rank_0_alone(parameters):
    if dist.get_rank() == 0:
        send(parameters)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (as_in_the_notebook, "cannot register a hook on a tensor that doesn't require gradient"),
        (hooked(start=only_trained), "the frozen frozen.weight of rank 1 is to be rank 0's"),
        (hooked(start=no_buffers), "the buffer scale of rank 1 is to be rank 0's"),
        (hooked(start=float_buffers), "the buffer seen of rank 1 is to be rank 0's"),
        (hooked(send=lambda parameters: send(parameters, 1)), "the sum of the ranks' gradients, not their mean"),
        (hooked(send=lambda parameters: send(parameters, 3)), "0.667 times the mean"),
        (hooked(send=a_message_each), "3 all-reduce"),
        (hooked(send=all_gathered), "3 all-gather"),
        (hooked(send=reduced_and_sent), "3 reduce, 3 broadcast"),
        (on_the_first, "raised AttributeError"),
        (when_all_are_there, "In a step without zero_grad"),
        (hooked(which=by_name), "the message is larger than the gradients"),
        (replaced, "is a new parameter"),
        (hooked(send=by_rank_0_alone), "rank 0 waits in"),
        (start_equal, "the gradient of embed.weight on rank 0"),
    ],
)
@pytest.mark.usefixtures("soon")
def test_hand_ddp_wrong(answer, words):
    judge("hand_ddp", answer, words)
