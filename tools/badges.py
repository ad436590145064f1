"""Writes the repository's address, `make badges REPO=owner/name`, or takes it out again, `REPO=`:
badges in README and notebooks, in these the cell that installs the package on Colab and Kaggle, and
the package's address in pyproject.toml.
"""

import json
import re
import sys
from pathlib import Path

import nbformat

INSTALL = '''import importlib.util

if not importlib.util.find_spec("course_utils"):  # on Colab and Kaggle; torch stays as it is
    %pip install -q "git+https://github.com/{repo}"'''
README = """\
[![test](https://github.com/{repo}/actions/workflows/test.yml/badge.svg)](https://github.com/{repo}/actions/workflows/test.yml)
[![Read it](https://img.shields.io/badge/read-the_site-blue)](https://{owner}.github.io/{name}/)
[![Binder](https://mybinder.org/badge_logo.svg)](https://mybinder.org/v2/gh/{repo}/HEAD?urlpath=lab/tree/notebooks)
[![Open in GitHub Codespaces](https://github.com/codespaces/badge.svg)](https://codespaces.new/{repo})"""
URLS = """
[project.urls]
Repository = "https://github.com/{repo}"
"""
NOTEBOOK = """\
[![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/{repo}/blob/HEAD/notebooks/{page})
[![Open in Kaggle](https://kaggle.com/static/images/open-in-kaggle.svg)](https://kaggle.com/kernels/welcome?src=https://raw.githubusercontent.com/{repo}/HEAD/notebooks/{page})"""
BINDER = """\n[![Open in Binder](https://mybinder.org/badge_logo.svg)](https://mybinder.org/v2/gh/{repo}/HEAD?labpath=notebooks/{page})"""


def with_badges(text: str, badges: str) -> str:
    """A page with these badges under its title, in place of those that it has; "": without."""
    title, rest = re.sub(r"\n*<!-- badges -->.*?<!-- /badges -->", "", text, flags=re.DOTALL).split(
        "\n", 1
    )
    return (
        f"{title}\n\n<!-- badges -->\n{badges}\n<!-- /badges -->\n{rest}"
        if badges
        else f"{title}\n{rest}"
    )


def stamp(root: Path, repo: str) -> None:
    """Write the address into all pages of a checkout; "" takes it out. Raises SystemExit where it
    is no owner/name.
    """
    if repo and not re.fullmatch(r"[\w.-]+/[\w.-]+", repo):
        raise SystemExit(
            f"REPO={repo}: say owner/name, as in REPO=jane/one-to-many, or REPO= to take the "
            "address out."
        )
    owner, _, name = repo.partition("/")
    readme = root / "README.md"
    readme.write_text(
        with_badges(
            readme.read_text(), README.format(repo=repo, owner=owner, name=name) if repo else ""
        )
    )
    project = root / "pyproject.toml"
    text = re.sub(r"\n\[project\.urls\]\n.*\n", "", project.read_text())
    urls = URLS.format(repo=repo) if repo else ""
    before = "\n[tool.setuptools.dynamic]"
    project.write_text(text.replace(before, f"{urls}{before}"))
    for path in root.glob("notebooks/*.ipynb"):
        page = json.loads(path.read_text())
        cells = page["cells"] = [cell for cell in page["cells"] if cell.get("id") != "install"]
        # no room for xla there
        badges = NOTEBOOK + (BINDER if page["metadata"]["kernelspec"]["name"] != "xla" else "")
        head = with_badges(
            "".join(cells[0]["source"]), badges.format(repo=repo, page=path.name) if repo else ""
        )
        cells[0]["source"] = head.splitlines(keepends=True)
        if repo:
            first = next(i for i, cell in enumerate(cells) if cell["cell_type"] == "code")
            cells.insert(
                first,
                nbformat.v4.new_code_cell(INSTALL.format(repo=repo).splitlines(True), id="install"),
            )
        path.write_text(json.dumps(page, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    stamp(Path(__file__).parent.parent, "".join(sys.argv[1:]).strip())
