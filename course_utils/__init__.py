"""Helpers for the course *From one device to many*: ranks from a notebook cell, live plots,
timelines, checks.

Importing it imports no torch, starts nothing and touches no device. From the bottom up: `errors`,
`limits`, `joining`, `kernel_values`, `records`, `style`, `timeline`, `dist_utils`, `tpus`,
`schedules`, `planner`, `machine`, `pictures`, `ranks`, `lessons`, `scripts`, `xla`, `lightning`,
`checks`; each one's first lines say what it is for, and a module imports only from those below it.
"""

from . import checks as check
from . import pictures, style, xla
from .errors import CourseError, DeviceError, RankError
from .machine import Device, Machine, discover, pick
from .pictures.knobs import knobs
from .pictures.live import LivePlot, live
from .ranks import Run, Traffic, launch, report, span, warm_up
from .scripts import export
from .timeline import Span, Timeline

__version__ = "0.5.0"
__all__ = [
    "CourseError",
    "Device",
    "DeviceError",
    "LivePlot",
    "Machine",
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
    "pick",
    "pictures",
    "report",
    "span",
    "style",
    "warm_up",
    "xla",
]
