"""What can go wrong with ranks, in a real kernel: one error in words, nothing left, the next works.

No test asserts a duration: a limit here only keeps a hang from lasting. benchmarks/README.md has
the durations.
"""

import os
import re
import struct
import time

import psutil
import pytest

from course_utils import RankError, launch
from course_utils.ranks import processes, wire
from tests.kernel import eventually, gone, posix

pytestmark = posix

FAULTS = {
    "raises, and the others lose a peer": (
        """
        def train():
            if dist.get_rank() == 2:
                time.sleep(0.2)
                raise ValueError("bad shard")
            try:
                dist.all_reduce(torch.ones(1))
            except RuntimeError:
                raise RuntimeError("lost a peer")
        launch(train, ranks=4)
        """,
        """
        rank 2 of 4 raised ValueError: bad shard
        Cell In[N], line 4, in train
        raise ValueError("bad shard")
        """,
    ),
    "killed": (
        """
        def train():
            if dist.get_rank() == 1:
                time.sleep(0.3)
                os.kill(os.getpid(), signal.SIGKILL)
            dist.all_reduce(torch.ones(1))
        launch(train, ranks=4)
        """,
        """
        rank 1 of 4 was killed (SIGKILL)
        wait in all_reduce here:
        Cell In[N], line 5, in train
        Where memory runs out, the system does this
        """,
    ),
    "sleeps, is stopped, keeps the GIL": (
        """
        from unittest import mock
        from course_utils.ranks import processes
        def train():
            if dist.get_rank() == 1:
                time.sleep(600)
            if dist.get_rank() == 2:
                time.sleep(1.2)  # five times a second a rank says where it is
                os.kill(os.getpid(), signal.SIGSTOP)
            if dist.get_rank() == 3:
                import ctypes
                while True:  # a signal ends one sleep
                    ctypes.PyDLL(None).sleep(60)
            dist.all_reduce(torch.ones(1))
        with mock.patch.object(processes, "TERMINATE_SECONDS", 0.1):
            launch(train, ranks=4, time_limit=3)
        """,
        """
        ranks 0, 1, 2, 3 of 4 had not finished after the time limit of 3 s
        rank 0 waits in all_reduce here:
        rank 1 is here:
        Cell In[N], line 5, in train
        time.sleep(600)
        rank 2 is here:
        rank 3
        """,
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_one_error_names_rank_cause_and_line(kernel, name):
    code, lines = FAULTS[name]
    answer = kernel.run(code)
    assert answer.error == "RankError", answer.shown
    shown = re.sub(r"In\[\d+\]", "In[N]", answer.shown)
    for line in lines.strip().splitlines():
        assert line.strip() in shown, shown
    assert "course_utils/" not in answer.shown, "our own frames are no help to a learner"


def test_the_notebooks_folder_is_gone(kernel):
    answer = kernel.run("""
        import tempfile
        here = os.getcwd()
        with tempfile.TemporaryDirectory() as gone: os.chdir(gone)
        try: launch(rank_of, ranks=2)
        finally: os.chdir(here)
    """)
    assert answer.error == "CourseError", answer.shown
    assert "the folder that this notebook works in is gone" in answer.shown
    assert "course_utils/" not in answer.shown


@pytest.mark.parametrize("fails", [False, True])
def test_children_end_with_their_rank_whatever_they_do(kernel, fails):
    answer = kernel.run(f"""
        import subprocess
        from unittest import mock
        from course_utils.ranks import processes
        def leave():
            deaf = ["sh", "-c", "trap '' TERM; sleep 600"]
            for command, own_session in ((["sleep", "600"], False), (deaf, False), (deaf, True)):
                child = subprocess.Popen(command, start_new_session=own_session)
                print("child", child.pid)
            dist.barrier()
            if {fails} and dist.get_rank() == 0: raise ValueError
            if {fails}: time.sleep(600)
        with mock.patch.multiple(processes, FINISH_SECONDS=0.1, TERMINATE_SECONDS=0.1):
            launch(leave, ranks=2)
    """)
    assert answer.error == ("RankError" if fails else None), answer.shown
    pids = [int(pid) for pid in re.findall(r"child (\d+)", answer.text)]
    assert len(pids) == 6
    assert not gone([psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)])


@pytest.mark.parametrize(
    "function",
    ["dist.barrier() if dist.get_rank() else time.sleep(60)", "while True: print('x' * 200)"],
)
def test_interrupt(kernel, function):
    request = kernel.send(f"def train():\n    {function}\nlaunch(train, ranks=4)")
    assert eventually(lambda: len(kernel.ranks()) == 4)
    time.sleep(0.5)
    ranks = kernel.ranks()
    answer = kernel.interrupt(request)
    says = "KeyboardInterrupt: interrupted; every rank was ended."
    assert answer.shown.startswith(says), answer.shown
    assert "course_utils/" not in answer.shown
    assert not gone(ranks)


def test_an_interrupt_reaches_the_function(kernel, tmp_path):
    request = kernel.send(f"""
        def train():
            path = {str(tmp_path)!r} + f"/rank{{dist.get_rank()}}"
            try:
                open(path, "w").close()
                while True: dist.all_reduce(torch.ones(1))
            except KeyboardInterrupt:
                print("saved")
            finally:
                os.rename(path, path + " is done")
        from course_utils.ranks import supervisor
        supervisor.HEAR_SECONDS = supervisor.INTERRUPT_SECONDS = 600  # nobody needs so long
        launch(train, ranks=2)
    """)
    assert eventually(lambda: {"rank0", "rank1"} <= {*os.listdir(tmp_path)})
    assert "saved" in kernel.interrupt(request).text
    kernel.works("supervisor.HEAR_SECONDS, supervisor.INTERRUPT_SECONDS = 0.15, 2.0")
    assert sorted(os.listdir(tmp_path)) == ["rank0 is done", "rank1 is done"]


def test_who_waits_for_others_does_not_hear_an_interrupt_and_is_not_waited_for(kernel, tmp_path):
    request = kernel.send(f"""
        def train():
            open({str(tmp_path)!r} + f"/rank{{dist.get_rank()}}", "w").close()
            dist.recv(torch.ones(1), src=1 - dist.get_rank())
        from course_utils.ranks import supervisor
        supervisor.INTERRUPT_SECONDS = 6000
        launch(train, ranks=2, time_limit=None)
    """)
    assert eventually(lambda: len(os.listdir(tmp_path)) == 2)
    kernel.interrupt(request)
    kernel.works("supervisor.INTERRUPT_SECONDS = 2.0")


def test_a_fork_of_the_notebook_may_free_what_an_error_holds(kernel):
    """Of a store that a fork frees, C++ joins a thread that is not there, and aborts."""
    kernel.works("""
        def fail(): raise ValueError
        try: launch(fail, ranks=2)
        except Exception as error: held = error
        if (child := os.fork()) == 0:
            del held
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    """)


@pytest.mark.parametrize("delay", [0.0, 0.02, 0.05])
def test_interrupt_at_start_up(kernel, delay, tmp_path):
    begun = tmp_path / "begun"  # a file, because an interrupted print may leave ipykernel waiting
    kernel.run(f"def start():\n    open({str(begun)!r}, 'w')\n    launch(time.sleep, 60, ranks=4)")
    request = kernel.send("start()")
    assert eventually(begun.exists)
    time.sleep(delay)
    assert not kernel.interrupt(request).text, "a rank has a traceback only once it has a function"


def test_interrupt_while_the_store_opens(kernel):
    """In the main thread torch's system calls would fail, and the cell with a DistNetworkError."""
    answer = kernel.run("""
        import threading
        threads, real = [], dist.TCPStore
        def store(*args, **kwargs):
            threads.append(threading.current_thread())
            os.kill(os.getpid(), signal.SIGINT)
            return real(*args, **kwargs)
        dist.TCPStore = store
        try:
            launch(time.sleep, 60, ranks=2)
        finally:
            dist.TCPStore = real
            print(threads[0] is threading.main_thread())
    """)
    assert answer.error == "KeyboardInterrupt", answer.shown
    assert answer.text.strip() == "False"


ODD_RANKS = """
def train():
    import subprocess, ctypes
    if dist.get_rank() == 0: ctypes.PyDLL(None).sleep(600)  # PyDLL keeps the GIL
    if dist.get_rank() == 1:
        subprocess.Popen(["sleep", "600"], start_new_session=True)
        subprocess.run(["sleep", "600"])
    dist.barrier()
launch(train, ranks=4)
"""


@pytest.mark.parametrize("is_killed", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_kernel_that_is_restarted_in_mid_run_takes_all_with_it(fresh, is_killed):
    fresh.manager.shutdown_wait_time = 0.5  # seconds until Jupyter kills what it asked to stop
    fresh.send(ODD_RANKS)
    assert eventually(lambda: len([c for rank in fresh.ranks() for c in rank.children()]) == 2)
    before = fresh.process.children(recursive=True)
    assert len(before) >= 7, "a server, four ranks, and two children"
    fresh.restart(now=is_killed)
    assert not gone(before)

    # One that is told to stop while nothing runs ends by itself, and leaves no file.
    util = "from multiprocessing import util\nprint(util.get_temp_dir())"
    folder = fresh.works(util).text.strip()
    assert os.path.isdir(folder)
    group = os.getpgid(fresh.process.pid)  # ipykernel waits until all of it has ended
    assert group not in [os.getpgid(child.pid) for child in fresh.process.children()]
    fresh.manager.shutdown_wait_time = 120.0
    fresh.manager.shutdown_kernel(now=False)
    assert not os.path.exists(folder)


def test_nothing_listens_beyond_loopback(kernel):
    answer = kernel.works("""
        import psutil
        def listens(pid):
            connections = psutil.Process(pid).net_connections("inet")
            return {c.laddr.ip for c in connections if c.status == psutil.CONN_LISTEN}
        def train(notebook):
            dist.all_reduce(torch.ones(1))
            return listens(os.getpid()) | listens(notebook)
        print(*set().union(*launch(train, os.getpid(), ranks=3).results))
    """)
    assert "127.0.0.1" in answer.text, "the test looked at nothing"
    assert set(answer.text.split()) <= {"127.0.0.1", "::1"}


def test_several_launches_also_from_threads(kernel):
    kernel.works("""
        from concurrent.futures import ThreadPoolExecutor
        main = sys.modules["__main__"]
        with ThreadPoolExecutor(3) as pool:
            runs = [pool.submit(launch, rank_of, ranks=2) for _ in range(6)]
            while not all(run.done() for run in runs):
                assert sys.modules["__main__"] is main, "others pickle meanwhile"
        assert [run.result().results for run in runs] == [[0, 1]] * 6
    """)


def test_dataloader_workers_and_classes_from_cells(kernel):
    kernel.works("""
        from torch.utils.data import DataLoader, Dataset
        class Squares(Dataset):
            def __len__(self): return 8
            def __getitem__(self, i): return i * i
        def train(): return sum(int(x) for x in DataLoader(Squares(), num_workers=2))
        assert launch(train, ranks=2).results == [140, 140]
    """)


def test_a_launch_that_hangs_says_where_each_rank_is_until_it_goes_on(kernel, tmp_path):
    answer = kernel.works(f"""
        from unittest import mock
        from course_utils.ranks import output, whereabouts
        def nap():
            while not os.path.exists({str(tmp_path / "told")!r}): time.sleep(0.05)
        def train():
            if dist.get_rank() == 2: nap()
            dist.all_reduce(torch.ones(1))
        class Telling(output.Display):
            def show(self, data):
                super().show(data)
                if "Nothing heard" in data["text/plain"]:
                    open({str(tmp_path / "told")!r}, "w").close()
        with (mock.patch.object(output, "Display", Telling),
              mock.patch.object(whereabouts, "QUIET_SECONDS", 0.5)):
            launch(train, ranks=3, time_limit=600)
    """)
    *_, told, last = [data["text/plain"] for data in answer.displays]
    for pattern in (
        r"ranks 0, 1 wait in all_reduce here:\n  Cell In\[\d+\], line 7, in train",
        r"rank 2 is here:\n  Cell In\[\d+\], line 4, in nap\n.*time.sleep\(0.05\)",
        r"The time limit ends this in \d+ s\.",
    ):
        assert re.search(pattern, told), told
    assert last == "", "it stays when the ranks go on"


def test_a_rank_that_is_stopped_in_a_message_does_not_hold_the_launch(monkeypatch):
    def train():
        session = wire.current()
        with session.lock:
            os.write(session.connection.fileno(), struct.pack("!i", 1_000))  # so long is it to be
            time.sleep(600)

    monkeypatch.setattr(processes, "MESSAGE_SECONDS", 1)
    with pytest.raises(RankError) as caught:
        launch(train, ranks=1, device="cpu", time_limit=2)
    assert caught.value.cause == "TimeLimit"
