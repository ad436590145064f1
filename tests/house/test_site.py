"""What the site's pages have beyond their files; the build itself is `make site`, where every warning is an error."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from docs import site_pages

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_recap_defines_three_terms_or_more(notebook: Path) -> None:
    assert site_pages.glossary().count(f"../notebooks/{notebook.name})") >= 3


def test_the_glossary_is_in_the_order_of_the_alphabet() -> None:
    terms = [term.lower() for term in re.findall(r"^\*\*(.+)\*\*$", site_pages.glossary(), re.MULTILINE)]
    assert terms == sorted(terms)


def test_every_notebook_has_its_place_on_the_front_page() -> None:
    front = (ROOT / "docs" / "index.md").read_text()
    assert re.findall(r"^\.\./notebooks/(\S+)$", front, re.MULTILINE) == [path.stem for path in NOTEBOOKS]


def test_links_to_what_is_no_page_become_text() -> None:
    app = SimpleNamespace(env=SimpleNamespace(found_docs={"README", "notebooks/06_ddp"}))
    source = [json.dumps({"cells": [
        {"cell_type": "markdown", "source": ["[a](06_ddp.ipynb) [b](../README.md#x) [c](../LICENSE) [d](https://d.org)"]},
        {"cell_type": "code", "source": ["x[0](y)"]},
    ]})]
    site_pages.read(app, "notebooks/05_ranks", source)
    text, code = (cell["source"] for cell in json.loads(source[0])["cells"])
    assert text == "[a](06_ddp.ipynb) [b](../README.md#x) c [d](https://d.org)"
    assert code == ["x[0](y)"]


def test_badges_are_for_the_repository_only() -> None:
    source = ["# Title\n\n<!-- badges -->\n[![test](a)](b)\n<!-- /badges -->\n\nText"]
    site_pages.read(SimpleNamespace(env=SimpleNamespace(found_docs=set())), "README", source)
    assert source == ["# Title\n\nText"]
