"""The training of notebook 19 on two hosts: each runs one agent of `torchrun` with two ranks; a host may go."""

import sys
import time
from pathlib import Path

import pytest

from course_utils import export, launch
from tests.export.hosts import Hosts, no_hosts
from tests.export.notebook import curve, metrics, training

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(reason := no_hosts()), reason=reason or "two hosts")]


@pytest.fixture
def hosts():
    two = Hosts()
    yield two
    two.close()


def torchrun(hosts: Hosts, script: Path, *options: str, nodes: str = "2") -> None:
    """Start the agents of both hosts; host1.txt and host2.txt get what they print."""
    words = [f"--nnodes={nodes}", "--nproc-per-node=2", "--rdzv-backend=c10d", "--rdzv-endpoint=host1:29400"]
    # Where the number of hosts changes, workers that are started again would meet the addresses of the dead ones.
    own = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1"}
    for host in (1, 2):
        command = [sys.executable, "-m", "torch.distributed.run", *words, *options, str(script)]
        hosts.start(host, *command, said=script.with_name(f"host{host}.txt"), **own)


def said(folder: Path) -> str:
    return "".join(file.read_text() for file in folder.glob("host*.txt"))


def test_four_ranks_on_two_hosts(hosts, tmp_path) -> None:
    resume = training()["resume"]
    script = export(resume, tmp_path / "train.py", 10, ranks=4, nodes=2, device="cpu")
    torchrun(hosts, script)
    assert [agent.wait(600) for agent in hosts.started] == [0, 0], said(tmp_path)
    whole = launch(resume, 10, folder=str(tmp_path / "launch"), ranks=2, device="cpu").column("loss", rank=0)
    for rank in range(4):
        assert curve(metrics(tmp_path, rank)) == pytest.approx(whole, abs=1e-5)


def test_a_host_disappears(hosts, tmp_path) -> None:
    """Its ranks are waited for until the time limit; then the other host goes on alone from the last checkpoint."""
    resume, steps, more = training()["resume"], 16, {"every": 1, "pause": 0.3}
    script = export(resume, tmp_path / "train.py", steps, **more, ranks=4, nodes=2, device="cpu", time_limit=10)
    torchrun(hosts, script, "--max-restarts=5", "--rdzv-conf=last_call_timeout=2", nodes="1:2")
    end = time.monotonic() + 600
    while not (tmp_path / "runs/rank3.jsonl").exists() or len(metrics(tmp_path, 0)) < 5:
        assert time.monotonic() < end, said(tmp_path)
        time.sleep(0.1)
    hosts.cable("down")
    assert hosts.started[0].wait(600) == 0, said(tmp_path)
    records = metrics(tmp_path, 0)
    assert [one["ranks"] for one in records] == sorted((one["ranks"] for one in records), reverse=True)
    assert {one["ranks"] for one in records} == {4, 2}, "it was lost in the middle"
    assert len(records) - steps <= 2, "nothing is lost but the steps since the last complete checkpoint"
    whole = launch(resume, steps, folder=str(tmp_path / "launch"), ranks=2, device="cpu").column("loss", rank=0)
    assert curve(records) == pytest.approx(whole, abs=1e-5)
