"""The repository's address is written by one command, taken out by the same, and needed by nothing else."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import nbformat
import pytest

from tools import badges

ROOT = Path(__file__).parents[2]
REPO = "jane/one-to-many"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    shutil.copy(ROOT / "README.md", tmp_path)
    shutil.copytree(ROOT / "notebooks", tmp_path / "notebooks", ignore=shutil.ignore_patterns(".*"))
    return tmp_path


def texts(checkout: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in [checkout / "README.md", *checkout.glob("notebooks/*.ipynb")]}


def test_stamped_and_taken_out_again(checkout: Path) -> None:
    badges.stamp(checkout, "")
    plain = texts(checkout)
    assert not any("<!-- badges -->" in text for text in plain.values())
    assert len(badges.stamp(checkout, REPO)) == len(plain), "every page has one"
    once = texts(checkout)
    assert badges.stamp(checkout, REPO) == []
    badges.stamp(checkout, "joe/fork")
    assert not any(REPO in text for text in texts(checkout).values())
    badges.stamp(checkout, REPO)
    assert texts(checkout) == once
    badges.stamp(checkout, "")
    assert texts(checkout) == plain


def test_a_stamped_notebook_is_one_and_installs_only_our_package(checkout: Path) -> None:
    badges.stamp(checkout, REPO)
    for path in checkout.glob("notebooks/*.ipynb"):
        page = nbformat.read(path, 4)
        nbformat.validate(page)
        code = [cell for cell in page.cells if cell.cell_type == "code"]
        assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
        assert code[0].source.endswith(f'%pip install -q "git+https://github.com/{REPO}"')
        assert f"/{REPO}/blob/HEAD/notebooks/{path.name})" in page.cells[0].source
        assert f"?src=https://raw.githubusercontent.com/{REPO}/HEAD/notebooks/{path.name})" in page.cells[0].source
        on_binder = f"/{REPO}/HEAD?labpath=notebooks/{path.name})" in page.cells[0].source
        assert on_binder == (page.metadata.kernelspec.name != "xla")


def test_the_first_cell_does_nothing_where_the_course_is_installed(checkout: Path) -> None:
    cell = "".join(badges.install(REPO)["source"])
    condition, command = cell.rsplit("\n", 1)
    ran: dict = {}
    exec(f"{condition}\n    installed = False", ran)
    assert "%pip" in command
    assert "installed" not in ran


def test_other_addresses_are_refused(checkout: Path) -> None:
    before = texts(checkout)
    with pytest.raises(SystemExit, match="owner/name"):
        badges.stamp(checkout, "https://github.com/jane/one-to-many")
    assert texts(checkout) == before


def test_this_checkout_is_stamped_everywhere_or_nowhere() -> None:
    blocks = [badges.BETWEEN.search(text) for text in texts(ROOT).values()]
    address = re.compile(r"github(?:\.com)?/([\w.-]+/[\w.-]+)/(?:actions|blob)/")
    known = {block and address.search(block[0])[1] for block in blocks}
    assert len(known) == 1, f"make badges REPO=… writes all of them: {known}"
