"""Notebook 19's training as a batch file on a real Slurm: cancelled; out of time, and requeued."""

import os
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from course_utils import export, launch
from tests.scripts.hosts import wait
from tests.scripts.notebook import curve, metrics, training
from tests.scripts.slurm import Slurm, no_slurm

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(reason := no_slurm()), reason=reason or "a Slurm"),
]
STEPS = 16


@pytest.fixture
def slurm(tmp_path_factory):
    cluster = Slurm(tmp_path_factory.mktemp("slurm"))
    yield cluster
    cluster.close()


def ranks(script: Path, variable: str = "LOCAL_RANK") -> list[psutil.Process]:
    """Processes of the job with this in their environment: its ranks, with PATH its agents, too."""
    found = []
    for one in psutil.process_iter():
        with suppress(psutil.Error):
            ours = script.name in one.cmdline() and one.cwd() == str(script.parent)
            if ours and variable in one.environ():
                found.append(one)
    return found


def test_job_is_cancelled_runs_is_requeued_and_goes_on(slurm, tmp_path):
    resume = training()["resume"]
    split = {"ranks": 4, "nodes": 2, "device": "cpu"}
    more = {"every": 1000, "pause": 0.3}  # nothing is saved but after SIGTERM
    script = export(resume, tmp_path / "train.py", STEPS, **split, **more, jobs=("slurm",))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"

    def said() -> str:
        printed = [file.read_text() for file in tmp_path.glob("slurm-*.out")]
        return slurm.command("scontrol", "show", "job") + "".join(printed)

    def steps() -> list[dict]:
        return metrics(tmp_path, 0) if (tmp_path / "runs/rank3.jsonl").exists() else []

    job = slurm.command("sbatch", "--parsable", "train.sbatch", cwd=tmp_path, PATH=path).strip()
    wait(lambda: len(ranks(script)) == 4, said)
    networks = {os.readlink(f"/proc/{one.pid}/ns/net") for one in ranks(script)}
    assert len(networks) == 2, "on two hosts"
    slurm.command("scancel", job)
    wait(lambda: slurm.state(job) == "CANCELLED" and not ranks(script, "PATH"), said)

    job = slurm.command("sbatch", "--parsable", "train.sbatch", cwd=tmp_path, PATH=path).strip()
    wait(lambda: len(steps()) >= 3, said)
    slurm.command("scancel", "--batch", "--signal=USR1", job)  # as Slurm does before the time limit
    wait(lambda: not ranks(script, "PATH"), said)
    before = len(steps())
    assert 3 <= before < STEPS, "requeued in the middle"
    wait(lambda: slurm.state(job) not in ("PENDING", "RUNNING", "COMPLETING"), said)
    assert slurm.state(job) == "COMPLETED", said()

    assert len(steps()) == STEPS, "it went on, and did no step twice"
    whole = launch(resume, STEPS, folder=str(tmp_path / "launch"), ranks=4, device="cpu")
    losses = pytest.approx(whole.column("loss", rank=0), abs=1e-5)
    for rank in range(4):
        assert curve(metrics(tmp_path, rank)) == losses
