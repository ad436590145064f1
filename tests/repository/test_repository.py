"""Pins are what is installed, links lead somewhere, notebooks were run from top to bottom and are
fit to commit.
"""

import re
import sys
from pathlib import Path

import nbformat
import pytest

from course_utils.checks import all_exercises
from tests.files import NOTEBOOKS, ROOT, cells
from tests.python import run

HINT = "<details><summary>Hint 1</summary>"
VERSIONS = "import sys; from importlib.metadata import version; print(*map(version, sys.argv[1:]))"


def tags(cell: nbformat.NotebookNode) -> list[str]:
    return cell.metadata.get("tags", [])


def pins(file: str) -> dict[str, str]:
    text = (ROOT / file).read_text()
    found = dict(re.findall(r"^([\w-]+)==([\w.]+)", text, re.MULTILINE))
    assert len(found) == len(re.findall(r"^[^#\n]", text, re.MULTILINE)), (
        "every line is an exact version"
    )
    return found


def installed(python: str | Path, names: list[str]) -> list[str]:
    done = run(python, "-c", VERSIONS, *names)
    return [version.split("+")[0] for version in done.stdout.split()]


def test_pins_are_what_is_installed():
    course, xla = pins("requirements.txt"), pins("requirements-xla.txt")
    tests = pins("tests/requirements.txt")
    assert installed(sys.executable, [*course, *tests]) == [*course.values(), *tests.values()]
    assert f"torch=={course['torch']}+cpu" in (ROOT / "binder" / "requirements.txt").read_text()
    assert xla["torch"] == xla["torch_xla"], "torch_xla fits one torch only"
    assert not {pin for pin in (xla.keys() & course.keys()) - {"torch"} if xla[pin] != course[pin]}
    assert (
        f"torch_xla[tpu]=={xla['torch_xla']}" in (ROOT / "course_utils/xla/launcher.py").read_text()
    )
    if (ROOT / ".venv-xla" / "ready").exists():
        assert installed(ROOT / ".venv-xla" / "bin" / "python", [*xla]) == [*xla.values()]


def test_the_glossary_is_that_of_the_notebooks():
    made = "import site_pages; print(site_pages.glossary(), end='')"
    page = run(sys.executable, "-c", made, cwd=ROOT / "docs")
    assert (ROOT / "docs" / "glossary.md").read_text() == page.stdout, "python docs/site_pages.py"


def test_links_lead_somewhere():
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("benchmarks/*.md")]
    lost = []
    for page in [*pages, *NOTEBOOKS]:
        text = page.read_text()
        if page.suffix == ".ipynb":
            text = "\n".join(cell.source for cell in cells(page, "markdown"))
        text = re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)
        local = re.findall(r"\]\((?!https?:|#|attachment:)([^)\s#]+)", text)
        lost += [f"{page.name}: {link}" for link in local if not (page.parent / link).exists()]
    assert not lost


def test_readme_and_site_have_a_place_for_every_notebook():
    readme, site = (ROOT / "README.md").read_text(), (ROOT / "docs" / "index.md").read_text()
    for notebook in NOTEBOOKS:
        first = cells(notebook, "markdown")[0].source
        question = re.search(rf"^# {notebook.name[:2]} · (.+\?)$", first, re.MULTILINE)[1]
        minutes = re.search(r"(\d+) min", first)[1]
        assert (
            f"| {notebook.name[:2]} | [{question}](notebooks/{notebook.name}) | {minutes} |"
            in readme
        )
        assert f"\n../notebooks/{notebook.stem}\n" in site


def test_every_exercise_has_its_place_and_hints_in_its_notebook():
    wrong = []
    for name, exercise in all_exercises().items():
        file = exercise.published.__module__.rpartition(".nb")[2] + ".ipynb"
        question = ""
        for cell in nbformat.read(ROOT / "notebooks" / file, 4).cells:
            if cell.cell_type == "markdown":
                question = cell.source
            elif "exercise" in tags(cell) and f"def {name}(" in cell.source:
                if HINT not in question:
                    wrong.append(f"{file}: the text above the cell of {name} has no {HINT}")
                break
        else:
            wrong.append(f"{file}: no cell tagged `exercise` has def {name}(")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_was_run_from_top_to_bottom_and_is_fit_to_commit(notebook):
    text = notebook.read_text()
    code = [cell for cell in cells(notebook, "code") if cell.source.strip()]
    # which `make badges` puts in
    counts = [cell.execution_count for cell in code if cell.get("id") != "install"]
    assert counts == list(range(counts[0], counts[0] + len(counts))), (
        "Restart and run all, then save"
    )
    for cell in code:
        if cell.metadata.get("jupyter", {}).get("source_hidden"):
            # JupyterLab shows it on one line, which makes a narrow page wider
            assert cell.source.startswith("# Machinery, to be skipped\n")
        assert len(cell.source.splitlines()) <= 30, "no cell over 30 lines"
        if "raises-exception" not in tags(cell):
            errors = [out.ename for out in cell.outputs if out.output_type == "error"]
            assert not errors, f"cell {cell.execution_count} ended in {errors[0]}"
    assert len(text.encode()) <= 500_000, "at most 500 KB with its outputs"
    sections = re.findall(r'"## (\d)', text)
    assert sections == [*"12345"][: len(sections)], "a numbered section lacks its heading"
    kernel = nbformat.read(notebook, 4).metadata.kernelspec
    wanted = (
        ("xla", "PyTorch/XLA")
        if "import torch_xla" in text
        else ("python3", "Python 3 (ipykernel)")
    )
    assert (kernel.name, kernel.display_name) == wanted
    # ipykernel's folder for cells is in tracebacks unless they are shown as cells.
    paths = re.findall(
        r"/(?:root|home|Users|work|private|var/folders)/[\w./-]+|/tmp/ipykernel_\w+[\w./-]*", text
    )
    assert not paths, f"paths of the machine it ran on: {sorted(set(paths))[:5]}"
