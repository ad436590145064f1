"""The server that ranks are forked from: it is the notebook's, and a launch ends without it."""

import os
import threading
import time
from types import SimpleNamespace

from course_utils.ranks import server
from tests.files import ROOT, write
from tests.kernel import eventually, gone, posix
from tests.python import python

pytestmark = posix

SCRIPT = """
import os, sys
sys.path.insert(0, ROOT)
from course_utils import launch
os.environ["PYTHONPATH"] = os.getcwd()
sys.path.insert(0, os.getcwd())
sys.path.insert(0, "")
def where():
    import course_utils, course_utils.lessons
    return course_utils.__file__, course_utils.lessons.__file__
if __name__ == "__main__":
    [found] = {*launch(where, ranks=2, device="cpu").results}
    print(*found, sep="\\n")
"""


def test_whatever_lies_in_the_folder_ranks_have_the_notebooks_package(tmp_path):
    wrong = "raise ImportError('that of the folder')"
    names = ("course_utils/__init__.py", "socket.py", "queue.py", "random.py")
    folder = write(tmp_path / "folder", dict.fromkeys(names, wrong))
    script = write(tmp_path, {"script.py": SCRIPT.replace("ROOT", repr(str(ROOT)))}) / "script.py"
    lines = python("-P", script, cwd=folder).stdout.splitlines()
    package = ROOT / "course_utils"
    assert lines == [
        str(package / "__init__.py"),
        str(package / "lessons" / "__init__.py"),
    ]


IMPORT = """
import os, course_utils, torch.distributed  # the server imports while the launch is under way
os.environ["TORCH_LOGS"] = "nonsense"  # which torch reads when it is imported
course_utils.warm_up()
del os.environ["TORCH_LOGS"]
for _ in range(2):
    try: print(course_utils.launch(int, ranks=1, device="cpu").results)
    except course_utils.CourseError as error: print(error)
"""


def test_a_server_that_cannot_import_says_why_and_the_next_launch_has_another():
    done = python("-c", IMPORT, cwd=ROOT)
    words = "forked from ended (ValueError: "
    assert words in done.stdout
    assert done.stdout.endswith("[0]\n")
    assert not done.stderr


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


def test_the_time_limit_does_not_count_while_a_new_server_imports_torch():
    code = "from course_utils import launch; print(launch(int, ranks=1, time_limit=1.5).results)"
    assert python("-c", code, cwd=ROOT).stdout == "[0]\n"


DEBUGGER = """
import contextlib, subprocess, sys, types
patched = [True]
@contextlib.contextmanager
def skip_subprocess_arg_patch():
    patched[0] = False
    yield
    patched[0] = True
debugger = types.ModuleType("_pydev_bundle.pydev_monkey")
debugger.skip_subprocess_arg_patch = skip_subprocess_arg_patch
sys.modules["_pydev_bundle.pydev_monkey"] = debugger
start = subprocess.Popen.__init__
def wait_for_a_client(process, args, **options):
    start(process, ["sleep", "600"] if patched[0] else args, **options)
subprocess.Popen.__init__ = wait_for_a_client
from course_utils import launch
print(launch(int, ranks=2, device="cpu").results)
"""


def test_a_debugger_does_not_wait_in_the_server():
    """It starts every Python through `subprocess` as one that waits for a client."""
    assert python("-c", DEBUGGER, cwd=ROOT).stdout == "[0, 0]\n"


def test_a_server_that_does_not_answer_ends_no_kernel(kernel, tmp_path):
    kernel.works("launch(rank_of, ranks=1, device='cpu')")
    stopped = kernel.server()
    stopped.suspend()
    answer = kernel.run("launch(rank_of, ranks=2, device='cpu', time_limit=2)")
    assert answer.shown.startswith("CourseError: no rank was started within the time limit")
    kernel.works("assert launch(rank_of, ranks=2, device='cpu').results == [0, 1]")
    assert not gone([stopped])

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
    kernel.works("""
        from course_utils.ranks import processes
        processes.FINISH_SECONDS = processes.TERMINATE_SECONDS = processes.KILL_SECONDS = 6000
    """)
    request = kernel.send(f"""
        def train():
            open({str(tmp_path)!r} + f"/{{dist.get_rank()}}", "w").close()
            while not os.path.exists({str(tmp_path / "go")!r}): time.sleep(0.01)
            return 7
        print(launch(train, ranks=2).results)
    """)
    assert eventually(lambda: len(os.listdir(tmp_path)) == 2)
    server = kernel.server()
    server.suspend()
    (tmp_path / "go").touch()
    assert kernel.answer(request).text == "[7, 7]\n"
    server.resume()
    kernel.works("processes.FINISH_SECONDS = processes.TERMINATE_SECONDS = 2.0")
    kernel.works("processes.KILL_SECONDS = 10.0")


def test_a_server_that_has_never_answered_is_given_up_too(fresh):
    fresh.works("from course_utils.ranks import server; server.IMPORT_SECONDS = 2.0")
    server = fresh.server()
    server.suspend()
    answer = fresh.run("launch(rank_of, ranks=2, device='cpu', time_limit=1)")
    assert answer.shown.startswith("CourseError: no rank was started within the time limit")
    server.resume()
    fresh.works("assert launch(rank_of, ranks=2, device='cpu').results == [0, 1]")


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
