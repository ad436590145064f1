"""The JavaScript that lies beside this file: put into the page, so that pictures stay alive with no kernel."""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).parent


def source(*names: str) -> str:
    """The files, one after the other."""
    return "".join((HERE / name).read_text(encoding="utf-8") for name in names)


def script(*names: str) -> str:
    """The files in a scope of their own, so that several copies on one page do not meet."""
    return f"(function () {{\n{source(*names)}}})();\n"
