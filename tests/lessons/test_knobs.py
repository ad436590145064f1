"""`knobs` in a real kernel, its buttons pressed as a page presses them; nothing is left running, nothing hangs."""

from __future__ import annotations

import queue
import re
import sys
import time

import pytest

from course_utils import CourseError, knobs
from tests.kernel import Kernel, eventually, gone

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="launch needs Linux or macOS")
TWO = "assert launch(rank_of, ranks=2, device='cpu', time_limit=30).results == [0, 1]"
FOR_EVER = """
def wait_for_ever(loop):
    print("begun")
    if loop == "launch": launch(time.sleep, 1000, ranks=2, device="cpu")
    while loop == "python": time.sleep(0.01)
    while loop == "launches": launch(rank_of, ranks=1, device="cpu")
    return f"result {loop}"
knobs(wait_for_ever, loop=["none", "launch", "python", "launches"])
"""


@pytest.fixture(scope="module")
def kernel():
    kernel = Kernel()
    kernel.run("from course_utils.lessons import knobs as module; from ipywidgets.widgets.widget import _instances")
    yield kernel
    kernel.close()


class Cell:
    """A cell that ends in `knobs`: what its outputs are now, and its buttons."""

    def __init__(self, kernel: Kernel, code: str) -> None:
        self.kernel, self.request, self.error = kernel, kernel.send(code), None
        self.outputs: dict[str, dict] = {}  # display id -> data, in the order of the cell
        self.status = ""
        self.follow(lambda: self.idle)

    idle = False

    def follow(self, condition, *, within: float = 30.0) -> bool:
        """Take what the kernel sends until `condition()` is so."""
        end = time.monotonic() + within
        while not condition() and time.monotonic() < end:
            try:
                self.take(self.kernel.client.get_iopub_msg(timeout=0.1))
            except queue.Empty:
                continue
        return condition()

    def take(self, message: dict) -> None:
        kind, content = message["msg_type"], message["content"]
        mine = message["parent_header"].get("msg_id") == self.request
        name = content.get("transient", {}).get("display_id")
        if kind == "comm_msg" and "role=" in content["data"].get("state", {}).get("value", ""):
            self.status = content["data"]["state"]["value"].partition(">")[2].partition("<")[0]
        elif kind == "display_data" and mine:
            assert name not in self.outputs or name is None
            self.outputs[name or "panel"] = content["data"]
        elif kind == "update_display_data":
            assert name in self.outputs, "a display that the cell does not have"
            self.outputs[name] = content["data"]
        elif kind == "error" and mine:
            self.error = content["ename"]
        elif kind in ("stream", "clear_output", "execute_result") and mine:
            raise AssertionError(f"{kind} goes around the places of the cell: {content}")
        elif kind == "status" and mine:
            self.idle = content["execution_state"] == "idle"

    @property
    def texts(self) -> list[str]:
        shown = [data["text/plain"] for name, data in self.outputs.items() if name != "panel"]
        return [re.sub(r"\x1b\[[0-9;]*m", "", text) for text in shown]

    def choose(self, **values: int) -> None:
        for name, index in values.items():
            self.kernel.run(f"module._now.panel._controls[{name!r}].index = {index}")

    def press(self, button: str) -> None:
        """As a page does."""
        ask = f"print([w.model_id for w in _instances.values() if getattr(w, 'description', '') == {button!r}][-1])"
        model = self.kernel.run(ask).text.strip()
        data = {"method": "custom", "content": {"event": "click"}}
        message = self.kernel.client.session.msg("comm_msg", {"comm_id": model, "data": data})
        self.kernel.client.shell_channel.send(message)

    def says(self, text: str) -> None:
        assert self.follow(lambda: text in self.status), f"it says {self.status!r}, never {text!r}"


def test_the_first_run_is_ordinary_output_and_the_next_replaces_it(kernel):
    code = """
        def shown(n, fast, k):
            for i in range(n):
                print("step", i)
                display(f"display {i}")
            return pictures.table([(n, fast, k)], ["n", "fast", "k"])
        knobs(shown, n=[2, 1, 3], fast=True, k=(1, 8))"""
    cell = Cell(kernel, "\n".join(line[8:] for line in code.splitlines()))
    assert "application/vnd.jupyter.widget-view+json" in cell.outputs["panel"]
    assert cell.status.startswith("Done: n = 2, fast = True, k = 1;")
    assert cell.status.endswith("run this cell before you press Run.")
    first = list(cell.outputs)
    result = cell.outputs[first[1]]
    assert "<td" in result["text/html"]
    assert result["text/plain"].split()[-3:] == ["2", "True", "1"]
    assert cell.texts[1:] == ["step 0", "'display 0'", "step 1", "'display 1'"]

    cell.choose(n=2)
    cell.press("Run")
    cell.says("Done: n = 3")
    assert "before you press Run" not in cell.status
    assert list(cell.outputs)[: len(first)] == first, "what was there is still there, in the same order"
    assert cell.texts[0].split()[-3:] == ["3", "True", "1"]
    assert cell.texts[1:] == ["step 0", "'display 0'", "step 1", "'display 1'", "step 2", "'display 2'"]

    cell.choose(n=1)
    cell.press("Run")
    cell.says("Done: n = 1")
    assert cell.texts[1:] == ["step 0", "'display 0'", "", "", "", ""]


def test_a_live_plot_of_a_launch_stays_in_its_place(kernel):
    cell = Cell(kernel, """
def train(steps):
    for step in range(steps):
        report(loss=step)
plot = LivePlot("loss")
knobs(lambda steps: launch(train, steps, ranks=2, device="cpu", live=plot).ranks, steps=[3, 5])""")
    assert cell.texts[0] == "2"
    assert "image/png" in list(cell.outputs.values())[2]
    before = list(cell.outputs)
    cell.choose(steps=1)
    cell.press("Run")
    cell.says("Done: steps = 5")
    assert list(cell.outputs) == before
    assert "step 5" in cell.texts[1]


