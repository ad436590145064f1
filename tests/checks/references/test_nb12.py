"""The published schedules are torch's: tests/lessons/test_pipeline.py and test_schedules.py hold
these against it.
"""

import itertools

from course_utils import schedules
from course_utils.checks.nb12_pipeline_parallel import write_1f1b, write_zero_bubble


def test_every_rank_does_what_torchs_does():
    for name, answer in (("1F1B", write_1f1b), ("zero-bubble", write_zero_bubble)):
        for ranks, micro_batches in itertools.product((2, 3, 4, 8), (1, 2, 4, 8, 24)):
            if micro_batches < ranks and answer is write_zero_bubble:
                continue
            written = [answer(rank, ranks, micro_batches) for rank in range(ranks)]
            schedule = schedules.make(name, ranks=ranks, micro_batches=micro_batches)
            assert schedules.parse(written, micro_batches).orders == schedule.orders
