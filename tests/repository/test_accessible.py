"""Pictures can be read by everybody: they carry a text, their colours are seen on light and dark
pages, their controls are real ones. What the keyboard does with these is tested in tests/browser.

What is asked is WCAG 2.2, level AA: 4.5:1 for text, 3:1 for lines and marks, against JupyterLab's
two pages. A PNG does not know its page; the most that one colour can have on both is 4.3:1.
"""

import json
import re
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path

import pytest
from bs4 import BeautifulSoup, PageElement, Tag
from matplotlib.colors import to_hex
from matplotlib.text import Text

from course_utils import Span, Timeline, discover, pictures, schedules, style
from course_utils.checks.verdict import Verdict
from course_utils.lessons import course_map, published_runs, strategy_map
from course_utils.pictures import curves, gantt_chart
from tests.files import NOTEBOOKS, ROOT, cells
from tests.test_style import contrast

PAGES = ("#ffffff", "#111111")
MARKS = set("●◐○✓✗?")  # words beside them say the same
ON_A_PNG = 4.3
NAMED = {"white": "#ffffff", "black": "#000000"}
HEX = re.compile(r"#[0-9A-Fa-f]{6}")
ROLES = [Span(r, name, i, i + 0.9) for r in (0, 1) for i, name in enumerate(style.ROLE)]
PIPES = {
    "one": schedules.make("interleaved", ranks=2, micro_batches=4, chunks=2).simulate(),
    "two": schedules.make("zero-bubble", ranks=2, micro_batches=4).simulate(),
}
STRATEGIES = published_runs.MODELS, (1, 64), published_runs.A100
CURVES = {"loss": {rank: ([1, 2, 3], [rank, 2.0, 3.0 + rank]) for rank in range(8)}}


def seen(color: str) -> float:
    """The least contrast of a colour with the two pages."""
    return min(contrast(color, page) for page in PAGES)


def parsed(html: str) -> BeautifulSoup:
    """What is there without JavaScript."""
    page = BeautifulSoup(html, "html.parser")
    for script in page("script"):
        script.decompose()
    return page


def look(tag: Tag) -> dict[str, str]:
    return dict(re.findall(r"(?:^|;)\s*([\w-]+):([^;]+)", tag.get("style", "")))


def color_of(text: PageElement) -> str:
    """As the nearest element around it says; currentColor is the page's."""
    for tag in text.parents:
        color = look(tag).get("color", "inherit")
        if tag.name in ("text", "tspan", "g", "svg"):
            color = str(tag.get("fill", color))
        if color != "inherit":
            return NAMED.get(color, color)
    return "currentColor"


def box_of(text: PageElement) -> str | None:
    """The colour of the nearest box around it that has one."""
    for tag in text.parents:
        if colors := HEX.findall(look(tag).get("background", "")):
            return colors[0]
    return None


def pages() -> dict[str, str]:
    verdicts = {
        state: Verdict("name", state, "Some `code`.", "2", "3")
        for state in ("solved", "wrong", "not yet")
    }
    player = pictures.collective("reduce-scatter", 8)
    data = json.loads(re.search(r'json">(.*?)</script>', player.html)[1])
    frames = {f"collective, frame {i}": frame for i, frame in enumerate(data["frames"])}
    with chdir(ROOT / "notebooks"):
        path = course_map()
    drawn = {
        "explorer": pictures.explorer(),
        "shares": pictures.shares({"layer": [[0], [1, 2]]}, of=3),
        "bars": pictures.bars({"a": 1.0, "b": 2.0}),
        "table": pictures.table([("a", 1)], ["name", "value"]),
        "curves": pictures.Picture(curves.draw(CURVES).svg("curves"), "curves"),
        "map": path,
    }
    return (
        {kind: picture.html for kind, picture in drawn.items()}
        | frames
        | {kind: verdict._repr_html_() for kind, verdict in verdicts.items()}
        | {"card": discover()._repr_html_()}
    )


def test_html_can_be_read_on_both_pages() -> None:
    for kind, html in pages().items():
        page = parsed(html)
        texts = page(string=re.compile(r"\S"))
        assert texts
        for text in texts:
            color, box = color_of(text), box_of(text)
            if text.strip() in MARKS and color != "currentColor":
                assert seen(color) >= 3, (kind, text, color)
            elif box is None:
                assert color == "currentColor", (
                    f"{kind}: {text!r} in {color}, and text takes the page's colour"
                )
            else:
                assert contrast(color, box) >= 4.5, f"{kind}: {text!r} in {color} on {box}"
        for tag in page():
            colors = HEX.findall(f"{tag.get('style')} {tag.get('fill')} {tag.get('stroke')}")
            # a pale box has an edge that is not
            assert not colors or max(map(seen, colors)) >= 3, (kind, colors)


@pytest.mark.parametrize(
    "draw",
    [
        lambda: pictures.curves_png(CURVES, alt="curves", title="A title", foot="A foot"),
        lambda: pictures.gantt(Timeline(ROLES)),
        lambda: pictures.pipelines(PIPES, title="A title", foot="A foot"),
        lambda: strategy_map.page(*STRATEGIES, batch=64, peak=3e14, title="A title"),
    ],
)
def test_text_of_a_png_can_be_read_on_both_pages(draw: Callable, figures: list) -> None:
    assert draw()._repr_png_()[1]["alt"]
    (figure,) = figures
    texts = [text for text in figure.findobj(Text) if text.get_text() and text.get_visible()]
    for text in texts:
        color = to_hex(text.get_color())
        assert color in NAMED.values() or seen(color) >= ON_A_PNG, (text.get_text(), color)


def test_text_can_be_read_on_every_box() -> None:
    shades = [pale for _, pale in gantt_chart.SHADES.values()]
    for color in {*style.ROLE.values(), *style.RANK, *shades} - {style.ROLE["idle"]}:
        assert contrast(NAMED[style.ink(color)], color) >= 4.5, color


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_of_notebooks_carry_a_text(notebook: Path) -> None:
    for cell in cells(notebook, "markdown"):
        assert not re.search(r"!\[\s*\]\(", cell.source), "an image without a text"
        assert all(image.get("alt") for image in parsed(cell.source)("img"))
    for cell in cells(notebook, "code"):
        for out in cell.outputs:
            data = out.get("data", {})
            for kind in data:
                if kind.startswith("image/"):
                    said = out.metadata.get(kind, {}).get("alt", "")
                    assert len(said.split()) > 2, f"{kind} of {cell.source[-200:]!r} has no alt"
            page = parsed(data.get("text/html", ""))
            assert all(image.get("alt") for image in page("img"))
            assert all(tag.name == "button" for tag in page(onclick=True))
            if page("svg") or "<script" in str(data):
                labelled = page(role=["img", "group"])
                assert labelled, f"the drawing of {cell.source[-200:]!r} has no role"
                assert all(tag.get("aria-label", "").strip() for tag in labelled)
