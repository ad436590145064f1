"""What contributors run: notebooks executed again, drift refused; the repository's address written
and taken out.
"""

import shutil
import tomllib
from collections import namedtuple
from itertools import count
from pathlib import Path

import nbformat
import psutil
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbformat.v4 import new_code_cell, new_notebook, new_output

from tests.files import ROOT
from tools import badges
from tools.execute import CONTROLS, execute

REPO = "jane/one-to-many"
Times = namedtuple("Times", "user idle steal")


@pytest.fixture(autouse=True)
def idle(monkeypatch):
    """The per cent of the CPU that the next looks find idle; then all of it."""
    looks: list[float] = []
    clock = count()
    monkeypatch.setattr(
        psutil, "cpu_times_percent", lambda _: Times(0, looks.pop(0) if looks else 100, 0)
    )
    monkeypatch.setattr(psutil, "cpu_times", lambda: Times(0, next(clock), 0))
    return looks


def saved(folder: Path, source: str, tag: str = "nbval-check-output") -> Path:
    cell = new_code_cell(source, metadata={"tags": [tag]})
    page = new_notebook(
        cells=[cell], metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}}
    )
    nbformat.write(page, folder / "page.ipynb")
    return folder / "page.ipynb"


def test_drift_and_errors_are_refused_until_drift_is_accepted(tmp_path):
    path = saved(tmp_path, "import ipywidgets\nprint(6 * 7)\nipywidgets.IntSlider()")
    before = path.read_text()
    assert "+42" in execute(path)
    assert path.read_text() == before
    assert execute(path, accept=True) == ""
    printed, slider = nbformat.read(path, 4).cells[0].outputs
    assert printed.text == "42\n"
    assert slider.data.keys() == {"text/plain"}
    assert CONTROLS not in path.read_text()
    saved(tmp_path, "1 / 0")
    with pytest.raises(CellExecutionError, match="ZeroDivisionError"):
        execute(path, accept=True)
    assert not nbformat.read(path, 4).cells[0].outputs


@pytest.fixture
def prints(monkeypatch):
    """A cell prints its source, and no kernel is started."""

    def run(client):
        [cell] = client.nb.cells
        cell.outputs = [new_output("stream", text=cell.source)]

    monkeypatch.setattr(NotebookClient, "execute", run)


def test_a_claim_must_be_true(tmp_path, prints):
    claims = {"a: True": "", "True\nb: False": "b: False", "1": "No claim is True"}
    for printed, said in claims.items():
        path = saved(tmp_path, printed, "claim")
        assert said in (why := execute(path))
        assert bool(nbformat.read(path, 4).cells[0].outputs) == (not said) == (not why)


def test_a_machine_with_other_work_is_refused_and_waited_for(tmp_path, idle, prints, monkeypatch):
    path = saved(tmp_path, "1", "free")
    idle += [80]
    assert "20 % of the CPU was used" in execute(path), "before"
    idle += [100, 70]
    assert "30 % of the CPU was used" in execute(path), "afterwards"
    idle += [80, 80]
    assert execute(path, wait=True) == ""
    clock = count()
    monkeypatch.setattr(psutil, "cpu_times", lambda: Times(0, 9 * (now := next(clock)), now))
    assert "10% of the CPU time was stolen" in execute(path)


def test_the_address_is_written_and_taken_out_again(tmp_path):
    pages = [tmp_path / "README.md", tmp_path / "pyproject.toml"]
    for page in pages:
        shutil.copy(ROOT / page.name, page)
    shutil.copytree(ROOT / "notebooks", tmp_path / "notebooks", ignore=shutil.ignore_patterns(".*"))

    def stamped(repo: str) -> dict[str, str]:
        badges.stamp(tmp_path, repo)
        return {
            path.name: path.read_text() for path in [*pages, *tmp_path.glob("notebooks/*.ipynb")]
        }

    plain, once = stamped(""), stamped(REPO)
    assert all(REPO in text for text in once.values())
    assert not any(REPO in text for text in stamped("joe/fork").values())
    assert stamped(REPO) == once
    project = tomllib.loads(once["pyproject.toml"])["project"]
    assert project["urls"] == {"Repository": f"https://github.com/{REPO}"}
    for path in tmp_path.glob("notebooks/*.ipynb"):
        page = nbformat.read(path, 4)
        nbformat.validate(page)
        code = [cell for cell in page.cells if cell.cell_type == "code"]
        assert code[0].source.endswith(f'%pip install -q "git+https://github.com/{REPO}"')
        assert ("mybinder.org" in page.cells[0].source) == (
            page.metadata.kernelspec.name != "xla"
        ), "no room on Binder"
    assert stamped("") == plain
    with pytest.raises(SystemExit, match="owner/name"):
        stamped("https://github.com/jane/one-to-many")
