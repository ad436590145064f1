import itertools
import math

import numpy as np
from matplotlib.colors import to_rgb

from course_utils import style

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


def test_role_of_a_span_by_its_name():
    said = {
        "forward": "forward",
        "Forward 3": "forward",
        "all_reduce bucket 2": "communication",
        "step": "other",
        "all-gather": "communication",
        "send activations": "communication",
        "optimizer.step": "optimizer",
        "load data": "data",
        "waiting": "idle",
        "wait for batch": "idle",
        "stepwise": "other",
        "": "other",
        "all_to_all": "communication",
        "all of it": "other",
    }
    assert {name: style.role_of(name) for name in said} == said


def test_a_number_beyond_the_range_of_floats_is_infinite():
    assert [style.as_float(sign * 10**400) for sign in (1, -1)] == [math.inf, -math.inf]
    assert style.as_float(np.ones((1, 1))) == 1


def test_durations_and_sizes_as_one_reads_them():
    said = {
        0.0124: "12.4 ms",
        0.9999: "1,000 ms",
        3.24: "3.24 s",
        89.9: "89.9 s",
        750: "12.5 min",
        5400: "1.5 h",
        3.6e6: "1,000 h",
    }
    assert {seconds: style.duration(seconds) for seconds in said} == said
    assert [style.duration(seconds, 2) for seconds in (0.456, 3.24, 45.3, 749)] == [
        "456 ms",
        "3.2 s",
        "45 s",
        "12 min",
    ]
    said = {
        0: "0 B",
        999: "999 B",
        999.6: "1 kB",
        31_400_000_000: "31.4 GB",
        999.7e9: "1 TB",
        2_048e12: "2,048 TB",
    }
    assert {count: style.size(count) for count in said} == said
