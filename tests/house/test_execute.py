"""Notebooks that are executed again: outputs saved, drift refused, nothing of the run's machine kept."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from tools.execute import CHECKED, CONTROLS, execute


@pytest.fixture
def saved(tmp_path: Path):
    """A function that writes a notebook: its path."""

    def write(*sources: str) -> Path:
        cells = [new_code_cell(source, metadata={"tags": [CHECKED]}) for source in sources]
        page = new_notebook(cells=cells, metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}})
        nbformat.write(page, tmp_path / "page.ipynb")
        return tmp_path / "page.ipynb"

    return write


def test_drift_is_refused_until_it_is_accepted(saved) -> None:
    path = saved("print(6 * 7)")
    before = path.read_text()
    said = execute(path)
    assert "+42" in said
    assert "Not saved" in said
    assert path.read_text() == before
    assert execute(path, accept=True) == ""
    assert execute(path) == "", "and now it is what is saved"
    assert nbformat.read(path, 4).cells[0].outputs[0].text == "42\n"


def test_an_error_leaves_the_notebook_alone(saved) -> None:
    path = saved("1 / 0")
    before = path.read_text()
    assert "ZeroDivisionError" in execute(path, accept=True)
    assert path.read_text() == before


def test_controls_and_times_are_not_kept(saved) -> None:
    path = saved("import ipywidgets\nipywidgets.IntSlider()")
    assert execute(path, accept=True) == ""
    page = nbformat.read(path, 4)
    assert page.cells[0].outputs[0].data.keys() == {"text/plain"}
    assert CONTROLS not in path.read_text()
    assert set(page.metadata) == {"kernelspec", "language_info"}
    assert "execution" not in page.cells[0].metadata
