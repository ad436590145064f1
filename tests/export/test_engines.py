"""The training of notebook 06 has one loss curve: in its cell, by python, torchrun, two torchruns and a TrainJob."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from torch.distributed.elastic.utils.distributed import get_free_port

from tests.export.notebook import cells_of, metrics, outside
from tests.kernel import Kernel

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="launch needs Linux or macOS")
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
EXPORT = """
from course_utils import export
export(train, "{}/train.py", digits, 2, batch=32, ranks=2, device="cpu", beside=("slurm", "kubernetes"))
"""
RUN = """
import json
runs = {{n: launch(train, digits, 2, batch=32, ranks=n, device="cpu") for n in (1, 2)}}
with open("{}/losses.json", "w") as file:
    json.dump({{n: [run.column("loss", rank=rank) for rank in range(n)] for n, run in runs.items()}}, file)
"""


def in_a_kernel(folder: Path, *cells: str, history: bool = True) -> Path:
    """Run cells after those of notebook 06 that define its training; the script that they export."""
    kernel = Kernel(history=history)
    try:
        for cell in [
            *cells_of("06", "RANKS = ", "def train(digits"),
            "digits = data.digits()",
            *cells,
        ]:
            answer = kernel.run(cell.format(folder) if cell in cells else cell)
            assert answer.error is None, answer.shown
    finally:
        kernel.close()
    return folder / "train.py"


@pytest.fixture(scope="module")
def exported(tmp_path_factory) -> tuple[Path, dict[str, list[list[float]]]]:
    """The script, and for 1 and 2 ranks the losses of each rank in the notebook."""
    script = in_a_kernel(tmp_path_factory.mktemp("export"), EXPORT, RUN)
    return script, json.loads(script.with_name("losses.json").read_text())


def test_it_is_the_same_script_where_the_front_end_stores_no_history(exported, tmp_path) -> None:
    script = in_a_kernel(tmp_path, EXPORT, history=False)
    assert script.read_text() == exported[0].read_text()


def commands(engine: str, script: Path) -> list[list[str]]:
    """The command lines of an engine, one a host, all of them on this one."""
    job = yaml.safe_load(script.with_suffix(".yaml").read_text())["spec"]["trainer"]
    meet = [
        f"--rdzv-endpoint=127.0.0.1:{get_free_port()}",
        "--rdzv-backend=c10d",
        "--local-addr=127.0.0.1",
    ]
    return {
        "python": [[sys.executable, script]],
        "torchrun": [[*TORCHRUN, "--standalone", "--nproc-per-node=2", script]],
        "two torchruns": [[*TORCHRUN, "--nnodes=2", "--nproc-per-node=1", *meet, script]] * 2,
        "TrainJob": [job["command"]],
    }[engine]


SLOW = [
    pytest.param(engine, marks=pytest.mark.slow)
    for engine in ("torchrun", "two torchruns", "TrainJob")
]


@pytest.mark.parametrize("engine", ["python", *SLOW])
def test_same_loss_curve(exported, engine, tmp_path) -> None:
    script, curves = exported
    more = {
        "GLOO_SOCKET_IFNAME": "lo0" if sys.platform == "darwin" else "lo",
        "OMP_NUM_THREADS": "1",
    }
    if engine == "TrainJob":  # what Trainer's torch plugin tells a node, and torchrun reads
        more |= {
            "PET_NNODES": "1",
            "PET_NPROC_PER_NODE": "2",
            "PET_NODE_RANK": "0",
            "PET_MASTER_ADDR": "127.0.0.1",
        }
        more |= {
            "PET_MASTER_PORT": str(get_free_port()),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
    running, log = [], tmp_path / "log"
    try:
        with log.open("w") as out:
            for command in commands(engine, script):
                running.append(
                    subprocess.Popen(
                        command, cwd=tmp_path, env=outside(**more), stdout=out, stderr=out
                    )
                )
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
