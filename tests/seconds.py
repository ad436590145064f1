"""The seconds of each notebook, at the end of a run of nbval: `pytest -p tests.seconds
notebooks/*.ipynb`.
"""

from collections import Counter

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    seconds: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                seconds[report.nodeid.partition("::")[0]] += report.duration
    for notebook, taken in sorted(seconds.items()):
        terminalreporter.write_line(f"{taken:6.1f} s  {notebook}")
