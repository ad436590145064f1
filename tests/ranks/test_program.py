"""A rank is a Python program: it has a `__main__`, the notebook's settings, and an end."""

import os
import sys

import pytest
import torch.distributed as dist

from course_utils import RankError, launch
from tests.kernel import posix

pytestmark = posix


def test_what_a_cell_defines_is_found_by_its_name(kernel):
    """Solutions of 05 gather objects of their own; pools call by name. 90 tokens."""

    answer = kernel.works("""
        import functools, multiprocessing as mp
        from concurrent.futures import ProcessPoolExecutor
        from dataclasses import dataclass
        @dataclass
        class Result:
            loss: float
        def square(x): return x * x
        @functools.cache
        def cached(x): return -x
        def gather():
            everyone = [None] * dist.get_world_size()
            dist.all_gather_object(everyone, Result(dist.get_rank()))
            return everyone
        def send():
            box = [Result(1.0)]
            dist.broadcast_object_list(box, src=0)
            return box
        def save():
            own = f"result{dist.get_rank()}.pt"
            torch.save(Result(1.0), own)
            return torch.load(own, weights_only=False)
        def pool(work, items):
            with mp.Pool(2) as workers, ProcessPoolExecutor(2) as executor:
                return workers.map(work, items), [*executor.map(cached, range(3))]
        os.chdir(__import__("tempfile").mkdtemp())
        def of(*call): return launch(*call, ranks=2).results[0]
        print(of(gather), of(send), of(save), of(pool, square, [1, 2, 3]))
        assert isinstance(of(gather)[1], Result)
        value = 1
        def change():
            global value
            value += 1
            return lambda: value
        [returned, _] = launch(change, ranks=2).results
        assert (returned(), value) == (2, 1), "a rank's variables are not the notebook's"
    """)
    assert answer.text == (
        "[Result(loss=0), Result(loss=1)] [Result(loss=1.0)] Result(loss=1.0) "
        "([1, 4, 9], [0, -1, -2])\n"
    )


def test_a_librarys_decorator_around_a_function_of_a_cell(kernel):
    """torch's tutorial on double backward wraps so. 90 tokens."""

    kernel.works("""
        from torch.autograd.function import once_differentiable
        class Double(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x): return 2 * x
            @staticmethod
            @once_differentiable
            def backward(ctx, gradient): return 2 * gradient
        def train():
            x = torch.ones(1, requires_grad=True)
            Double.apply(x).backward()
            return x.grad.item()
        assert launch(train, ranks=2).results == [2, 2]
    """)


