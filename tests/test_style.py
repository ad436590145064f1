import itertools
import math

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from course_utils import style
from tests.tables import rows

# Deuteranopia as Machado, Oliveira and Fernandes (2009) give it, in sRGB.
WITHOUT_GREEN = (
    (0.367322, 0.860646, -0.227968),
    (0.280085, 0.672501, 0.047413),
    (-0.011820, 0.042940, 0.968881),
)


def luminance(color: str) -> float:
    r, g, b = (p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in to_rgb(color))
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_every_colour_can_be_seen_on_light_and_dark_pages():
    for page in ("#ffffff", "#111111"):
        for color in (*style.RANK, *style.ROLE.values()):
            assert contrast(color, page) >= 3, (color, page)
        assert contrast(style.GREY, page) >= 4.3


def test_four_ranks_differ_in_colour_for_colour_blind_readers_and_all_by_their_dashes():
    work = [style.ROLE[role] for role in ("data", "forward", "backward", "optimizer")]
    for colors in (style.RANK[:4], work):
        for one, other in itertools.combinations(map(to_rgb, colors), 2):
            assert np.abs(WITHOUT_GREEN @ np.subtract(one, other)).max() > 45 / 255
    assert len({(style.color(rank), style.dash(rank)) for rank in range(16)}) == 16
    assert len({style.dash(rank) for rank in range(4)}) == 4


ROLES = """
name                 role
forward              forward
Forward 3            forward
all_reduce bucket 2  communication
all-gather           communication
all_to_all           communication
send activations     communication
all of it            other
step                 other
stepwise             other
optimizer.step       optimizer
load data            data
waiting              idle
wait for batch       idle
"""


@pytest.mark.parametrize(("name", "role"), rows(ROLES))
def test_role_of_a_span_by_its_name(name, role):
    assert style.role_of(name) == role


def test_a_number_beyond_the_range_of_floats_is_infinite():
    assert [style.as_float(sign * 10**400) for sign in (1, -1)] == [math.inf, -math.inf]
    assert style.as_float(np.ones((1, 1))) == 1


SAID = """
call                   text
duration(0.0124)       12.4 ms
duration(0.9999)       1,000 ms
duration(3.24)         3.24 s
duration(89.9)         89.9 s
duration(750)          12.5 min
duration(5400)         1.5 h
duration(3.6e6)        1,000 h
duration(0.456, 2)     456 ms
duration(3.24, 2)      3.2 s
duration(45.3, 2)      45 s
duration(749, 2)       12 min
size(0)                0 B
size(999)              999 B
size(999.6)            1 kB
size(31_400_000_000)   31.4 GB
size(999.7e9)          1 TB
size(2_048e12)         2,048 TB
"""


@pytest.mark.parametrize(("call", "text"), rows(SAID))
def test_durations_and_sizes_as_one_reads_them(call, text):
    assert eval(f"style.{call}") == text
