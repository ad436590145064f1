"""The exercises of notebook 00: the published solutions pass, plausible mistakes are answered in words."""

import pytest
import torch

from course_utils import check, pick


@pytest.mark.parametrize("name", ["pick_device", "rank_device", "threads_per_rank"])
def test_published(name):
    exercise = getattr(check, name)
    assert exercise(exercise.published)


def by_hand():
    if torch.cuda.is_available():
        return torch.device("cuda:0")
    if torch.backends.mps.is_available():
        return torch.device("mps")
    return torch.device("xpu", 0) if torch.xpu.is_available() else torch.device("cpu")


@pytest.mark.parametrize("answer", [by_hand, lambda: pick()])
def test_pick_device_other_right_answers(answer):
    assert check.pick_device(answer)


def test_nothing_stays_pretended():
    before = torch.cuda.is_available, torch.accelerator.current_accelerator
    check.pick_device(lambda: 1 / 0)
    assert (torch.cuda.is_available, torch.accelerator.current_accelerator) == before


def test_pick_device_cuda_only():
    verdict = check.pick_device(lambda: torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    assert verdict.text.startswith("on a Mac with an Apple GPU: the kind of device")
    assert (verdict.expected, verdict.got) == ("'mps'", "'cpu'")


def test_pick_device_a_name():
    verdict = check.pick_device(lambda: "cpu")
    assert verdict.text == "On this machine: give a torch.device."
    assert (verdict.expected, verdict.got) == ("device(type='cpu')", "cpu")


@pytest.mark.skipif(torch.accelerator.is_available(), reason="needs a machine without an accelerator")
def test_pick_device_always_cuda():
    verdict = check.pick_device(lambda: torch.device("cuda"))
    assert (verdict.expected, verdict.got) == ("'cpu'", "'cuda'")


def test_pick_device_unavailable_accelerator():
    def answer():
        return torch.device(torch.accelerator.current_accelerator().type)

    verdict = check.pick_device(answer)
    assert not verdict
    if not torch.accelerator.is_available():
        assert verdict.text.startswith("It raised AttributeError")
        assert "in answer" in verdict.line


def test_rank_device_the_same_gpu_for_all():
    verdict = check.rank_device(lambda rank, ranks, gpus: "cuda:0" if gpus else "cpu")
    assert verdict.text.startswith("4 ranks on 8 GPUs, rank by rank")
    assert verdict.expected == "['cuda:0', 'cuda:1', 'cuda:2', 'cuda:3']"
    assert verdict.got == "['cuda:0', 'cuda:0', 'cuda:0', 'cuda:0']"


def test_rank_device_mixed():
    verdict = check.rank_device(lambda rank, ranks, gpus: f"cuda:{rank}" if rank < gpus else "cpu")
    assert verdict.text.startswith("4 ranks on 2 GPUs, rank by rank")
    assert (verdict.expected, verdict.got) == ("['cpu', 'cpu', 'cpu', 'cpu']", "['cuda:0', 'cuda:1', 'cpu', 'cpu']")


def test_threads_none_left():
    verdict = check.threads_per_rank(lambda cores, ranks: cores // ranks)
    assert (verdict.expected, verdict.got) == ("1", "0")
    assert verdict.text.startswith("threads_per_rank(2, 4)")


def test_threads_not_whole():
    verdict = check.threads_per_rank(lambda cores, ranks: max(1, cores // ranks))
    assert verdict.text == "A number of threads is an int."
    assert (verdict.expected, verdict.got) == ("2 (int)", "2.0")


def test_stub():
    def rank_device(rank, ranks, gpus): ...

    assert check.rank_device(rank_device).state == "not yet"
