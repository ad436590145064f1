"""The server that ranks are forked from: it is the notebook's, and a launch ends without it."""

import ast
import os
import sys
import threading
import time
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from course_utils import CourseError, launch
from course_utils.ranks import server
from tests.files import ROOT, write
from tests.kernel import eventually, gone, posix
from tests.python import python

pytestmark = posix

SCRIPT = """
import os, sys
sys.path.insert(0, ROOT)
from course_utils import launch
import torch.distributed as dist
sys.path[:0] = ["", os.getcwd()]
os.environ["PYTHONPATH"] = os.getcwd()
os.environ["ADDED"] = "yes"
def where():
    import course_utils.lessons
    print(TEXT)
    print(TEXT, file=sys.stderr)
    return dist.get_rank(), course_utils.lessons.__file__, {"ADDED", *OWN} & {*os.environ}
first = launch(where, ranks=2, device="cpu", show=False, time_limit=1.5)
del os.environ["ADDED"]
later = launch(where, ranks=2, device="cpu", show=False)
print(ascii([first.results, later.results, first.output]))
"""
OWN = {"GOMP_SPINCOUNT", "OPENBLAS_NUM_THREADS", "TORCHINDUCTOR_CACHE_DIR"}  # of the server


def test_a_plain_script_in_odd_surroundings(tmp_path):
    """Without a main guard; in a folder whose files have the names of the package's and Python's;
    in a locale of ASCII; where temporary files are too far for a socket; with a limit that is
    shorter than the server's import of torch.
    """
    names = ("course_utils/__init__.py", "socket.py", "queue.py", "random.py")
    folder = write(tmp_path, dict.fromkeys(names, "raise ImportError('that of the folder')"))
    far = tmp_path / ("scheduler" * 10)
    far.mkdir()
    env = {name: value for name, value in os.environ.items() if name not in OWN}
    env |= {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "TMPDIR": str(far)}
    text = "Größe 数 →"
    values = {"ROOT": str(ROOT), "TEXT": text, "OWN": OWN}
    header = "".join(f"{name} = {value!a}\n" for name, value in values.items())
    write(tmp_path, {"script.py": header + SCRIPT})

    first, later, output = ast.literal_eval(python("-P", "script.py", cwd=folder, env=env).stdout)
    package = str(ROOT / "course_utils" / "lessons" / "__init__.py")
    assert first == [(rank, package, {"ADDED"}) for rank in range(2)]
    assert later == [(rank, package, set()) for rank in range(2)], "as it is now, and no more"
    assert output == [f"{text}\n{text}\n"] * 2


def test_a_server_that_cannot_import_says_why_and_the_wait_for_the_next_can_be_interrupted(kernel):
    kernel.works("os.environ['TORCH_LOGS'] = 'nonsense'")  # which torch reads when it is imported
    kernel.restart_server()
    kernel.works("del os.environ['TORCH_LOGS']")
    answer = kernel.run("launch(rank_of, ranks=2, device='cpu')")
    assert "forked from ended (ValueError: " in answer.shown
    request = kernel.send("launch(time.sleep, 60, ranks=4)")
    time.sleep(0.3)
    kernel.interrupt(request)


def test_the_limit_begins_when_a_new_server_has_imported_torch(monkeypatch):
    """Also where it has forked one rank, and others are still to come."""
    now, is_new = 0.0, True
    states = (0.0, True), (10.0, True), (10.0, False)
    looked_at = {state: threading.Semaphore(0) for state in states}

    def look():
        looked_at[now, is_new].release()
        return is_new

    def fork_all():
        nonlocal now, is_new
        looked_at[0.0, True].acquire()
        now = 10.0  # that it takes to import
        looked_at[10.0, True].acquire()
        is_new = False  # the first rank is there
        for _ in range(2):
            looked_at[10.0, False].acquire()

    monkeypatch.setattr(server, "_is_new", look)
    monkeypatch.setattr(server, "time", SimpleNamespace(monotonic=lambda: now))
    assert server.in_time(fork_all, 2.0, []) == 12.0


