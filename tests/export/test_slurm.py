"""The batch file that `launch.export` writes, on a real Slurm: it runs, is requeued, cancelled, and goes on."""

from __future__ import annotations

import os
import sys
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


def test_job_runs_is_requeued_and_cancelled_and_goes_on(slurm, tmp_path, monkeypatch) -> None:
    notebook = Notebook(IMPORTS, TRAIN)
    script = launch.export(
        notebook["train"], tmp_path / "train.py", STEPS, 0.3, ranks=4, nodes=2, device="cpu", beside=("slurm",)
    )
    file = script.with_suffix(".sbatch")

    def said() -> str:
        return slurm.command("scontrol", "show", "job") + "".join(f.read_text() for f in tmp_path.glob("slurm-*.out"))

    def steps() -> list[int]:
        return [one["step"] for one in metrics(tmp_path, 0)] if (tmp_path / "runs/rank3.jsonl").exists() else []

    def ranks() -> list[psutil.Process]:
        return [one for one in psutil.process_iter() if str(script.name) in _words(one) and _folder(one) == tmp_path]

    job = sbatch(slurm, file)
    wait(lambda: len(steps()) >= 3, 90, said)
    assert len({os.readlink(f"/proc/{one.pid}/ns/net") for one in ranks()}) == 2, "on two hosts"

    slurm.command("scontrol", "requeue", job)
    wait(lambda: not ranks(), 30, said)
    before = len(steps())
    wait(lambda: len(steps()) >= before + 3, 90, said)

    slurm.command("scancel", job)
    wait(lambda: slurm.state(job) == "CANCELLED" and not ranks(), 30, said)
    assert len(steps()) < STEPS, "cancelled in the middle"

    job = sbatch(slurm, file)
    wait(lambda: slurm.state(job) not in ("PENDING", "RUNNING", "COMPLETING"), 90, said)
    assert slurm.state(job) == "COMPLETED", said()

    repeated = len(steps()) - STEPS
    assert 0 <= repeated <= 2, "nothing is lost but a step each time, since the checkpoint"
    monkeypatch.chdir(tmp_path / "runs")  # where no checkpoint is
    whole = launch(notebook["train"], STEPS, ranks=4, device="cpu").column("loss", rank=0)
    for rank in range(4):
        curve = {one["step"]: one["loss"] for one in metrics(tmp_path, rank)}
        assert [curve[step] for step in range(STEPS)] == pytest.approx(whole, abs=1e-5)


def _words(process: psutil.Process) -> list[str]:
    try:
        return [Path(word).name for word in process.cmdline()]
    except psutil.Error:
        return []


def _folder(process: psutil.Process) -> Path | None:
    try:
        return Path(process.cwd())
    except psutil.Error:
        return None
