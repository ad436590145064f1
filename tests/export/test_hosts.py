"""Two hosts: network namespaces of this machine, joined by a cable that can be pulled.

Each host runs one agent of `torchrun` with two ranks of an exported script.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest

from course_utils import launch
from tests.export.notebook import Notebook, metrics, outside


def run(*words: str) -> subprocess.CompletedProcess:
    return subprocess.run(words, capture_output=True, text=True, check=True)


def no_hosts() -> str:
    """Why this machine cannot have two network namespaces; "" where it can."""
    if not shutil.which("ip"):
        return "the command ip is missing (Debian's package iproute2)"
    name = f"probe{os.getpid()}"
    try:
        run("ip", "netns", "add", name)
        run("ip", "netns", "del", name)
    except subprocess.CalledProcessError as error:
        return f"ip netns is not allowed here: {error.stderr.strip()}"
    return ""


pytestmark = pytest.mark.skipif(bool(reason := no_hosts()), reason=reason or "two hosts")


class Hosts:
    """Two network namespaces, 10.77.0.1 and 10.77.0.2, with nothing but a cable between them."""

    def __init__(self) -> None:
        self.names = [f"host{i}x{os.getpid()}" for i in (1, 2)]
        self.cables = [f"veth{i}x{os.getpid()}"[:15] for i in (1, 2)]
        self.agents: list[subprocess.Popen] = []
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

    def torchrun(self, host: int, script: Path, *options: str, nodes: str = "2") -> Path:
        """Start the agent of a host; the file that holds what it prints."""
        said = script.parent / f"host{host}.{len(self.agents)}.txt"
        command = ["ip", "netns", "exec", self.names[host - 1], sys.executable, "-m", "torch.distributed.run"]
        command += ["--nproc-per-node=2", f"--nnodes={nodes}", "--rdzv-backend=c10d", "--rdzv-endpoint=10.77.0.1:29400"]
        command += [f"--local-addr=10.77.0.{host}", *options, str(script)]
        env = outside(OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME=self.cables[host - 1])
        with said.open("w") as out:
            agent = subprocess.Popen(
                command, cwd=script.parent, env=env, stdout=out, stderr=out, start_new_session=True
            )
        self.agents.append(agent)
        return said

    def close(self) -> None:
        for agent in self.agents:  # the agent first: it ends its workers, which have sessions of their own
            if agent.poll() is None:
                agent.send_signal(signal.SIGTERM)
        for agent in self.agents:
            try:
                agent.wait(5)
            except subprocess.TimeoutExpired:
                agent.kill()
        for name in self.names:
            left = run("ip", "netns", "pids", name).stdout.split()
            for pid in left:
                os.kill(int(pid), signal.SIGKILL)
            run("ip", "netns", "del", name)


@pytest.fixture
def hosts():
    two = Hosts()
    yield two
    two.close()


TRAIN = """
def train(steps, pause=0.0):
    \"\"\"Train a little model, saved after each step; go on where the last save was.\"\"\"
    torch.manual_seed(0)
    model = DDP(torch.nn.Linear(8, 1).to(pick()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    first = 0
    if SAVED.exists():
        saved = torch.load(SAVED, map_location=pick())
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["step"] + 1
    for step in range(first, steps):
        batch = torch.rand(32, 8, generator=torch.Generator().manual_seed(step)).to(pick())
        x = batch[dist.get_rank() :: dist.get_world_size()]
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        dist.all_reduce(loss)
        report(step, loss=loss.item() / dist.get_world_size())
        if dist.get_rank() == 0:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, "new.pt")
            os.replace("new.pt", SAVED)
        time.sleep(pause)
"""
IMPORTS = """
import os
import time
from itertools import pairwise
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from course_utils import pick, report

SAVED = Path("last.pt")
"""


def test_four_ranks_on_two_hosts(hosts, tmp_path) -> None:
    notebook = Notebook(IMPORTS, TRAIN)
    script = launch.export(notebook["train"], tmp_path / "train.py", 10, ranks=4, nodes=2, device="cpu")
    said = [hosts.torchrun(host, script, f"--rdzv-conf=is_host={2 - host}") for host in (1, 2)]
    codes = [agent.wait(120) for agent in hosts.agents]
    assert codes == [0, 0], "".join(file.read_text() for file in said)
    losses = [[one["loss"] for one in metrics(tmp_path, rank)] for rank in range(4)]
    assert len(losses[0]) == 10
    assert all(other == pytest.approx(losses[0], abs=1e-6) for other in losses), "the mean of all ranks, on every rank"


def test_a_host_disappears(hosts, tmp_path, monkeypatch, record_property) -> None:
    """Its ranks are waited for until the time limit; then the other host goes on alone from the last checkpoint."""
    notebook, steps = Notebook(IMPORTS, TRAIN), 16
    script = launch.export(
        notebook["train"], tmp_path / "train.py", steps, 0.3, ranks=4, nodes=2, device="cpu", time_limit=10
    )
    for host in (1, 2):
        conf = f"--rdzv-conf=is_host={2 - host},last_call_timeout=2"  # seconds to wait for more hosts than the fewest
        said = hosts.torchrun(host, script, "--max-restarts=5", conf, nodes="1:2")
    end = time.monotonic() + 120
    files = [tmp_path / f"runs/rank{rank}.jsonl" for rank in (0, 3)]
    while not all(file.exists() for file in files) or len(metrics(tmp_path, 0)) < 5:
        assert time.monotonic() < end, said.read_text()
        time.sleep(0.1)
    hosts.cable("down")
    assert hosts.agents[0].wait(120) == 0, (tmp_path / "host1.0.txt").read_text()

    records = metrics(tmp_path, 0)
    pause, before = max((b["time"] - a["time"], a["step"]) for a, b in pairwise(records))
    record_property("seconds from the last step on 4 ranks to the next on 2", pause)
    print(f"{pause:.1f} s from the last step on 4 ranks, {before}, to the next on 2")
    assert 4 <= before < steps - 1, "it was lost in the middle"
    assert max(one["step"] for one in metrics(tmp_path, 3)) <= before + 1, "the other host did no more"
    repeated = len(records) - steps
    assert 0 <= repeated <= 1, "nothing is lost but the steps since the checkpoint, of which there is one a step"
    monkeypatch.chdir(tmp_path / "runs")  # where no checkpoint is
    whole = launch(notebook["train"], steps, ranks=2, device="cpu").column("loss", rank=0)
    curve = {one["step"]: one["loss"] for one in records}
    assert [curve[step] for step in range(steps)] == pytest.approx(whole, abs=1e-5)
