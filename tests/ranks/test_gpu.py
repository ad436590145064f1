"""What only a GPU can show. Skipped, with a word, where there is none."""

import pytest
import torch
import torch.distributed as dist

from course_utils import launch, pick, span


def all_reduced() -> tuple[str, float]:
    device = pick()
    total = torch.ones(1, device=device) * (dist.get_rank() + 1)
    dist.all_reduce(total)
    return device.type, total.item()


@pytest.mark.gpu
def test_launch_works_after_the_notebook_used_cuda():
    torch.ones(1, device="cuda")
    assert launch(all_reduced, ranks=1, device="cuda").results == [("cuda", 1.0)]
    assert launch(lambda: torch.cuda._is_in_bad_fork(), ranks=1, device="cuda").results == [False]


@pytest.mark.gpu
def test_spans_measure_the_device_not_the_call():
    def work():
        a = torch.randn(4096, 4096, device=pick())
        a @ a
        torch.cuda.synchronize()
        with span("forward"):
            for _ in range(20):
                a = a @ a / 64
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(20):
            a = a @ a / 64
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end) / 1000

    run = launch(work, ranks=1, device="cuda")
    [forward] = [one for one in run.timeline.spans if one.name == "forward"]
    assert forward.seconds == pytest.approx(run.results[0], rel=0.5)


@pytest.mark.gpus
def test_one_gpu_a_rank_over_nccl():
    run = launch(all_reduced, ranks=2)
    assert (run.device, run.backend) == ("cuda", "nccl")
    assert run.results == [("cuda", 3.0)] * 2
    assert launch(lambda: pick().index, ranks=2).results == [0, 1]
