"""Two hosts: network namespaces of this machine, joined by a cable that can be pulled."""

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import psutil

from tests.kernel import eventually
from tests.python import run
from tests.scripts.notebook import outside


def no_hosts() -> str:
    """Why this machine cannot have two network namespaces; "" where it can."""
    if not shutil.which("ip"):
        return "the command ip is missing (Debian's package iproute2)"
    name = f"probe{os.getpid()}"
    try:
        run("ip", "netns", "add", name)
        run("ip", "netns", "del", name)
    except AssertionError as error:
        return f"ip netns is not allowed here: {error}"
    return ""


class Hosts:
    """host1 and host2, at 10.77.0.1 and 10.77.0.2, with nothing but a cable between them."""

    def __init__(self) -> None:
        self.names = [f"host{i}x{os.getpid()}" for i in (1, 2)]
        self.cables = [f"veth{i}x{os.getpid()}"[:15] for i in (1, 2)]
        self.started: list[subprocess.Popen] = []
        with tempfile.NamedTemporaryFile("w", prefix="hosts", delete=False) as file:
            file.write("127.0.0.1 localhost\n10.77.0.1 host1\n10.77.0.2 host2\n")
        self.known = Path(file.name)  # /etc/hosts of both
        for name in self.names:
            run("ip", "netns", "add", name)
        run("ip", "link", "add", self.cables[0], "type", "veth", "peer", "name", self.cables[1])
        for i, (name, cable) in enumerate(zip(self.names, self.cables, strict=True), start=1):
            run("ip", "link", "set", cable, "netns", name)
            run("ip", "-n", name, "addr", "add", f"10.77.0.{i}/24", "dev", cable)
            run("ip", "-n", name, "link", "set", cable, "up")
            run("ip", "-n", name, "link", "set", "lo", "up")

    def cable(self, state: str) -> None:
        """Plug the second host's cable in ("up") or pull it ("down")."""
        run("ip", "-n", self.names[1], "link", "set", self.cables[1], state)

    def command(self, host: int, *words: str) -> list[str]:
        """These words as a command of this host."""
        inside = f'hostname host{host} && mount --bind {self.known} /etc/hosts && exec "$@"'
        own = ["unshare", "--uts", "--mount", "--propagation", "private", "bash", "-c", inside]
        return ["ip", "netns", "exec", self.names[host - 1], *own, "bash", *words]

    def start(self, host: int, *words: str, said: Path, **more: str) -> subprocess.Popen:
        """Start a process on a host, in the folder of the file that gets what it prints."""
        with said.open("w") as out:
            process = subprocess.Popen(
                self.command(host, *words),
                cwd=said.parent,
                env=outside(**more),
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        self.started.append(process)
        return process

    def close(self) -> None:
        # torchrun first: it ends its workers, which have sessions of their own.
        for process in self.started:
            process.terminate()
        running = [psutil.Process(one.pid) for one in self.started if one.poll() is None]
        psutil.wait_procs(running, timeout=5)
        for name in self.names:
            for pid in run("ip", "netns", "pids", name).stdout.split():
                os.kill(int(pid), signal.SIGKILL)
            run("ip", "netns", "del", name)
        for process in self.started:
            process.wait()
        self.known.unlink()


def wait(until: Callable[[], bool], why: Callable[[], str]) -> None:
    """Ask until it is so, which starts a command each time; or fail with what `why` says."""
    assert eventually(until, pause=0.2), why()
