"""Notebook 06's training has one loss curve: in its cell, by python, torchruns and a TrainJob."""

import json
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
import yaml
from torch.distributed.elastic.utils.distributed import get_free_port

from tests.kernel import Kernel, posix
from tests.scripts.notebook import cells_of, metrics, outside

pytestmark = [posix, pytest.mark.slow]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
PREPARE = [*cells_of("06", "RANKS = ", "def train(digits"), "digits = data.digits()"]
EXPORT = """
from course_utils import export
jobs = ("slurm", "kubernetes")
export(train, "{}/train.py", digits, 2, batch=32, ranks=2, device="cpu", jobs=jobs)
"""
RUN = """
import json
curves = {{}}
for n in (1, 2):
    run = launch(train, digits, 2, batch=32, ranks=n, device="cpu")
    curves[n] = [run.column("loss", rank=rank) for rank in range(n)]
with open("{}/losses.json", "w") as file:
    json.dump(curves, file)
"""
MEET = "--nnodes=2 --nproc-per-node=1 --rdzv-backend=c10d --local-addr=127.0.0.1"
# What Trainer's torch plugin tells a node, and torchrun reads.
NODE = {
    "PET_NNODES": "1",
    "PET_NPROC_PER_NODE": "2",
    "PET_NODE_RANK": "0",
    "PET_MASTER_ADDR": "127.0.0.1",
}


def in_a_kernel(folder: Path, *cells: str, history: bool = True) -> Path:
    """Run cells after those of notebook 06 that define its training; the script of their export."""
    with closing(Kernel(history=history)) as kernel:
        for cell in [*PREPARE, *(cell.format(folder) for cell in cells)]:
            kernel.works(cell)
    return folder / "train.py"


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """The script, and for 1 and 2 ranks the losses of each rank in the notebook."""
    script = in_a_kernel(tmp_path_factory.mktemp("export"), EXPORT, RUN)
    return script, json.loads(script.with_name("losses.json").read_text())


def test_it_is_the_same_script_where_the_front_end_stores_no_history(exported, tmp_path):
    script = in_a_kernel(tmp_path, EXPORT, history=False)
    assert script.read_text() == exported[0].read_text()


def commands(engine: str, script: Path) -> list[list]:
    """The command lines of an engine, one a host, all of them on this one."""
    job = yaml.safe_load(script.with_suffix(".yaml").read_text())["spec"]["trainer"]
    meet = [f"--rdzv-endpoint=127.0.0.1:{get_free_port()}", *MEET.split()]
    return {
        "python": [[sys.executable, script]],
        "torchrun": [[*TORCHRUN, "--standalone", "--nproc-per-node=2", script]],
        "two torchruns": [[*TORCHRUN, *meet, script]] * 2,
        "TrainJob": [job["command"]],
    }[engine]


@pytest.mark.parametrize("engine", ["python", "torchrun", "two torchruns", "TrainJob"])
def test_same_loss_curve(exported, engine, tmp_path):
    script, curves = exported
    loopback = "lo0" if sys.platform == "darwin" else "lo"
    env = outside(GLOO_SOCKET_IFNAME=loopback, OMP_NUM_THREADS="1")
    if engine == "TrainJob":
        env |= NODE | {"PET_MASTER_PORT": str(get_free_port())}
        env["PATH"] = f"{Path(sys.executable).parent}:{env['PATH']}"

    log = tmp_path / "log"
    running = []
    try:
        with log.open("w") as out:
            for command in commands(engine, script):
                process = subprocess.Popen(command, cwd=tmp_path, env=env, stdout=out, stderr=out)
                running.append(process)
        codes = [process.wait(600) for process in running]
    finally:
        for process in running:
            process.kill()
    assert codes == [0] * len(running), log.read_text()
    ranks = 1 if engine == "python" else 2
    for rank, losses in enumerate(curves[str(ranks)]):
        records = metrics(tmp_path, rank)
        assert [one["step"] for one in records] == [*range(len(losses))]
        assert [one["loss"] for one in records] == pytest.approx(losses, abs=1e-5)
    assert log.read_text().count("result: 0.") == 1, "rank 0 alone prints it"