@pytest.mark.parametrize(("index", "name"), [(1, "launch"), (2, "python"), (3, "launches")])
def test_stop(kernel, index, name):
    cell = Cell(kernel, FOR_EVER)
    assert cell.texts == ["'result none'", "begun"]
    cell.choose(loop=index)
    cell.press("Run")
    cell.says(f"Running with loop = {name}")
    if name == "launch":
        assert eventually(lambda: len(kernel.ranks()) == 2)
    cell.press("Stop")
    cell.says("Stopped after")
    assert "The result shown is that of loop = none." in cell.status
    assert cell.texts[0] == "'result none'"
    kernel.assert_usable(TWO)
    cell.choose(loop=0)
    cell.press("Run")
    cell.says("Done: loop = none")


def test_meanwhile_other_cells_run_and_everything_else_is_harmless(kernel):
    cell = Cell(kernel, FOR_EVER)
    cell.choose(loop=1)
    cell.press("Run")
    assert eventually(lambda: len(kernel.ranks()) == 2)
    ranks = kernel.ranks()
    cell.press("Run")
    cell.choose(loop=2)
    kernel.manager.interrupt_kernel()
    other = kernel.run("print('mine'); " + TWO)
    assert (other.text, other.error) == ("mine\n", None)
    assert [rank.pid for rank in kernel.ranks()] == [rank.pid for rank in ranks]
    again = Cell(kernel, FOR_EVER)  # stops what its last execution left
    assert again.texts[0] == "'result none'"
    assert not gone(ranks)
    kernel.assert_usable(TWO)


def test_an_error_is_shown_as_a_cell_shows_it_and_the_result_stays(kernel):
    cell = Cell(kernel, """
def fails(how):
    if how == "words": launch(rank_of, ranks=-1)
    return how or 1 / 0
knobs(fails, how=["not", "words", 0])""")
    cell.choose(how=1)
    cell.press("Run")
    cell.says("Ended by CourseError")
    assert cell.texts[0] == "'not'"
    assert cell.texts[1].startswith("CourseError: ranks=-1")
    assert "site-packages" not in cell.texts[1]
    cell.choose(how=2)
    cell.press("Run")
    cell.says("Ended by ZeroDivisionError")
    assert "return how or 1 / 0" in cell.texts[1]
    assert "knobs.py" not in cell.texts[1]
    cell.choose(how=0)
    cell.press("Run")
    cell.says("Done")
    assert cell.texts == ["'not'", ""]


def test_the_cell_raises_what_its_first_run_raises(kernel):
    assert Cell(kernel, "knobs(lambda n: 1 / n, n=[0, 1])").error == "ZeroDivisionError"
    cell = Cell(kernel, "knobs(lambda n: 1 / n, n=[1, 2])")
    assert (cell.error, cell.texts) == (None, ["1.0"])


def test_a_page_that_was_loaded_again_is_told(kernel):
    cell = Cell(kernel, "knobs(lambda n: n, n=[1, 2])")
    session = kernel.client.session
    opened = {"comm_id": "0" * 32, "target_name": "jupyter.widget.control", "data": {},
              "metadata": {"version": "1.0.0"}}
    message = session.msg("comm_open", opened)
    message["metadata"] = {"version": "1.0.0"}
    kernel.client.shell_channel.send(message)
    ask = {"comm_id": "0" * 32, "data": {"method": "request_states"}}
    kernel.client.shell_channel.send(session.msg("comm_msg", ask))
    cell.press("Run")
    cell.says("This page was loaded again: run the cell")


def test_stops_at_any_moment_leave_nothing(kernel):
    answer = kernel.run("""
import random
random.seed(0)
def busy(n):
    for i in range(n):
        launch(rank_of, ranks=1, device="cpu") if i % 2 else sum(range(1000))
knobs(busy, n=[0, 10**6])
me = module._now
me.panel._controls["n"].index = 1
for i in range(40):
    me.start()
    while me.thread is None: time.sleep(0.0001)
    time.sleep(random.random() * 0.2)
    me.stop()
    assert module._turn.acquire(timeout=20), f"stop {i} was lost"
    module._turn.release()
    assert "Stopped" in me.panel._status.value, me.panel._status.value
""", timeout=120)
    assert answer.error is None, answer.shown
    kernel.assert_usable(TWO)


def test_a_restart_leaves_nothing(kernel):
    cell = Cell(kernel, FOR_EVER)
    cell.choose(loop=1)
    cell.press("Run")
    assert eventually(lambda: len(kernel.ranks()) == 2)
    ranks = kernel.ranks()
    kernel.restart()
    assert not gone(ranks)
    kernel.assert_usable(TWO)


def test_in_a_script_the_function_is_called_once():
    calls = []
    knobs(lambda **values: calls.append(values), n=[1, 2], fast=True, k=(3, 5))
    assert calls == [{"n": 1, "fast": True, "k": 3}]


@pytest.mark.parametrize("choice", [[], (1, 2, 3), (2, 1), (0.1, 1), 3, "Adam", None])
def test_what_is_no_choice_is_refused_in_words(choice):
    with pytest.raises(CourseError, match=r"knobs\(…, lr=.*give a list of choices"):
        knobs(print, lr=choice)


def test_a_result_is_no_function():
    with pytest.raises(CourseError, match="the function to run, not its result"):
        knobs(3, n=[1])
