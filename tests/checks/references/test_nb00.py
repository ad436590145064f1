"""The published solutions of notebook 00 against a formula and against `launch`."""

import torch

from course_utils import launch, pick
from course_utils.checks.nb00_start_here import rank_device, shared_sum


def test_rank_device_is_what_launch_gives():
    gpus = torch.cuda.device_count()
    for ranks in (1, 3):
        assert launch(lambda: str(pick()), ranks=ranks).results == [rank_device(i, ranks, gpus) for i in range(ranks)]


def test_shared_sum_is_the_formula():
    for n in (0, 3, 1_000):
        assert launch(shared_sum, n, ranks=3).results == [n * (n - 1) // 2] * 3