def test_the_notebooks_settings_hold_in_ranks(kernel):
    answer = kernel.works("""
        import logging, warnings
        launch(rank_of, ranks=2)
        logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
        log = logging.getLogger("train")
        extra = logging.StreamHandler(sys.stdout)
        extra.setFormatter(logging.Formatter("own %(message)s"))
        log.addHandler(extra)
        log.addFilter(lambda record: "secret" not in record.getMessage())
        to_file = logging.FileHandler("train.log", mode="w")
        log.addHandler(to_file)
        log.info("here")
        class Odd(logging.Handler):
            lock_of_its_own = __import__("threading").Lock()
            def __init__(self): super().__init__(); self.held = Odd.lock_of_its_own
            def emit(self, record): pass
        odd = logging.getLogger("torchtrainer")  # not torch's
        odd.addHandler(Odd())
        odd.handlers[0].setFormatter(logging.Formatter("{levelname} of {name}", style="{"))
        logging.getLogger("torch.distributed").setLevel(logging.ERROR)
        warnings.filterwarnings("ignore", message="small")
        torch.set_default_dtype(torch.float64)
        torch.set_float32_matmul_precision("medium")
        torch.use_deterministic_algorithms(True, warn_only=True)
        os.environ |= {"TORCH_DISTRIBUTED_DEBUG": "INFO", "OMP_NUM_THREADS": "1"}
        os.environ |= {"TMPDIR": os.getcwd(), "TZ": "EST"}
        def settings():
            log.info("epoch %d", 1)
            log.info("secret")
            odd.warning("odd")
            assert not logging.getLogger("torch.distributed").isEnabledFor(logging.WARNING)
            import tempfile
            assert tempfile.gettempdir() == os.environ["TMPDIR"]
            assert time.strftime("%Z") == "EST"
            warnings.warn("small")
            return (str(torch.get_default_dtype()), torch.get_float32_matmul_precision(),
                    torch.is_deterministic_algorithms_warn_only_enabled(),
                    dist.get_debug_level().name, torch.get_num_threads())
        run = launch(settings, ranks=2, show=False)
        print(*run.results, sep="\\n")
        print(run.output[0])
        print(open("train.log").read())
        os.remove("train.log")
        torch.set_default_dtype(torch.float32)
        torch.set_float32_matmul_precision("highest")
        torch.use_deterministic_algorithms(False)
        for name in ("TORCH_DISTRIBUTED_DEBUG", "OMP_NUM_THREADS", "TMPDIR", "TZ"):
            del os.environ[name]
        logging.getLogger("torch.distributed").setLevel(logging.NOTSET)
        warnings.resetwarnings()
        for logger in (logging.root, log, odd): logger.handlers.clear()
        log.filters.clear()
        logging.root.setLevel(logging.WARNING)
    """)
    assert answer.text.count("('torch.float64', 'medium', True, 'INFO', 1)") == 2
    printed = answer.text.split("\n", 2)[2]
    assert "own epoch 1" in printed
    assert "INFO train: epoch 1" in printed
    assert "WARNING of torchtrainer" in printed, (
        "of a handler that cannot be sent, the text is printed"
    )
    assert "small" not in printed
    assert "secret" not in printed
    assert printed.endswith("here\nepoch 1\nepoch 1\n\n")


def test_settings_of_torch_numpy_and_python_hold_in_ranks(kernel):
    answer = kernel.works("""
        import numpy as np
        def settings():
            return (torch.get_default_device().type, torch.is_grad_enabled(),
                    torch.is_anomaly_enabled(), f"{torch.tensor(1 / 3, device='cpu')}",
                    np.geterr()["over"], np.get_printoptions()["precision"],
                    sys.getrecursionlimit())
        launch(settings, ranks=1)
        before = settings()
        torch.set_default_device("meta")
        torch.set_grad_enabled(False)
        torch.autograd.set_detect_anomaly(True)
        torch.set_printoptions(precision=2)
        np.seterr(over="raise")
        np.set_printoptions(precision=3)
        sys.setrecursionlimit(5000)
        here, [there] = settings(), launch(settings, ranks=1).results
        torch.set_default_device(None)
        torch.set_grad_enabled(True)
        torch.autograd.set_detect_anomaly(False)
        torch.set_printoptions(profile="default")
        np.seterr(over="warn")
        np.set_printoptions(precision=8)
        sys.setrecursionlimit(before[-1])
        print(here == there != before, settings() == before)
    """)
    assert answer.text.strip() == "True True"


def test_a_rank_is_a_main_process_and_what_it_forks_ends_by_itself():
    def fork():
        import multiprocessing as mp

        codes = []
        for end in (lambda: 1 / 0, lambda: sys.exit(3), lambda: 0):
            if os.fork() == 0:
                print("unfinished", end="")
                return end()
            codes.append(os.waitstatus_to_exitcode(os.wait()[1]))
        return codes, mp.current_process().name, mp.parent_process()

    run = launch(fork, ranks=1)
    assert run.results == [([1, 3, 0], "MainProcess", None)]
    assert "ZeroDivisionError" in run.output[0]
    assert run.output[0].count("unfinished") == 3


END = """
import atexit, subprocess, sys, threading, time
from course_utils import launch
def work():
    global log  # open until the end
    log = open("log.csv", "w")
    print("a row", file=log)
    global copy
    copy = subprocess.Popen(["sh", "-c", "cat > piped"], stdin=subprocess.PIPE, text=True)
    copy.stdin.write("by a pipe")
    threading.Thread(target=lambda: (time.sleep(0.3), open("thread", "w").close())).start()
    atexit.register(open, "handler", "w")
    ENDS
launch(work, ranks=1)
"""