def test_a_process_that_the_notebook_has_forked_has_no_server(monkeypatch):
    monkeypatch.setattr(server, "_started_by", os.getppid())
    with pytest.raises(CourseError, match="in a process that the notebook has forked"):
        launch(print, ranks=1, device="cpu")


def test_a_debugger_does_not_wait_in_the_server(monkeypatch):
    """JupyterLab's starts every Python through `subprocess` as one that waits for a client."""
    patched, at_start = [True], []

    @contextmanager
    def skip_subprocess_arg_patch():
        patched[0] = False
        yield
        patched[0] = True

    def start(*_, **__):
        at_start.extend(patched)
        return SimpleNamespace(pid=1)

    debugger = SimpleNamespace(skip_subprocess_arg_patch=skip_subprocess_arg_patch)
    monkeypatch.setitem(sys.modules, "_pydev_bundle.pydev_monkey", debugger)
    monkeypatch.setattr(server.subprocess, "Popen", start)
    server._spawn(b"python", ["-c", "the resource tracker"], [])
    assert at_start == [False]


def test_a_server_that_does_not_answer_is_given_up(kernel):
    """One that has answered before, and a new one; the next launch has another."""
    says = "CourseError: no rank was started within the time limit"
    kernel.works("launch(rank_of, ranks=1, device='cpu')")
    stopped = kernel.server()
    stopped.suspend()
    answer = kernel.run("launch(rank_of, ranks=2, device='cpu', time_limit=0.5)")
    assert answer.shown.startswith(says)
    kernel.works("warm_up()")
    assert not gone([stopped])

    new = kernel.server()
    new.suspend()
    answer = kernel.run("""
        from unittest import mock
        from course_utils.ranks import server
        with mock.patch.object(server, "IMPORT_SECONDS", 0.5):
            launch(rank_of, ranks=2, device="cpu", time_limit=0.1)
    """)
    assert answer.shown.startswith(says)
    new.resume()


def test_an_interrupt_ends_the_wait_for_a_server_that_does_not_answer(kernel, tmp_path):
    kernel.works("launch(rank_of, ranks=1, device='cpu')")
    server = kernel.server()
    server.suspend()
    begun = tmp_path / "begun"
    request = kernel.send(f"open({str(begun)!r}, 'w')\nlaunch(rank_of, ranks=2, time_limit=None)")
    assert eventually(begun.exists)
    time.sleep(0.5)
    kernel.interrupt(request)
    server.resume()


def test_a_server_that_is_stopped_in_mid_run(kernel, tmp_path):
    """It cannot say that ranks have ended."""
    request = kernel.send(f"""
        from unittest import mock
        from course_utils.ranks import processes
        def train():
            open({str(tmp_path)!r} + f"/{{dist.get_rank()}}", "w").close()
            while not os.path.exists({str(tmp_path / "go")!r}): time.sleep(0.01)
            return 7
        long = dict.fromkeys(("FINISH_SECONDS", "TERMINATE_SECONDS", "KILL_SECONDS"), 6000)
        with mock.patch.multiple(processes, **long): print(launch(train, ranks=2).results)
    """)
    assert eventually(lambda: len(os.listdir(tmp_path)) == 2)
    server = kernel.server()
    server.suspend()
    (tmp_path / "go").touch()
    assert kernel.answer(request).text == "[7, 7]\n"
    server.resume()


def test_no_file_stays_open_after_a_launch(kernel):
    """ipykernel keeps one for each thread that has touched a stream."""
    kernel.works("""
        import threading
        begun, flush = [], sys.stdout.flush
        sys.stdout.flush = lambda: begun.append(threading.current_thread())
        launch(rank_of, ranks=2)
        sys.stdout.flush = flush
        assert {*begun} <= {threading.main_thread()}, begun
    """)


def test_few_files(kernel):
    answer = kernel.run("""
        import resource
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        launch(rank_of, ranks=1, device="cpu")
        opened = len(os.listdir("/dev/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (opened + 60, limits[1]))
        try: launch(rank_of, ranks=16, device="cpu")
        finally: resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    """)
    assert answer.shown.startswith("CourseError: 16 ranks take 120 open files"), answer.shown
    assert "ulimit -n 4096" in answer.shown
    assert not answer.text
