"""The batch file that `launch.export` writes, on a real Slurm: it is cancelled, runs, is requeued, and goes on."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from course_utils import launch
from tests.export.notebook import Notebook, metrics
from tests.export.slurm import Slurm, no_slurm, wait
from tests.export.training import IMPORTS, TRAIN

pytestmark = pytest.mark.skipif(bool(reason := no_slurm()), reason=reason or "a Slurm")
STEPS = 16


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    cluster = Slurm(tmp_path_factory.mktemp("slurm"))
    yield cluster
    cluster.close()


def sbatch(slurm: Slurm, file: Path) -> str:
    """Send the job, from the file's own folder; its number."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    said = slurm.command("sbatch", "--parsable", file.name, cwd=file.parent, PATH=path).strip()
    assert said.isdigit(), said
    return said


def test_job_is_cancelled_runs_is_requeued_and_goes_on(slurm, tmp_path, monkeypatch) -> None:
    notebook = Notebook(IMPORTS, TRAIN)
    script = launch.export(
        notebook["train"], tmp_path / "train.py", STEPS, 0.3, ranks=4, nodes=2, device="cpu", beside=("slurm",)
    )
    file = script.with_suffix(".sbatch")

    def said() -> str:
        return slurm.command("scontrol", "show", "job") + "".join(f.read_text() for f in tmp_path.glob("slurm-*.out"))

    def steps() -> list[int]:
        return [one["step"] for one in metrics(tmp_path, 0)] if (tmp_path / "runs/rank3.jsonl").exists() else []

    def processes(*, ranks: bool = False) -> list[psutil.Process]:
        found = []
        for one in psutil.process_iter():
            with suppress(psutil.Error):
                ours = script.name in one.cmdline() and one.cwd() == str(tmp_path)
                found += [one] if ours and (not ranks or "LOCAL_RANK" in one.environ()) else []
        return found

    job = sbatch(slurm, file)
    wait(lambda: len(processes(ranks=True)) == 4, 90, said)
    assert len({os.readlink(f"/proc/{one.pid}/ns/net") for one in processes(ranks=True)}) == 2, "on two hosts"
    slurm.command("scancel", job)
    wait(lambda: slurm.state(job) == "CANCELLED" and not processes(), 30, said)

    job = sbatch(slurm, file)
    wait(lambda: len(steps()) >= 3, 90, said)
    slurm.command("scontrol", "requeue", job)
    wait(lambda: not processes(), 30, said)
    before = steps()
    wait(lambda: slurm.state(job) not in ("PENDING", "RUNNING", "COMPLETING"), 90, said)
    assert slurm.state(job) == "COMPLETED", said()

    assert before[0] == 0
    assert len(before) < STEPS, "requeued in the middle"
    assert len(steps()) - STEPS in (0, 1), "nothing is lost but the step since the checkpoint"
    monkeypatch.chdir(tmp_path / "runs")  # where no checkpoint is
    whole = launch(notebook["train"], STEPS, ranks=4, device="cpu").column("loss", rank=0)
    for rank in range(4):
        curve = {one["step"]: one["loss"] for one in metrics(tmp_path, rank)}
        assert [curve[step] for step in range(STEPS)] == pytest.approx(whole, abs=1e-5)
