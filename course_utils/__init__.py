"""Helpers for the course *From one device to many*: ranks from a notebook cell, live plots, timelines, checks.

Importing it imports no torch, starts nothing and touches no device.
"""

from . import checks as check
from ._session import report
from ._spans import span
from .devices import Device, Machine, discover, pick
from .errors import CourseError, DeviceError, LaunchError, MetricError, RankError
from .launch import Run, launch, warm_up
from .live import LivePlot, live
from .timeline import Span, Timeline

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
    "check",
    "discover",
    "launch",
    "live",
    "pick",
    "report",
    "span",
    "warm_up",
]
