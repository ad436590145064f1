"""The house is in order: the README says what is there, pins are what is installed, notebooks are fit to commit."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "benchmarks").glob("*.md")), *NOTEBOOKS]


def name(path: Path) -> str:
    return path.name


def cells(notebook: Path, kind: str = "") -> list[dict]:
    found = json.loads(notebook.read_text())["cells"]
    return [cell for cell in found if kind in ("", cell["cell_type"])]


def test_readme_tree_is_what_is_there() -> None:
    lines = re.search(r"## The house\n+```\n(.*?)```", README, re.DOTALL)[1].splitlines()
    listed = {"course_utils/" * line.startswith("  ") + line.split()[0] for line in lines}
    missing = sorted(entry for entry in listed if not (ROOT / entry).exists())
    assert not missing, f"the README lists what is not there: {missing}"

    try:
        done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no git here to say which files are the project's")
    tracked = done.stdout.split()
    there = {path.split("/")[0] + "/" * ("/" in path) for path in tracked}
    rooms = [path.split("/") for path in tracked if path.startswith("course_utils/") and path.count("/") > 1]
    there |= {f"course_utils/{room[1]}/" for room in rooms}
    unsaid = sorted(there - listed - {".gitignore"})
    assert not unsaid, f"the README's tree does not say what these are for: {unsaid}"


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=name)
def test_readme_map_agrees_with_the_notebook(notebook: Path) -> None:
    first = "".join(cells(notebook)[0]["source"])
    question = re.search(rf"^# {notebook.name[:2]} · (.+\?)$", first, re.MULTILINE)
    minutes = re.search(r"(\d+) min", first)
    assert question, "the first cell starts with '# NN · A question?'"
    assert minutes, "the first cell says how many minutes"
    row = f"| {notebook.name[:2]} | [{question[1]}](notebooks/{notebook.name}) | {minutes[1]} |"
    assert row in README, f"the README's table should hold: {row}"


def pins(file: str) -> dict[str, str]:
    text = (ROOT / file).read_text()
    found = dict(re.findall(r"^([\w-]+)==([\w.]+)", text, re.MULTILINE))
    assert len(found) == len(re.findall(r"^[^#\n]", text, re.MULTILINE)), "every line is an exact version"
    return found


def test_roads_agree() -> None:
    """The README's hours are those of its table, and a notebook says on which roads it is, with all that it needs."""
    minutes = dict(re.findall(r"^\| (\d\d) \|.*\| (\d+) \|[^|]*\|$", README, re.MULTILINE))
    roads = re.findall(r"- \*\*(.+)\*\*, about (\d+) hours(?:: ((?:\d\d(?:,\s+)?)+)|, in order)", README)
    assert [road for road, *_ in roads] == ["The short road", "The strategies", "Everything"]
    for _, hours, numbers in roads:
        on_it = re.findall(r"\d\d", numbers) or list(minutes)
        assert round(sum(int(minutes[number]) for number in on_it) / 60) == int(hours), on_it
    short, strategies, _ = (re.findall(r"\d\d", numbers) for *_, numbers in roads)
    for notebook in NOTEBOOKS:
        number, first = notebook.name[:2], "".join(cells(notebook)[0]["source"])
        found = [road for road, on in (("short", short), ("strategies", strategies)) if number in on]
        says = f"**Road{'s' if len(found) == 2 else ''}** {', '.join(found) or 'everything'} · **Needs**"
        assert says in first, f"{notebook.name} should say: {says}"
        needs = re.findall(r"\[(\d\d)\]\(", first.split("**Needs**")[1].split("**On Colab")[0])
        for road in filter(lambda road: number in road, (short, strategies)):
            assert set(needs) <= set(road), f"{notebook.name} needs {needs}, and a road has {road}"


def test_pins_are_what_is_installed() -> None:
    wanted = pins("requirements.txt")
    assert {pin: metadata.version(pin).split("+")[0] for pin in wanted} == wanted
    binder = (ROOT / "binder" / "requirements.txt").read_text()
    assert f"torch=={wanted['torch']}+cpu" in binder


