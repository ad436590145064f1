"""A real Jupyter kernel for tests: run cells in it, interrupt it, kill it, see what it left."""

import queue
import re
import sys
import time
from dataclasses import dataclass, field
from typing import Any

import psutil
import pytest
from jupyter_client.manager import start_new_kernel

posix = pytest.mark.skipif(sys.platform == "win32", reason="launch needs Linux or macOS")
SETUP = """
import os, signal, sys, time, torch, torch.distributed as dist
from course_utils import *
warm_up()
def rank_of(): return dist.get_rank()
"""
REMEMBER = "at_first = {*globals(), 'at_first'}"
FORGET = "for name in {*globals()} - at_first: del globals()[name]"  # as %reset, in no time


@dataclass
class Answer:
    """What a cell gave back."""

    text: str = ""  # printed
    error: str | None = None  # class name
    shown: str = ""  # traceback, as in the notebook, but without its colours
    displays: list[dict] = field(default_factory=list)


class Kernel:
    def __init__(self, *, history: bool = True) -> None:
        """Without a history the kernel keeps no cell in `In`: nbval runs notebooks like that."""
        self.history = history
        self.manager, self.client = start_new_kernel(startup_timeout=600)
        self.run(SETUP + REMEMBER)

    def restart(self, *, now: bool = False) -> None:
        self.manager.restart_kernel(now=now)
        self.client.wait_for_ready(timeout=600)
        self.run(SETUP + REMEMBER)

    def restart_server(self) -> None:
        """Kill it: another begins to import torch."""
        server = self.server()
        if server:
            server.kill()
            assert not gone([server])
        self.works("warm_up()")

    @property
    def process(self) -> psutil.Process:
        provisioner: Any = self.manager.provisioner
        return psutil.Process(provisioner.pid)

    def send(self, code: str) -> str:
        return self.client.execute(code, store_history=self.history)

    def run(self, code: str) -> Answer:
        return self.answer(self.send(code))

    def answer(self, request: str) -> Answer:
        answer = Answer()
        while True:
            try:
                message = self.client.get_iopub_msg(timeout=600)
            except queue.Empty:
                said = f"nothing came for 600 s; the cell printed: {answer.text[-2000:]}"
                raise TimeoutError(said) from None
            if message["parent_header"].get("msg_id") != request:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "stream":
                answer.text += content["text"]
            elif kind in ("display_data", "update_display_data", "execute_result"):
                answer.displays.append(content["data"])
            elif kind == "error":
                answer.error = content["ename"]
                answer.shown = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(content["traceback"]))
            elif kind == "status" and content["execution_state"] == "idle":
                return answer

    def works(self, code: str) -> Answer:
        """Run a cell, which must not raise."""
        answer = self.run(code)
        assert answer.error is None, answer.shown
        return answer

    def interrupt(self, request: str) -> Answer:
        """Interrupt the cell of this request, which must end in that."""
        self.manager.interrupt_kernel()
        answer = self.answer(request)
        assert answer.error == "KeyboardInterrupt", answer.shown
        return answer

    def reset(self) -> None:
        """What tests have defined is gone."""
        self.run(FORGET)
        self.run(SETUP)

    def server(self) -> psutil.Process | None:
        """The server that ranks are forked from."""
        for child in self.process.children():
            if "multiprocessing.forkserver" in " ".join(child.cmdline()):
                return child
        return None

    def ranks(self) -> list[psutil.Process]:
        server = self.server()
        return server.children() if server else []

    def assert_usable(self, launch: str) -> None:
        """Nothing is left of what went before, and a launch works: a cell that raises if wrong."""
        assert eventually(lambda: not self.ranks()), "ranks or cores were left behind"
        self.works(launch)

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


def gone(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Wait for the end of all these processes; those that do not end in time."""
    eventually(lambda: not any(map(_is_alive, processes)))
    return [*filter(_is_alive, processes)]


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def eventually(condition, pause: float = 0.02):
    """The first true value of `condition()`; its last value if none comes within 600 seconds."""
    end = time.monotonic() + 600
    while not (value := condition()) and time.monotonic() < end:
        time.sleep(pause)
    return value
