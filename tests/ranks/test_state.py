"""What a rank has of the notebook's process, which may be odd, and what its own processes have."""

import importlib
import multiprocessing as mp
import os

import pytest

from course_utils import RankError, launch
from tests.files import write
from tests.kernel import posix

pytestmark = posix

LOOK = """
import os, sys, tempfile
def look(_):
    return os.getcwd(), os.environ.get("OF_THE_NOTEBOOK"), sys.path[0], tempfile.gettempdir()
"""
SCRIPT = """
import multiprocessing as mp
def square(x):
    return x * x
if __name__ == "__main__":
    with mp.get_context("spawn").Pool(1) as pool:
        squares = pool.map(square, [1, 2, 3])
"""


@pytest.mark.parametrize("way", ["fork", "spawn", "forkserver"])
def test_what_the_notebook_changed_holds_in_a_ranks_processes(way, tmp_path, monkeypatch):
    write(tmp_path, {"modules/look.py": LOOK, "work/empty": ""})
    monkeypatch.syspath_prepend(tmp_path / "modules")
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("OF_THE_NOTEBOOK", "yes")
    monkeypatch.setenv("TMPDIR", str(tmp_path))

    def ask():
        look = importlib.import_module("look").look
        with mp.get_context(way).Pool(1) as pool:
            return look(0), *pool.map(look, [0])

    [(in_the_rank, in_its_child)] = launch(ask, ranks=1).results
    assert in_the_rank == in_its_child
    expected = str(tmp_path / "work"), "yes", str(tmp_path / "modules"), str(tmp_path)
    assert in_its_child == expected


def test_a_scripts_processes_find_it_after_a_change_of_the_folder(tmp_path, monkeypatch):
    write(tmp_path, {"work/train.py": SCRIPT})
    monkeypatch.chdir(tmp_path / "work")

    def script(path):
        import runpy

        return runpy.run_path(path, run_name="__main__")["squares"]

    assert launch(script, "train.py", ranks=1).results == [[1, 4, 9]]


def test_the_environment_need_not_be_text(monkeypatch):
    monkeypatch.setitem(os.environb, b"ODD", b"\xff\xfe")
    assert launch(os.environb.get, b"ODD", ranks=1).results == [b"\xff\xfe"]
    monkeypatch.delitem(os.environb, b"ODD")
    assert launch(os.environb.get, b"ODD", ranks=1).results == [None]


def test_what_cannot_be_sent_of_a_setting_is_left_out_and_told(kernel):
    answer = kernel.works("""
        import warnings
        from course_utils.ranks import left_out
        left_out._told.clear()
        class Odd:
            def match(self, text): return False
            def __reduce_ex__(self, protocol): 1 / 0
        warnings.filters.append(("ignore", Odd(), UserWarning, None, 0))
        warnings.filters.insert(0, ("error", None, BytesWarning, None, 0))
        argv = sys.argv
        del sys.argv
        def train(): return [one[2] for one in warnings.filters[:1]]
        assert launch(train, ranks=2).results == [[BytesWarning]] * 2
        del warnings.filters[0], warnings.filters[-1]
        sys.argv = argv
    """)
    assert answer.text.splitlines() == [
        "Ranks do without sys.argv (AttributeError: module 'sys' has no attribute 'argv').",
        "Ranks do without an entry of warnings filters (ZeroDivisionError: division by zero).",
    ]


def test_a_folder_that_vanishes_before_a_rank_is_there(kernel, tmp_path):
    answer = kernel.works(f"""
        from course_utils.ranks import state
        here, usual = os.getcwd(), state.read
        def read(env):
            found = usual(env)
            os.chdir(here)
            os.rmdir({str(tmp_path / "gone")!r})
            return found
        os.mkdir({str(tmp_path / "gone")!r})
        os.chdir({str(tmp_path / "gone")!r})
        state.read = read
        try: assert launch(rank_of, ranks=2).results == [0, 1]
        finally: state.read = usual
    """)
    told = f"Ranks do without the folder {tmp_path / 'gone'} (FileNotFoundError: "
    assert answer.text.startswith(told), answer.text


class NotInARank:
    def __init__(self):
        self.value = 1

    def __setstate__(self, state):
        if "RANK" in os.environ:
            raise OSError("of the notebook alone")


@pytest.mark.parametrize(
    ("variables", "value", "words"),
    [
        ({"TORCH_DISTRIBUTED_DEBUG": "FOO"}, 0, "rank 0 of 1 could not begin: it raised ValueErr"),
        ({}, NotInARank(), "rank 0 of 1 raised OSError: of the notebook alone\n  test_state.py"),
    ],
)
def test_a_start_that_fails_is_said_in_words(variables, value, words, monkeypatch, capfd):
    for name, text in variables.items():
        monkeypatch.setenv(name, text)
    with pytest.raises(RankError) as caught:
        launch(type, value, ranks=1, device="cpu")
    assert str(caught.value).startswith(words)
    assert "Traceback" not in "".join(capfd.readouterr())
