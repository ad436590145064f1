"""An exported script on two hosts: each runs one agent of `torchrun` with two ranks; a host may go."""

from __future__ import annotations

import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest

from course_utils import launch
from tests.export.hosts import Hosts, no_hosts
from tests.export.notebook import Notebook, metrics
from tests.export.training import IMPORTS, TRAIN

pytestmark = pytest.mark.skipif(bool(reason := no_hosts()), reason=reason or "two hosts")


@pytest.fixture
def hosts():
    two = Hosts()
    yield two
    two.close()


def torchrun(hosts: Hosts, host: int, script: Path, *options: str, nodes: str = "2") -> Path:
    """Start the agent of a host; the file that holds what it prints."""
    said = script.parent / f"host{host}.txt"
    words = [f"--nnodes={nodes}", "--nproc-per-node=2", "--rdzv-backend=c10d", "--rdzv-endpoint=host1:29400"]
    command = [sys.executable, "-m", "torch.distributed.run", *words, *options, str(script)]
    # Where the number of hosts changes, workers that are started again would meet the addresses of the dead ones.
    own = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1"}
    hosts.start(host, *command, said=said, **own)
    return said


def test_four_ranks_on_two_hosts(hosts, tmp_path) -> None:
    notebook = Notebook(IMPORTS, TRAIN)
    script = launch.export(notebook["train"], tmp_path / "train.py", 10, ranks=4, nodes=2, device="cpu")
    said = [torchrun(hosts, host, script) for host in (1, 2)]
    codes = [agent.wait(120) for agent in hosts.started]
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
        conf = "--rdzv-conf=last_call_timeout=2"  # seconds to wait for more hosts than the fewest
        said = torchrun(hosts, host, script, "--max-restarts=5", conf, nodes="1:2")
    end = time.monotonic() + 120
    files = [tmp_path / f"runs/rank{rank}.jsonl" for rank in (0, 3)]
    while not all(file.exists() for file in files) or len(metrics(tmp_path, 0)) < 5:
        assert time.monotonic() < end, said.read_text()
        time.sleep(0.1)
    hosts.cable("down")
    assert hosts.started[0].wait(120) == 0, (tmp_path / "host1.txt").read_text()

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
