"""The training of notebook 19 on two hosts, of which one may go: an agent of `torchrun` on each."""

import sys

import pytest

from course_utils import export, launch
from tests.scripts.hosts import Hosts, no_hosts, wait
from tests.scripts.notebook import curve, metrics, training

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(reason := no_hosts()), reason=reason or "two hosts"),
]
OPTIONS = """
--nnodes=1:2 --nproc-per-node=2 --max-restarts=5
--rdzv-backend=c10d --rdzv-endpoint=host1:29400 --rdzv-conf=last_call_timeout=2
"""


@pytest.fixture
def hosts():
    two = Hosts()
    yield two
    two.close()


def test_a_host_disappears(hosts, tmp_path):
    """Its ranks are waited for until the time limit; then the other host goes on alone."""

    def said() -> str:
        return "".join(file.read_text() for file in tmp_path.glob("host*.txt"))

    resume, steps = training()["resume"], 16
    more = {"every": 1, "pause": 0.3, "save_timeout": 20}
    script = export(
        resume, tmp_path / "train.py", steps, **more, ranks=4, nodes=2, device="cpu", timeout=10
    )
    command = [sys.executable, "-m", "torch.distributed.run", *OPTIONS.split(), str(script)]
    # Workers that are started again would meet the addresses of the dead ones.
    own = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1"}
    for host in (1, 2):
        hosts.start(host, *command, said=tmp_path / f"host{host}.txt", **own)
    wait(lambda: (tmp_path / "runs/rank3.jsonl").exists() and len(metrics(tmp_path, 0)) >= 5, said)
    hosts.cable("down")
    wait(lambda: hosts.started[0].poll() is not None, said)
    assert hosts.started[0].returncode == 0, said()
    records = metrics(tmp_path, 0)
    ranks = [one["ranks"] for one in records]
    assert ranks == sorted(ranks, reverse=True)
    assert set(ranks) == {4, 2}, "it was lost in the middle"
    assert len(records) - steps <= 2, "lost: the steps since the last complete checkpoint"
    whole = launch(resume, steps, folder=str(tmp_path / "launch"), ranks=2, device="cpu")
    assert curve(records) == pytest.approx(whole.column("loss", rank=0), abs=1e-5)
