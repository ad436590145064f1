"""What ranks have, too: modules are found where the notebook has them, arrays in their file."""

import os

import numpy as np
import pytest

from course_utils import launch
from tests.kernel import posix

pytestmark = posix


@pytest.fixture
def folder(tmp_path, kernel):
    """A folder for modules and packages, the kernel's for a while."""
    for name in ("first", "second"):
        (tmp_path / name / "mine").mkdir(parents=True)
        (tmp_path / name / "twice.py").write_text(f"NAME = {name!r}\nclass Net: NAME = NAME")
    (tmp_path / "second" / "mine" / "__init__.py").touch()
    (tmp_path / "second" / "mine" / "data.py").write_text("NAME = 'data'")
    kernel.works(f"""
        import importlib
        os.chdir({str(tmp_path)!r})
        before, known = sys.path[:], set(sys.modules)
    """)
    yield tmp_path
    kernel.works(f"""
        os.chdir({os.getcwd()!r})
        sys.path[:] = before
        for name in set(sys.modules) - known: del sys.modules[name]
    """)


@pytest.mark.parametrize(
    "found",
    [
        "sys.path.insert(0, 'first')\nimport twice\nsys.path.insert(0, 'second')",
        "sys.path.insert(0, 'first')\nimport twice\nos.chdir('second')",
        "os.chdir('first')\nimport twice\nos.chdir('../second')",
        "spec = importlib.util.spec_from_file_location('twice', 'first/twice.py')\n"
        "twice = sys.modules['twice'] = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(twice)",
    ],
)
def test_a_module_is_that_of_the_notebook(kernel, folder, found):
    kernel.works(found)
    kernel.works("""
        from twice import Net
        def names(net): return twice.NAME, Net.NAME, type(net) is Net
        assert launch(names, Net(), ranks=2).results == [("first", "first", True)] * 2
    """)


def test_a_submodule_that_an_inner_function_uses_is_there(kernel, folder):
    kernel.works("""
        sys.path.insert(0, "second")
        import mine.data
        def names(): return [mine.data.NAME for _ in range(1)], (lambda: mine.data.NAME)()
        assert launch(names, ranks=1).results == [(["data"], "data")]
    """)


def test_a_module_without_a_file_is_refused(kernel):
    answer = kernel.run("""
        import types
        made = sys.modules["made"] = types.ModuleType("made")
        def use(): return made
        try: launch(use, ranks=2)
        finally: del sys.modules["made"]
    """)
    assert answer.error == "CannotBeSent"
    assert "uses made, and made is a module (made was made here, and no file" in answer.shown


@pytest.mark.parametrize("mode", ["w+", "r", "c"])
def test_a_mapped_array_is_a_part_of_its_file(mode, tmp_path):
    path = tmp_path / "data.bin"
    np.arange(24, dtype=np.int16).tofile(path)
    array = np.memmap(path, np.int16, "r+" if mode == "w+" else mode, 4, (2, 11))
    views = [array, array[1:], array[:, ::-2], array.T]

    def read(views):
        if mode == "w+":
            views[0][0, 0] = 99
            views[0].flush()
        return [view.tolist() for view in views], views[0].flags.writeable

    [(parts, writeable)] = launch(read, views, ranks=1).results
    assert parts == [view.tolist() for view in views]
    assert writeable == (mode != "r")
    assert array[0, 0] == (99 if mode == "w+" else 2)


def test_a_mapped_array_whose_file_is_gone_travels_as_what_is_in_it(tmp_path):
    path = tmp_path / "data.bin"
    np.arange(9).tofile(path)
    array = np.memmap(path, int, "r")
    for other in ([], [7] * 9):
        path.unlink()
        np.array(other, int).tofile(path)
        assert launch(lambda: array.tolist(), ranks=1).results == [[*range(9)]]


def test_a_mapped_array_of_a_rank_comes_back_as_what_is_in_it(tmp_path):
    def write():
        path = tmp_path / "data.bin"
        array = np.memmap(path, np.int16, "w+", shape=3)
        array[:] = 7
        path.unlink()
        return array

    assert launch(write, ranks=1).results[0].tolist() == [7, 7, 7]
