"""Where ranks run, on machines with 0 to 8 accelerators of several kinds: torch is only asked what
there is.
"""

import pytest
import torch

from course_utils import DeviceError, pick
from course_utils.machine import default_ranks
from course_utils.ranks.launcher import placement


@pytest.mark.parametrize("ranks", [None, 1, 2, 4])
@pytest.mark.parametrize("kind", ["cuda", "xpu"])
@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_an_accelerator_each_or_the_cpu_for_all(gpus, count, kind, ranks):
    gpus(count, kind)
    wanted = ranks or default_ranks(range(1, count + 1))
    device = kind if 0 < wanted <= count else "cpu"
    assert placement(ranks, None) == (wanted, device)
    assert pick(ranks=wanted).type == device
    assert placement(1, pick(ranks=wanted))[1] == device, "a baseline runs where the others run"


@pytest.mark.parametrize(
    ("ranks", "device"), [(2, "cuda:1"), (2, "tpu"), (2, torch.device("cuda", 1)), (3, "cuda")]
)
def test_a_device_that_ranks_cannot_have(gpus, ranks, device):
    gpus(2)
    with pytest.raises(
        DeviceError, match='"cpu" here, or on "cuda", one device each, if they are 1, 2'
    ) as caught:
        placement(ranks, device)
    assert f'device="{device}"' in str(caught.value)
