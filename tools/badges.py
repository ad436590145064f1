"""Writes the repository's address wherever one is needed: `make badges REPO=owner/name`. `REPO=` takes it out again.

That is: badges in the README and in each notebook's first cell, and the cell that installs the course's package on
Colab and Kaggle. Nothing else of the course knows where it is published.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
BETWEEN = re.compile(r"\n*<!-- badges -->.*?<!-- /badges -->", re.DOTALL)
INSTALL = "install"  # the id of the cell that does
ASSETS = {
    "Colab": "https://colab.research.google.com/assets/colab-badge.svg",
    "Kaggle": "https://kaggle.com/static/images/open-in-kaggle.svg",
    "Binder": "https://mybinder.org/badge_logo.svg",
    "Codespaces": "https://github.com/codespaces/badge.svg",
}


def badge(title: str, image: str, target: str) -> str:
    return f"[![{title}]({image})]({target})"


def between(lines: list[str]) -> str:
    return "\n\n<!-- badges -->\n" + "\n".join(lines) + "\n<!-- /badges -->" if lines else ""


def after_title(text: str, lines: list[str]) -> str:
    """A page with these badges under its title, in place of those that it has."""
    title, rest = BETWEEN.sub("", text).split("\n", 1)
    return title + between(lines) + "\n" + rest


def readme(text: str, repo: str) -> str:
    actions = f"https://github.com/{repo}/actions/workflows"
    owner, _, name = repo.partition("/")
    lines = [
        badge("test", f"{actions}/test.yml/badge.svg", f"{actions}/test.yml"),
        badge("Read it", "https://img.shields.io/badge/read-the_site-blue", f"https://{owner}.github.io/{name}/"),
        badge("Binder", ASSETS["Binder"], f"https://mybinder.org/v2/gh/{repo}/HEAD?urlpath=lab/tree/notebooks"),
        badge("Open in GitHub Codespaces", ASSETS["Codespaces"], f"https://codespaces.new/{repo}"),
    ]
    return after_title(text, lines if repo else [])


def notebook(page: dict, path: str, repo: str) -> None:
    """Stamp one notebook, in place. Its cells keep their outputs, and count on from the one that is put in."""
    cells = [cell for cell in page["cells"] if cell.get("id") != INSTALL]
    raw = f"https://raw.githubusercontent.com/{repo}/HEAD/{path}"
    lines = [
        badge("Open in Colab", ASSETS["Colab"], f"https://colab.research.google.com/github/{repo}/blob/HEAD/{path}"),
        badge("Open in Kaggle", ASSETS["Kaggle"], f"https://kaggle.com/kernels/welcome?src={raw}"),
    ]
    if page["metadata"]["kernelspec"]["name"] != "xla":  # Binder has no room for that kernel
        lines += [badge("Open in Binder", ASSETS["Binder"], f"https://mybinder.org/v2/gh/{repo}/HEAD?labpath={path}")]
    head = after_title("".join(cells[0]["source"]), [" ".join(lines)] if repo else [])
    cells[0]["source"] = head.splitlines(keepends=True)
    if repo:
        first = next(i for i, cell in enumerate(cells) if cell["cell_type"] == "code")
        cells.insert(first, install(repo))
    page["cells"] = cells
    count = 0
    for cell in cells:
        if cell["cell_type"] == "code" and cell["execution_count"] is not None:
            count += 1
            for part in (cell, *(out for out in cell["outputs"] if "execution_count" in out)):
                part["execution_count"] = count


def install(repo: str) -> dict:
    """The cell for a machine that has a torch and no course: it adds our package and leaves torch alone."""
    source = (
        "import importlib.util\n\n"
        'if not importlib.util.find_spec("course_utils"):  # on Colab and Kaggle; torch stays as it is\n'
        f'    %pip install -q "git+https://github.com/{repo}"'
    )
    return {
        "cell_type": "code", "id": INSTALL, "execution_count": 0, "metadata": {},
        "outputs": [], "source": source.splitlines(keepends=True),
    }


def stamp(root: Path, repo: str) -> list[Path]:
    """All files of a checkout; those that changed."""
    if repo and not re.fullmatch(r"[\w.-]+/[\w.-]+", repo):
        raise SystemExit(f"REPO={repo}: say owner/name, as in REPO=jane/one-to-many, or REPO= to take the address out.")
    changed = []
    for path in [root / "README.md", *sorted((root / "notebooks").glob("*.ipynb"))]:
        was = path.read_text()
        if path.suffix == ".md":
            text = readme(was, repo)
        else:
            page = json.loads(was)
            notebook(page, path.relative_to(root).as_posix(), repo)
            text = json.dumps(page, indent=1, ensure_ascii=False) + "\n"
        if text != was:
            path.write_text(text)
            changed.append(path)
    return changed


if __name__ == "__main__":
    print(f"{len(stamp(ROOT, sys.argv[1].strip() if len(sys.argv) > 1 else ''))} files changed.")
