"""What a reader does in JupyterLab's page: run a notebook, watch it, turn a knob, interrupt."""

import shutil
from collections.abc import Callable

import pytest

from tests.files import ROOT
from tests.kernel import eventually

from .lab import Notebook, lab

sync_api = pytest.importorskip(
    "playwright.sync_api", reason="left out without Playwright: make browser installs it"
)
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, BROWSERS)), None)
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="left out without Chromium: apt-get install chromium, or Chrome"
)
XLA_IS_READY = (ROOT / ".venv-xla" / "ready").exists()
NARROW = 600  # pixels
WIDTHS = """() => {
  const panel = document.querySelector('.jp-WindowedPanel-outer');
  return [panel.scrollWidth, panel.clientWidth]; }"""


@pytest.fixture(scope="module")
def playwright():
    with sync_api.sync_playwright() as found:
        yield found


@pytest.fixture(scope="module")
def light(playwright, tmp_path_factory):
    with lab(playwright, CHROMIUM, tmp_path_factory.mktemp("light"), "Light") as found:
        yield found


def wait(condition: Callable[[], object], what: str) -> None:
    assert eventually(condition), what


def looks(notebook: Notebook, name: str) -> None:
    """Keep a screen, and hold that nothing sticks out of the page to the side."""
    notebook.shot(name)
    wide, room = notebook.page.evaluate(WIDTHS)
    assert wide <= room, f"{notebook.name} is {wide} px wide in a page of {room}"


@pytest.mark.parametrize(
    "name", ["00_start_here", "06_ddp", "12_pipeline_parallel", "16_tpu_many_cores"]
)
def test_a_notebook_runs_from_top_to_bottom(light, name):
    if name == "16_tpu_many_cores" and not XLA_IS_READY:
        pytest.skip("left out without .venv-xla: make env builds it")
    with light.open(name) as notebook:
        notebook.command("notebook:run-all-cells")
        assert notebook.errors() == []
        looks(notebook, "run")


def test_the_live_plot_moves_while_the_cell_runs(light):
    with light.open("06_ddp") as notebook:
        for cell in range(notebook.index("live=LivePlot(")):
            notebook.run(cell)
        cell = notebook.start("live=LivePlot(")
        frames = set()

        def moves() -> bool:
            frames.add(notebook.text(cell))
            return len(frames) >= 4

        wait(moves, "four different frames")
        notebook.page.evaluate("() => window.__run")
        assert notebook.errors() == []


def test_a_slider_needs_no_kernel(light):
    with light.open("12_pipeline_parallel") as notebook:
        notebook.command("kernelmenu:shutdown")
        explorer = notebook.page.locator(".jp-OutputArea-output:has(input[type=range])").first
        explorer.scroll_into_view_if_needed()
        before = explorer.inner_text()
        slider = explorer.locator("input[type=range]:enabled").nth(1)
        slider.focus()
        notebook.page.keyboard.press("ArrowRight")
        wait(lambda: explorer.inner_text() != before, "another number changes the chart's sentence")
        notebook.shot("explorer")


FOCUS = """() => {
  const e = document.activeElement;
  const name = e.getAttribute('aria-label') || e.labels?.[0]?.textContent || e.textContent;
  const look = () => {
    const style = getComputedStyle(e);
    return style.outlineStyle + style.boxShadow + style.borderTopColor; };
  const on = look(); e.blur(); const off = look(); e.focus();
  return [name, on !== off]; }"""


def tab_to(notebook: Notebook, name: str) -> None:
    """Press Tab until a control of this name has the keyboard; it must look like it."""
    passed = []
    for _ in range(12):
        notebook.page.keyboard.press("Tab")
        found, marked = notebook.page.evaluate(FOCUS)
        passed.append(found.strip()[:20])
        if passed[-1] == name:
            assert marked, f"nobody sees that {name} has the keyboard"
            return
    raise AssertionError(f"twelve times Tab, and never {name}: {passed}")


def test_a_player_by_keyboard(light):
    with light.open("05_ranks_and_collectives") as notebook:
        cell = notebook.select("pictures.collective(")
        notebook.page.evaluate(
            "() => jupyterapp.shell.currentWidget.content.activeCell.node.focus()"
        )
        player = notebook.page.locator("[data-course-player]").first
        press, line = notebook.page.keyboard.press, player.locator("[data-line]")
        tab_to(notebook, "Play")
        press("Space")
        wait(lambda: line.inner_text().startswith("3 of"), "it plays")
        assert notebook.page.evaluate(FOCUS)[0] == "Pause"
        press("Space")
        tab_to(notebook, "Step")
        press("Home")
        assert line.inner_text().startswith("1 of")
        press("ArrowRight")
        assert line.inner_text().startswith("2 of")
        assert player.locator("input").get_attribute("aria-valuetext") == line.inner_text()
        press("ArrowDown")
        active = notebook.page.evaluate(
            "() => jupyterapp.shell.currentWidget.content.activeCellIndex"
        )
        assert active == cell, "its keys are not the notebook's"


def turn(notebook: Notebook, cell: int, knob: str) -> None:
    """Choose the next value of a knob of this cell and press Run, by keyboard."""
    notebook.select(cell)
    notebook.page.evaluate("() => jupyterapp.shell.currentWidget.content.activeCell.node.focus()")
    tab_to(notebook, knob)
    notebook.page.keyboard.press("ArrowDown")
    tab_to(notebook, "Run")
    notebook.page.keyboard.press("Space")


TURNED = """\
from course_utils import knobs, launch
import time
def turned(seconds):
    launch(time.sleep, seconds, ranks=2)
    return f"{seconds} seconds slept"
knobs(turned, seconds=[0, 1000])"""


def test_jupyters_stop_ends_the_run_of_a_knob(light):
    with light.open("00_start_here") as notebook:
        notebook.run("discover()")
        cell = notebook.index("names.count(")
        notebook.type(cell, TURNED)
        notebook.run(cell)
        before = light.processes()
        turn(notebook, cell, "seconds")
        wait(lambda: len(light.processes() - before) >= 2, "two ranks run")
        started = light.processes() - before
        notebook.shot("knob-runs")
        notebook.page.locator("[title^='Interrupt the kernel'] >> visible=true").first.click()
        wait(lambda: not started & light.processes(), "the ranks are gone")
        state = notebook.page.locator(".jp-OutputArea:has(button) [role=status]")
        wait(lambda: "The result shown is that of seconds = 0" in state.inner_text(), "it is said")
        assert "0 seconds slept" in notebook.text(cell)


def test_a_narrow_dark_page(playwright, tmp_path):
    """Committed outputs in half a laptop's screen."""
    with lab(playwright, CHROMIUM, tmp_path, "Dark") as found:
        for name in ("00_start_here", "06_ddp", "12_pipeline_parallel"):
            with found.open(name, NARROW) as notebook:
                looks(notebook, "narrow-dark")