@pytest.mark.parametrize("how", ["return", "sys.exit()", "sys.exit(0)", "raise ValueError"])
def test_a_rank_ends_as_python_does(how, tmp_path, monkeypatch, kernel):
    monkeypatch.chdir(tmp_path)
    kernel.works(f"os.chdir({str(tmp_path)!r})")
    answer = kernel.run(END.replace("ENDS", how))
    assert answer.error == ("RankError" if "raise" in how else None), answer.shown
    assert sorted(os.listdir(tmp_path)) == ["handler", "log.csv", "piped", "thread"]
    assert (tmp_path / "log.csv").read_text() == "a row\n"
    assert (tmp_path / "piped").read_text() == "by a pipe"


@pytest.mark.parametrize("stream", [None, "closed"])
def test_standard_output_may_be_gone_at_the_end(stream, tmp_path):
    def leave(fails):
        sys.stdout = open(tmp_path / "log", "w") if stream else None  # noqa: SIM115
        if stream:
            sys.stdout.close()
        if fails:
            raise ValueError("bad shard")
        return 7

    assert launch(leave, False, ranks=1).results == [7]
    with pytest.raises(RankError, match="ValueError: bad shard"):
        launch(leave, True, ranks=1)


@pytest.mark.slow
def test_who_waits_for_a_thread_of_its_own_is_named(kernel):
    answer = kernel.run("""
        import threading
        def save(): time.sleep(600)
        def train(): threading.Thread(target=save).start()
        launch(train, ranks=2, time_limit=8)
    """)
    assert (
        "ranks 0, 1 have returned, and wait for their threads or exit handlers here:"
        in answer.shown
    )
    assert "in save\n      def save(): time.sleep(600)" in answer.shown


def test_a_function_may_choose_how_processes_start_and_shared_memory_goes():
    import multiprocessing as mp
    from multiprocessing.shared_memory import SharedMemory

    def train():
        mp.set_start_method("spawn")
        SharedMemory("of_a_rank", create=True, size=8)
        return mp.get_start_method()

    for _ in range(2):
        assert launch(train, ranks=1).results == ["spawn"]


def test_shared_memory_of_the_notebook_stays_its_own(capfd):
    from multiprocessing.shared_memory import SharedMemory

    def use(name, removes):
        memory = SharedMemory(name=name)
        dist.barrier()
        memory.buf[dist.get_rank()] = 7  # ty: ignore[invalid-assignment]
        memory.close()
        if removes and dist.get_rank() == 0:
            memory.unlink()

    memory = SharedMemory(create=True, size=16)
    for removes in (False, True):
        launch(use, memory.name, removes, ranks=2, device="cpu")
    assert bytes(memory.buf[:2]) == b"\x07\x07"
    memory.close()
    with pytest.raises(FileNotFoundError):
        memory.unlink()
    assert "Traceback" not in "".join(capfd.readouterr())


@pytest.mark.parametrize("call", ["input('name? ')", "breakpoint()"])
def test_a_rank_has_no_keyboard(kernel, call):
    answer = kernel.run(f"def train():\n    {call}\n\nlaunch(train, ranks=2)")
    assert "raised RuntimeError: a rank has no keyboard" in answer.shown
    assert "in train" in answer.shown


def test_what_a_rank_displays_is_printed(kernel):
    pytest.importorskip("matplotlib")
    answer = kernel.works("""
        from IPython.display import display as imported
        import matplotlib.pyplot as plt
        def train():
            display({"loss": 1})
            imported("text")
            plt.plot([1, 2])
            plt.show()
            display(plt.gcf())
        launch(train, ranks=1)
    """)
    assert "[rank 0] {'loss': 1}\n[rank 0] text\n" in answer.text
    assert answer.text.count("return it, and the notebook shows it") == 2
