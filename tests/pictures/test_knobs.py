"""`knobs` in a real kernel, its controls turned as a page turns them; Jupyter's Stop ends a run at
any moment.
"""

import contextlib
import queue
import random
import re
import time

import pytest

from course_utils import knobs
from tests.kernel import Kernel, eventually, gone, posix

pytestmark = posix
FOR_EVER = """
def wait_for_ever(loop):
    print("begun")
    if loop == "launch": launch(time.sleep, 1000, ranks=2, device="cpu")
    while loop == "python": time.sleep(0.01)
    return f"result {loop}"
knobs(wait_for_ever, loop=["none", "launch", "python"])
"""


class Cell:
    """A cell that ends in `knobs`: what its outputs are now, and its controls."""

    def __init__(self, kernel: Kernel, code: str) -> None:
        self.kernel, self.error, self.idle = kernel, None, False
        self.outputs: dict[str, dict] = {}  # display id -> data, in the order of the cell
        self.widgets: dict[str, str] = {}  # description -> its comm
        self.said = [""]
        self.request = kernel.send(code)
        self.follow(lambda: self.idle)

    def follow(self, condition) -> bool:
        """Take what the kernel sends until `condition()` is so."""

        def so() -> bool:
            with contextlib.suppress(queue.Empty):
                self.take(self.kernel.client.get_iopub_msg(timeout=0.05))
            return condition()

        return condition() or eventually(so)

    def take(self, message: dict) -> None:
        kind, content = message["msg_type"], message["content"]
        mine = message["parent_header"].get("msg_id") == self.request
        name = content.get("transient", {}).get("display_id")
        if kind == "comm_open" and mine and "description" in content["data"]["state"]:
            self.widgets[content["data"]["state"]["description"]] = content["comm_id"]
        elif kind == "comm_msg" and "role=" in content["data"].get("state", {}).get("value", ""):
            self.said.append(re.sub("<.*?>", "", content["data"]["state"]["value"]))
        elif kind == "display_data" and mine:
            self.outputs[name or "panel"] = content["data"]
        elif kind == "update_display_data" and mine:
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
        return [data["text/plain"] for name, data in self.outputs.items() if name != "panel"]

    def send(self, comm: str, data: dict) -> None:
        message = self.kernel.client.session.msg("comm_msg", {"comm_id": comm, "data": data})
        self.kernel.client.shell_channel.send(message)

    def choose(self, name: str, index: int) -> None:
        state = {"index": index}
        self.send(self.widgets[name], {"method": "update", "state": state, "buffer_paths": []})

    def run(self) -> None:
        self.send(self.widgets["Run"], {"method": "custom", "content": {"event": "click"}})

    def turn(self, name: str, index: int, text: str) -> None:
        """Choose a value and run, until it says this."""
        self.choose(name, index)
        self.run()
        self.says(text)

    def says(self, text: str) -> None:
        assert self.follow(lambda: text in self.said[-1]), (
            f"it says {self.said[-1]!r}, never {text!r}"
        )


def test_the_first_run_is_ordinary_output_and_the_next_replaces_it(kernel, tmp_path):
    cell = Cell(
        kernel,
        """
ran = []
def shown(n, way):
    ran.append(n)
    while n == 1 and not os.path.exists(GO): time.sleep(0.01)
    for i in range(n):
        print("step", i)
    return pictures.table([(n, way(n))], ["n", "way"])
knobs(shown, n=[2, 1, 0], way=[abs, str])""".replace("GO", repr(str(tmp_path / "go"))),
    )
    panel = {"application/vnd.jupyter.widget-view+json", "text/plain"}
    assert cell.outputs["panel"].keys() == panel
    assert cell.said[-1].startswith("Done: n = 2, way = abs; it took ")
    assert cell.texts == ["n  way\n2    2", "step 0\nstep 1"]
    assert "<td" in [*cell.outputs.values()][1]["text/html"]
    before = [*cell.outputs]
    cell.choose("n", 1)
    cell.choose("way", 1)
    for _ in range(3):  # clicks during a run ask for no other
        cell.run()
    (tmp_path / "go").touch()
    cell.says("Done: n = 1, way = str")
    assert cell.texts == ["n  way\n1  1", "step 0"]
    cell.turn("n", 2, "Done: n = 0")
    assert cell.texts == ["n  way\n0  0", ""]
    assert kernel.run("print(ran)").text == "[2, 1, 0]\n"
    assert [*cell.outputs] == before, "what was there is still there, in the same order"


