"""Links that stay on the site; and the glossary, which `python docs/site_pages.py` writes."""

from __future__ import annotations

import json
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
# "**Rank**: one process of …"
TERM = re.compile(r"\*\*([^*:]+)\*\*: (.+?)(?=\s*\*\*|\n\n|\Z)", re.DOTALL)
LINK = re.compile(r"(?<!!)\[([^\]\[]+)\]\((?!https?:|#)([^)#\s]+)(#[^)\s]*)?\)")
BADGES = re.compile(r"<!-- badges -->.*?<!-- /badges -->\n*", re.DOTALL)


def read(app, docname: str, source: list[str]) -> None:
    """Before a page is parsed."""
    if docname.startswith("notebooks/"):
        page = json.loads(source[0])
        for cell in page["cells"]:
            if cell["cell_type"] == "markdown":
                cell["source"] = here("".join(cell["source"]), app, docname)
        source[0] = json.dumps(page)
    else:
        source[0] = here(BADGES.sub("", source[0]), app, docname)


def here(text: str, app, docname: str) -> str:
    """A link to a file that is no page of the site becomes the file's name."""
    folder = (ROOT / docname).parent

    def lead(link: re.Match) -> str:
        target = (folder / link[2]).resolve()
        page = target.relative_to(ROOT).with_suffix("").as_posix()
        return link[0] if page in app.env.found_docs else link[1]

    return LINK.sub(lead, text)


def glossary() -> str:
    """The page: the terms that the notebooks' recaps define, each with the notebook it is from."""
    terms = []
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        cells = json.loads(path.read_text())["cells"]
        texts = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"]
        title = re.match(r"# (.*)", texts[0])[1]
        recap = "".join(texts[-2:]).partition("## Recap")[2]
        for term, meaning in TERM.findall(recap):
            words = " ".join(meaning.split())
            terms.append((term, f"{words} ([{title}](../notebooks/{path.name}))"))
    terms.sort(key=lambda term: term[0].lower())
    page = (
        "# Glossary\n\nThe terms of the notebooks' recaps, and the notebook that each is from.\n\n"
    )
    return page + "".join(f"- **{term}**: {meaning}\n" for term, meaning in terms)


if __name__ == "__main__":
    (ROOT / "docs" / "glossary.md").write_text(glossary())
