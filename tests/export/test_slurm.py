"""The batch file of the training of notebook 19 on a real Slurm: cancelled; told that its time ends, and requeued."""

import os
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from course_utils import export, launch
from tests.export.hosts import wait
from tests.export.notebook import curve, metrics, training
from tests.export.slurm import Slurm, no_slurm

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
    """Processes of the job that have this in their environment: its ranks, with PATH also its agents."""
    found = []
    for one in psutil.process_iter():
        with suppress(psutil.Error):
            ours = script.name in one.cmdline() and one.cwd() == str(script.parent)
            found += [one] if ours and variable in one.environ() else []
    return found


def test_job_is_cancelled_runs_is_requeued_and_goes_on(slurm, tmp_path) -> None:
    resume, more = (
        training()["resume"],
        {"every": 1000, "pause": 0.3},
    )  # nothing is saved but after SIGTERM
    script = export(
        resume,
        tmp_path / "train.py",
        STEPS,
        **more,
        ranks=4,
        nodes=2,
        device="cpu",
        beside=("slurm",),
    )
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"

    def said() -> str:
        return slurm.command("scontrol", "show", "job") + "".join(
            f.read_text() for f in tmp_path.glob("slurm-*.out")
        )

    def steps() -> list[dict]:
        return metrics(tmp_path, 0) if (tmp_path / "runs/rank3.jsonl").exists() else []

    job = slurm.command("sbatch", "--parsable", "train.sbatch", cwd=tmp_path, PATH=path).strip()
    wait(lambda: len(ranks(script)) == 4, said)
    assert len({os.readlink(f"/proc/{one.pid}/ns/net") for one in ranks(script)}) == 2, (
        "on two hosts"
    )
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
    whole = launch(resume, STEPS, folder=str(tmp_path / "launch"), ranks=4, device="cpu").column(
        "loss", rank=0
    )
    for rank in range(4):
        assert curve(metrics(tmp_path, rank)) == pytest.approx(whole, abs=1e-5)