def test_binder_names_what_is_there(tmp_path: Path) -> None:
    """Its Python is one of the course's, its build leaves a kernel for the notebooks on XLA and a sentence for them."""
    folder = ROOT / "binder"
    python = re.fullmatch(r"python-(3\.\d+)\s*", (folder / "runtime.txt").read_text())[1]
    assert (3, 11) <= tuple(map(int, python.split("."))) <= (3, 14)
    lines = [line for line in (folder / "requirements.txt").read_text().splitlines() if line[:1] not in ("#", "")]
    assert lines[-2:] == ["-r ../requirements.txt", "-e ."]
    build = (folder / "postBuild").read_text().partition("<<'PYTHON'\n")[2].partition("PYTHON\n")[0]
    build = f"import sys; sys.prefix = {str(tmp_path)!r}\n{build}"
    subprocess.run([sys.executable, "-c", build], cwd=ROOT, check=True)
    kernel = json.loads((tmp_path / "share/jupyter/kernels/xla/kernel.json").read_text())
    assert kernel["argv"][0] == sys.executable
    assert "Binder" in (tmp_path / "xla-build").read_text()
    for name in ("postBuild", "start"):
        assert (folder / name).stat().st_mode & 0o111, f"{name} must be executable"
        subprocess.run(["bash", "-n", folder / name], check=True)


def test_the_container_is_built_by_make() -> None:
    text = (ROOT / ".devcontainer" / "devcontainer.json").read_text()
    about = json.loads(re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE))
    assert re.search(r":\d+-3\.1[1-4]-\w+$", about["image"]), "an image of one major version, Python and Debian"
    assert about["postCreateCommand"] == "make course"
    assert re.search(r"^env course:", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_pins_of_the_xla_kernel() -> None:
    wanted, others = pins("requirements-xla.txt"), pins("requirements.txt")
    assert wanted["torch"] == wanted["torch_xla"], "torch_xla fits one torch only"
    shared = wanted.keys() & others.keys() - {"torch"}
    assert {pin: wanted[pin] for pin in shared} == {pin: others[pin] for pin in shared}
    if not (ROOT / ".venv-xla" / "ready").exists():
        pytest.skip("no .venv-xla here")
    ask = "import sys; from importlib.metadata import version; print(*map(version, sys.argv[1:]))"
    command = [ROOT / ".venv-xla" / "bin" / "python", "-c", ask, *wanted]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    installed = [version.split("+")[0] for version in done.stdout.split()]
    assert dict(zip(wanted, installed, strict=True)) == wanted


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text()
    if page.suffix == ".ipynb":
        text = "\n".join("".join(cell["source"]) for cell in cells(page, "markdown"))
    text = re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)
    links = re.findall(r"\]\(([^)\s]+)\)", text)
    local = [link.split("#")[0] for link in links if not re.match(r"https?:|#|attachment:", link)]
    lost = [link for link in local if not (page.parent / link).exists()]
    assert not lost, f"{page.name} links to what is not there: {lost}"


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=name)
def test_notebook_was_run_from_top_to_bottom(notebook: Path) -> None:
    code = [cell for cell in cells(notebook, "code") if "".join(cell["source"]).strip()]
    counts = [cell["execution_count"] for cell in code]
    assert counts == list(range(1, len(code) + 1)), "Restart and run all, then save"
    assert any(cell["outputs"] for cell in code), "the outputs are part of the notebook"
    for cell in code:
        if "raises-exception" not in cell["metadata"].get("tags", []):
            errors = [out["ename"] for out in cell["outputs"] if out["output_type"] == "error"]
            assert not errors, f"cell {cell['execution_count']} ended in {errors[0]}"


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=name)
def test_notebook_is_fit_to_commit(notebook: Path) -> None:
    text = notebook.read_text()
    assert notebook.stat().st_size <= 500_000, "at most 500 KB with its outputs"
    kernel = json.loads(text)["metadata"]["kernelspec"]
    wanted = ("xla", "PyTorch/XLA") if "import torch_xla" in text else ("python3", "Python 3 (ipykernel)")
    assert (kernel["name"], kernel["display_name"]) == wanted
    # ipykernel's folder for cells is in tracebacks unless they are shown as cells.
    paths = re.findall(r"/(?:root|home|Users|work|private|var/folders)/[\w./-]+|/tmp/ipykernel_\w+[\w./-]*", text)
    assert not paths, f"paths of the machine it ran on: {sorted(set(paths))[:5]}"
    for cell in cells(notebook, "code"):
        assert len("".join(cell["source"]).splitlines()) <= 30, "no cell over 30 lines"
