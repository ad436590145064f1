"""Helpers for the course *From one device to many*: ranks from a notebook cell, live plots, timelines, checks.

Importing it imports no torch, starts nothing and touches no device. The rooms, from the bottom up: `ground`, `machine`
and `theory`, `pictures`, `live`, `ranks`, `lessons`, `export`, `cores`, `lightning`, `checks`; each one's first lines
say what it is for, and a room imports only from those below it.
"""

from . import checks as check
from . import cores as xla
from . import pictures
from .export import export
from .ground import style
from .ground.errors import CourseError, DeviceError, LaunchError, MetricError, RankError
from .ground.timeline import Span, Timeline
from .lessons.knobs import knobs
from .live import LivePlot, live, my_board
from .machine import Device, Machine, discover, pick
from .ranks import Run, Traffic, launch, report, span, warm_up

launch.export = export  # launch(train, …) runs here; launch.export(train, "train.py", …), wherever torchrun does

__all__ = [
    "CourseError",
    "Device",
    "DeviceError",
    "LaunchError",
    "LivePlot",
    "Machine",
    "MetricError",
    "RankError",
    "Run",
    "Span",
    "Timeline",
    "Traffic",
    "check",
    "discover",
    "export",
    "knobs",
    "launch",
    "live",
    "my_board",
    "pick",
    "pictures",
    "report",
    "span",
    "style",
    "warm_up",
    "xla",
]