def test_live_plots_stay_in_one_place_and_end_as_pictures(kernel):
    cell = Cell(
        kernel,
        """
def train(steps):
    for step in range(steps):
        report(loss=step)
def plotted(steps):
    if steps != 4:
        return launch(train, steps, ranks=2, device="cpu", live=LivePlot("loss")).ranks
    plot = LivePlot("loss")
    for step in range(steps): plot.update(loss=1.0)  # and nobody closes it
knobs(plotted, steps=[3, 5, 4])""",
    )
    before = [*cell.outputs]
    for index, steps in ((1, 5), (2, 4), (0, 3)):  # another each time, so that what is said is new
        cell.turn("steps", index, f"Done: steps = {steps}")
        assert [*cell.outputs] == before
        assert "image/png" in cell.outputs[before[-1]]
        assert f"step {steps}" in cell.texts[-1]


@pytest.mark.parametrize(("index", "name"), [(1, "launch"), (2, "python")])
def test_jupyters_stop(kernel, index, name):
    cell = Cell(kernel, FOR_EVER)
    assert cell.texts == ["'result none'", "begun"]
    cell.turn("loop", index, f"Running with loop = {name}")
    ranks = []
    if name == "launch":
        ranks = eventually(lambda: [*kernel.ranks()] if len(kernel.ranks()) == 2 else None)
    kernel.manager.interrupt_kernel()
    cell.says("Stopped.\nThe result shown is that of loop = none.")
    assert cell.texts[0] == "'result none'"
    assert not gone(ranks)
    cell.turn("loop", 0, "Done: loop = none")


@pytest.mark.slow
def test_stops_at_any_moment_leave_nothing_and_a_kernel_that_works(kernel):
    cell = Cell(
        kernel,
        """
def busy(n):
    for i in range(n):
        if i % 2:
            launch(rank_of, ranks=1, device="cpu")
        else:
            sum(range(1000))
knobs(busy, n=[0, 10**6])""",
    )
    cell.choose("n", 1)
    random.seed(0)
    for _ in range(20):
        cell.run()
        cell.says("Running")
        time.sleep(random.random() * 0.2)
        kernel.manager.interrupt_kernel()
        cell.says("Stopped.")
    for _ in range(5):
        kernel.manager.interrupt_kernel()  # nothing runs: nothing is stopped


def test_an_error_is_said_beside_the_controls_and_the_result_stays(kernel):
    cell = Cell(
        kernel,
        """
def fails(how):
    if how == "rank": launch(lambda: 1 / 0, ranks=1, device="cpu")
    return how or 1 / 0
knobs(fails, how=["not", "rank", 0])""",
    )
    for index, words in ((1, "rank 0 of 1 raised ZeroDivisionError"), (2, "return how or 1 / 0")):
        cell.turn("how", index, words)
        assert cell.texts == ["'not'"]
        assert "knobs.py" not in cell.said[-1]
        assert "The result shown is that of how = not." in cell.said[-1]
    cell = Cell(kernel, "knobs(lambda n: 1 / n, n=[0, 1])")
    assert cell.error == "ZeroDivisionError", "the cell raises what its first run raises"


def test_in_a_script_the_function_is_called_once():
    calls = []
    knobs(lambda **values: calls.append(values), n=[1, 2], way=[None, 3])
    assert calls == [{"n": 1, "way": None}]
