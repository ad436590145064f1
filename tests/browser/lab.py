"""JupyterLab as a reader has it: started on a copy of the notebooks, driven through its page."""

import json
import os
import re
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.files import ROOT, write
from tests.kernel import eventually
from tests.python import python

SHOTS = ROOT / "build" / "browser"
CONNECTED = """async () => {
  const notebook = jupyterapp.shell.currentWidget;
  await notebook.context.ready; await notebook.context.sessionContext.ready;
  await notebook.context.sessionContext.session.kernel.info; }"""
OUTPUTS = """index => {
  const cell = jupyterapp.shell.currentWidget.content.model.cells.get(index);
  return cell.outputs ? cell.outputs.toJSON() : []; }"""
SOURCES = """() => Array.from(
  jupyterapp.shell.currentWidget.content.model.cells, cell => cell.sharedModel.getSource())"""
ERRORS = """() => {
  const cells = Array.from(jupyterapp.shell.currentWidget.content.model.cells);
  return cells.flatMap((cell, i) => {
    const tags = cell.getMetadata('tags') || [];
    if (cell.type !== 'code' || tags.includes('raises-exception')) return [];
    const errors = cell.outputs.toJSON().filter(output => output.output_type === 'error');
    return errors.map(error => `cell ${i}: ${error.ename}: ${error.evalue}`); }); }"""
SELECT = """index => {
  const all = jupyterapp.shell.currentWidget.content;
  all.activeCellIndex = index;
  all.deselectAll();
  return all.scrollToItem(index, 'center').catch(() => 0); }"""
OPTIONS = """
--no-browser --allow-root --port=0
--ServerApp.ip=127.0.0.1
--IdentityProvider.token=
--ServerApp.disable_check_xsrf=True
--LabApp.expose_app_in_browser=True
--LabApp.news_url=
--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate
"""
LOADED = "window.jupyterapp && jupyterapp.shell.currentWidget?.content?.model?.cells?.length"


class Notebook:
    """One that is open in the page. A cell goes by its index or by something in its source."""

    def __init__(self, page, name: str) -> None:
        self.page, self.name = page, name
        page.set_default_timeout(600_000)
        page.wait_for_function(LOADED)
        page.evaluate(CONNECTED)
        self.sources = page.evaluate(SOURCES)

    def index(self, cell: int | str) -> int:
        if isinstance(cell, int):
            return cell
        found = [i for i, source in enumerate(self.sources) if cell in source]
        assert found, f"{self.name} has no cell with {cell!r}"
        return found[0]

    def select(self, cell: int | str) -> int:
        index = self.index(cell)
        self.page.evaluate(SELECT, index)
        return index

    def start(self, cell: int | str) -> int:
        """Begin to run a cell, and do not wait for it."""
        index = self.select(cell)
        self.page.evaluate(
            "() => { window.__run = jupyterapp.commands.execute('notebook:run-cell'); }"
        )
        return index

    def run(self, cell: int | str) -> list[dict]:
        """Run a cell; its outputs."""
        index = self.start(cell)
        self.page.evaluate("() => window.__run")
        return self.outputs(index)

    def outputs(self, cell: int | str) -> list[dict]:
        return self.page.evaluate(OUTPUTS, self.index(cell))

    def text(self, cell: int | str) -> str:
        """Everything that a cell shows, as text and HTML."""
        return json.dumps(self.outputs(cell), ensure_ascii=False)

    def errors(self) -> list[str]:
        """Errors of cells that are not meant to end in one."""
        return self.page.evaluate(ERRORS)

    def type(self, cell: int | str, source: str) -> None:
        """Put text in place of a cell's, by keyboard."""
        index = self.select(cell)
        self.page.locator(f".jp-Cell[data-windowed-list-index='{index}'] .cm-content").click()
        self.page.keyboard.press("Control+A")
        self.page.keyboard.insert_text(source)
        self.sources = self.page.evaluate(SOURCES)

    def command(self, name: str) -> None:
        """Do what a menu's entry does, to its end."""
        self.page.evaluate("name => jupyterapp.commands.execute(name)", name)

    def shot(self, name: str) -> None:
        SHOTS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=SHOTS / f"{self.name}-{name}.png")


@dataclass
class Lab:
    """A running JupyterLab and a browser that looks at it."""

    process: subprocess.Popen
    address: str
    browser: Any

    @contextmanager
    def open(self, name: str, width: int = 1200) -> Iterator[Notebook]:
        page = self.browser.new_page(viewport={"width": width, "height": 1000})
        try:
            page.goto(f"{self.address}/lab/tree/{name}.ipynb?reset")
            notebook = Notebook(page, name)
            page.evaluate(
                "() => jupyterapp.commands.execute('application:toggle-left-area').catch(() => 0)"
            )
            yield notebook
            page.evaluate("() => jupyterapp.shell.currentWidget.context.sessionContext.shutdown()")
        finally:
            page.close()

    def processes(self) -> set[int]:
        """What runs below the server: kernels, their servers, ranks."""
        return {child.pid for child in psutil.Process(self.process.pid).children(recursive=True)}


@contextmanager
def lab(playwright, chromium: str, folder: Path, theme: str) -> Iterator[Lab]:
    """JupyterLab on a copy of the notebooks, with all cells in the page, not only those in view."""
    shutil.copytree(ROOT / "notebooks", folder / "notebooks", ignore=shutil.ignore_patterns(".*"))
    settings = {
        "notebook-extension/tracker.jupyterlab-settings": '{"windowingMode": "none"}',
        "apputils-extension/themes.jupyterlab-settings": f'{{"theme": "JupyterLab {theme}"}}',
    }
    write(folder / "settings" / "@jupyterlab", settings)
    pages = sorted((folder / "notebooks").glob("*.ipynb"))
    python("-m", "jupyter", "trust", *pages)
    root = f"--ServerApp.root_dir={folder / 'notebooks'}"
    command = [sys.executable, "-m", "jupyterlab", root, *OPTIONS.split()]
    environment = {**os.environ, "JUPYTERLAB_SETTINGS_DIR": str(folder / "settings")}
    with open(folder / "log", "w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
    try:
        address = answering(process, folder / "log")
        browser = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-gpu"]
        )
        yield Lab(process, address, browser)
        browser.close()
    finally:
        process.terminate()
        process.wait(600)


def answering(process: subprocess.Popen, log: Path) -> str:
    """The address of a server, when it answers."""

    def found() -> str | None:
        assert process.poll() is None, f"JupyterLab did not start: {log.read_text()[-2000:]}"
        address = re.search(r"http://127\.0\.0\.1:\d+", log.read_text())
        with suppress(OSError):
            if address and urllib.request.urlopen(f"{address[0]}/api", timeout=10):
                return address[0]
        return None

    return eventually(found, pause=0.2)
