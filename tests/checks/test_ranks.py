import pytest
import torch
import torch.distributed as dist

from course_utils import check
from course_utils.checks import ranks as module

NAMES = ["broadcast_by_hand", "mean_over_ranks", "ring_all_reduce"]


@pytest.mark.parametrize("name", NAMES)
def test_the_published_solution_passes(name):
    exercise = getattr(check, name)
    verdict = exercise(exercise.published)
    assert verdict, str(verdict)


@pytest.mark.parametrize("name", NAMES)
def test_a_rank_that_raises_is_shown_with_its_line_and_without_ours(name):
    def mine(tensor, src=0):
        return tensor.nonsense()

    verdict = getattr(check, name)(mine)
    assert "AttributeError" in verdict.text
    assert "tensor.nonsense()" in verdict.text
    assert "course_utils" not in str(verdict)


def test_broadcast_with_the_ready_made_one():
    verdict = check.broadcast_by_hand(lambda tensor, src: dist.broadcast(tensor, src))
    assert verdict.got == "dist.broadcast"


def test_broadcast_that_knows_only_rank_0():
    def from_zero(tensor, src):
        if dist.get_rank() == 0:
            for other in range(1, dist.get_world_size()):
                dist.send(tensor, other)
        else:
            dist.recv(tensor, 0)

    verdict = check.broadcast_by_hand(from_zero)
    assert "2 ranks, src=1: rank 0's tensor" in verdict.text
    assert "[11.0, 11.0, 11.0]" in verdict.expected
    assert "[10.0, 10.0, 10.0]" in verdict.got


def test_broadcast_that_loses_what_arrives():
    def lost(tensor, src):
        if dist.get_rank() == src:
            for other in range(dist.get_world_size()):
                if other != src:
                    dist.send(tensor, other)
        else:
            dist.recv(torch.empty_like(tensor), src)

    assert "rank 1's tensor: off by 1" in check.broadcast_by_hand(lost).text


def test_mean_of_means_and_sum():
    def mean_of_means(losses):
        mean = losses.mean()
        dist.all_reduce(mean)
        return (mean / dist.get_world_size()).item()

    verdict = check.mean_over_ranks(mean_of_means)
    assert (verdict.expected, verdict.got) == ("3", "2.75")
    assert "[3, 6] losses" in verdict.text
    assert "rank 0's mean" in check.mean_over_ranks(lambda losses: losses.mean().item()).text


def test_ring_with_the_ready_made_one():
    assert check.ring_all_reduce(lambda tensor: dist.all_reduce(tensor)).got == "dist.all_reduce"


def test_ring_that_only_reduces_and_scatters():
    def half(tensor):
        rank, p = dist.get_rank(), dist.get_world_size()
        chunks = tensor.tensor_split(p)
        for step in range(p - 1):
            arriving = torch.empty_like(chunks[(rank - step - 2) % p])
            sending = dist.isend(chunks[(rank - step - 1) % p], (rank + 1) % p)
            dist.recv(arriving, (rank - 1) % p)
            sending.wait()
            chunks[(rank - step - 2) % p].add_(arriving)

    verdict = check.ring_all_reduce(half)
    assert "2 ranks, 12 numbers: rank 0's tensor: off by" in verdict.text
    assert "100.0" in verdict.expected
    assert verdict.got


def test_ring_that_sends_everything_every_time():
    def whole(tensor):
        rank, p = dist.get_rank(), dist.get_world_size()
        passing = tensor.clone()
        for _ in range(p - 1):
            arriving = torch.empty_like(tensor)
            sending = dist.isend(passing, (rank + 1) % p)
            dist.recv(arriving, (rank - 1) % p)
            sending.wait()
            tensor += arriving
            passing = arriving

    verdict = check.ring_all_reduce(whole)
    assert "3 ranks, 12 numbers: rank 0 sends more than 2(p - 1)/p" in verdict.text
    assert (verdict.expected, verdict.got) == ("at most 16 numbers", "24 numbers")


def test_ring_through_rank_0_is_no_ring():
    def star(tensor):
        rank, p = dist.get_rank(), dist.get_world_size()
        if rank == 0:
            for other in range(1, p):
                arriving = torch.empty_like(tensor)
                dist.recv(arriving, other)
                tensor += arriving
            for other in range(1, p):
                dist.send(tensor, other)
        else:
            dist.send(tensor, 0)
            dist.recv(tensor, 0)

    verdict = check.ring_all_reduce(star)
    assert verdict.got == "24 numbers" or "neighbour" in verdict.text


def test_ring_of_blocking_sends_is_named_by_the_time_limit(monkeypatch):
    monkeypatch.setattr(module, "TIME_LIMIT", 2.0)

    def blocking(tensor):
        rank, p = dist.get_rank(), dist.get_world_size()
        dist.send(tensor, (rank + 1) % p)
        dist.recv(tensor, (rank - 1) % p)

    verdict = check.ring_all_reduce(blocking)
    assert "time limit" in verdict.text
    assert "ranks 0, 1 wait in send" in verdict.text


def test_ring_with_batched_sends():
    def batched(tensor):
        rank, p = dist.get_rank(), dist.get_world_size()
        chunks = tensor.tensor_split(p)
        for step in range(2 * (p - 1)):
            leaving, target = chunks[(rank - step - 1) % p], chunks[(rank - step - 2) % p]
            arriving = torch.empty_like(target)
            pair = [dist.P2POp(dist.isend, leaving, (rank + 1) % p), dist.P2POp(dist.irecv, arriving, (rank - 1) % p)]
            for work in dist.batch_isend_irecv(pair):
                work.wait()
            target.copy_(arriving + (target if step < p - 1 else 0))

    verdict = check.ring_all_reduce(batched)
    assert verdict, str(verdict)
