"""The exercises of notebook 05: published solutions pass, plausible wrong answers fail in words."""

import pytest
import torch
import torch.distributed as dist

from course_utils import check


def test_rank_share_solution():
    assert check.rank_share(check.rank_share.published)


def blocks(samples, ranks, rank):
    each = -(-samples // ranks)
    return list(range(samples))[rank * each : (rank + 1) * each]


def unequal(samples, ranks, rank):
    return list(range(rank, samples, ranks))


def filled_once(samples, ranks, rank):
    numbers = list(range(samples))
    numbers += numbers[: -samples % ranks]
    return numbers[rank::ranks]


@pytest.mark.parametrize(
    ("answer", "what", "expected", "got"),
    [
        (blocks, "rank_share(16, 4, 0): ", "[0, 4, 8, 12]", "[0, 1, 2, 3]"),
        (unequal, "rank_share(18, 4, 2): ", "[2, 6, 10, 14, 0]", "[2, 6, 10, 14]"),
        (filled_once, "rank_share(2, 7, 4): ", "[0]", "[]"),
    ],
)
def test_rank_share_wrong(answer, what, expected, got):
    verdict = check.rank_share(answer)
    assert verdict.state == "wrong"
    assert verdict.text.startswith(what)
    assert (verdict.expected, verdict.got) == (expected, got)


def test_rank_share_that_raises():
    def rank_share(samples, ranks, rank):
        return list(range(samples))[rank::ranks][samples]

    verdict = check.rank_share(rank_share)
    assert "IndexError" in verdict.text
    assert verdict.line.endswith("return list(range(samples))[rank::ranks][samples]")
    assert "course_utils" not in str(verdict)


def test_replicas_equal_solution():
    assert check.replicas_equal(check.replicas_equal.published)


def by_sum(model):
    total = sum(p.sum() for p in model.parameters()).detach()
    totals = [torch.empty_like(total) for _ in range(dist.get_world_size())]
    dist.all_gather(totals, total)
    return all(torch.equal(t, totals[0]) for t in totals)


def each_for_itself(model):
    first = torch.cat([p.detach().flatten() for p in model.parameters()])
    mine = first.clone()
    dist.broadcast(first, src=0)
    return torch.equal(mine, first)


def trained_only(model):
    mine = torch.cat([p.detach().flatten() for p in model.parameters() if p.requires_grad])
    everyones = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(everyones, mine)
    return all(torch.equal(t, everyones[0]) for t in everyones)


def overwrites(model):
    equal = True
    for p in model.parameters():
        mine = p.detach().clone()
        dist.broadcast(p.detach(), src=0)
        same = torch.tensor(float(torch.equal(mine, p)))
        dist.all_reduce(same, op=dist.ReduceOp.MIN)
        equal = equal and bool(same)
    return equal


@pytest.mark.parametrize(
    ("answer", "what", "got"),
    [
        (by_sum, "Two weights of rank 1 have changed places", "[True, True, True]"),
        (each_for_itself, "One weight of rank 2 is another", "[True, True, False]"),
        (trained_only, "Only a frozen weight of rank 0 is another", "[True, True, True]"),
        (overwrites, "it changed the model", "other parameters"),
        (lambda model: torch.tensor(True), "All replicas are equal", "tensor"),
    ],
)
def test_replicas_equal_wrong(answer, what, got):
    verdict = check.replicas_equal(answer)
    assert verdict.state == "wrong"
    assert what in verdict.text
    assert got in verdict.got
    assert verdict.expected


def test_replicas_equal_that_raises_on_a_rank():
    def replicas_equal(model):
        return model[9 * (dist.get_rank() == 1)] is None

    verdict = check.replicas_equal(replicas_equal)
    assert verdict.text.startswith("rank 1 of 3 raised IndexError")
    assert "return model[9 * (dist.get_rank() == 1)] is None" in verdict.text
    assert "course_utils" not in str(verdict)


def test_replicas_equal_stub():
    def replicas_equal(model):
        ranks = dist.get_world_size()  # noqa: F841

    assert check.replicas_equal(replicas_equal).state == "not yet"


def test_hand_ddp_solution():
    verdict = check.hand_ddp(check.hand_ddp.published)
    assert verdict, str(verdict)


def average(parameter):
    dist.all_reduce(parameter.grad)
    parameter.grad /= dist.get_world_size()


def as_in_the_notebook(model):
    for parameter in model.parameters():
        dist.broadcast(parameter.detach(), src=0)
        parameter.register_post_accumulate_grad_hook(average)


def frozen_not_sent(model):
    for tensor in model.buffers():
        dist.broadcast(tensor, src=0)
    for parameter in model.parameters():
        if parameter.requires_grad:
            dist.broadcast(parameter.detach(), src=0)
            parameter.register_post_accumulate_grad_hook(average)


def buffer_not_sent(model):
    for parameter in model.parameters():
        dist.broadcast(parameter.detach(), src=0)
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(average)


def a_message_each(model):
    for tensor in model.buffers():
        dist.broadcast(tensor, src=0)
    buffer_not_sent(model)


def bucket(model, *, trained, divide):
    for tensor in [*model.parameters(), *model.buffers()]:
        dist.broadcast(tensor.detach(), src=0)
    seen = []

    def hook(parameter):
        seen.append(parameter)
        if len(seen) == trained(model):
            seen.clear()
            mine = [p for p in model.parameters() if p.requires_grad]
            flat = torch.cat([p.grad.flatten() for p in mine])
            dist.all_reduce(flat)
            flat /= divide
            for p, piece in zip(mine, flat.split([p.numel() for p in mine]), strict=True):
                p.grad.copy_(piece.view_as(p))

    for p in model.parameters():
        if p.requires_grad:
            p.register_post_accumulate_grad_hook(hook)


def summed(model):
    bucket(model, trained=lambda m: 3, divide=1)


def tied_counted_twice(model):
    names = lambda m: sum(p.requires_grad for _, p in m.named_parameters(remove_duplicate=False))  # noqa: E731
    bucket(model, trained=names, divide=3)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (as_in_the_notebook, "cannot register a hook on a tensor that doesn't require gradient"),
        (frozen_not_sent, "the frozen frozen.weight of rank 1 is to be rank 0's"),
        (buffer_not_sent, "the buffer scale of rank 1 is to be rank 0's"),
        (summed, "the sum of the ranks' gradients, not their mean"),
        (tied_counted_twice, "Step 0: the gradient of embed.weight on rank 0"),
        (a_message_each, "Now send them in one bucket"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_hand_ddp_wrong(answer, words):
    verdict = check.hand_ddp(answer)
    assert verdict.state == "wrong"
    assert words in verdict.text
    if answer is not as_in_the_notebook:
        assert verdict.expected
        assert verdict.got
    assert "course_utils" not in str(verdict)


def test_hand_ddp_counts_the_messages():
    assert check.hand_ddp(a_message_each).got == "3 all-reduces a step"


def test_hand_ddp_that_hangs_names_the_ranks(monkeypatch):
    from course_utils.checks import ddp

    monkeypatch.setattr(ddp, "SECONDS", 2.0)

    def hand_ddp(model):
        if dist.get_rank() == 0:
            dist.barrier()

    verdict = check.hand_ddp(hand_ddp)
    assert verdict.state == "wrong"
    assert "rank" in verdict.text
