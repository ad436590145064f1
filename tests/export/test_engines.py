"""The training function of notebook 06 gives one loss curve: in its cell, by python, by one torchrun and by two."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.export.notebook import clean, metrics, outside
from tests.kernel import Kernel

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="launch needs Linux or macOS")
NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "06_ddp.ipynb"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
BESIDE = '("slurm", "kubernetes")'


def cells_with(*starts: str) -> list[str]:
    cells = [
        "".join(cell["source"]) for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"
    ]
    return [next(cell for cell in cells if start in cell) for start in starts]


@contextmanager
def kernel_of_06(*, history: bool = True) -> Iterator[Kernel]:
    """One in which the training function's cells have run, and `digits` is there."""
    kernel = Kernel(history=history)
    try:
        for cell in [*cells_with("RANKS = ", "def train(digits"), "digits = data.digits()"]:
            answer = kernel.run(cell)
            assert answer.error is None, answer.shown
        yield kernel
    finally:
        kernel.close()


@pytest.fixture(scope="module")
def exported(tmp_path_factory) -> tuple[Path, dict[int, list[list[float]]]]:
    """The script, and for 1 and 2 ranks the losses of each rank in the notebook."""
    folder = tmp_path_factory.mktemp("export")
    with kernel_of_06() as kernel:
        answer = kernel.run(f"""
launch.export(train, "{folder}/train.py", digits, 2, batch=32, ranks=2, device="cpu", beside={BESIDE})
runs = {{n: launch(train, digits, 2, batch=32, ranks=n, device="cpu") for n in (1, 2)}}
import json
json.dump({{n: [run.column("loss", rank=rank) for rank in range(n)] for n, run in runs.items()}},
          open("{folder}/losses.json", "w"))
""")
        assert answer.error is None, answer.shown
    curves = json.loads((folder / "losses.json").read_text())
    return folder / "train.py", {int(n): losses for n, losses in curves.items()}


def test_it_is_the_same_script_where_the_front_end_stores_no_history(exported, tmp_path):
    with kernel_of_06(history=False) as kernel:
        answer = kernel.run(f'launch.export(train, "{tmp_path}/train.py", digits, 2, batch=32, ranks=2, device="cpu")')
        assert answer.error is None, answer.shown
    assert (tmp_path / "train.py").read_text() == exported[0].read_text()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def agents(count: int, each: int) -> list[list[str]]:
    """The command lines of `torchrun`, one a host, all of them on this one."""
    if count == 1:
        return [[*TORCHRUN, "--standalone", f"--nproc-per-node={each}"]]
    meet = [f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--rdzv-backend=c10d", "--local-addr=127.0.0.1"]
    return [[*TORCHRUN, f"--nnodes={count}", f"--nproc-per-node={each}", *meet] for _ in range(count)]


@pytest.mark.parametrize(
    ("ranks", "commands"),
    [(1, [[sys.executable]]), (2, agents(1, 2)), (2, agents(2, 1))],
    ids=["python", "torchrun, one agent", "torchrun, two agents"],
)
def test_same_loss_curve(exported, ranks, commands, tmp_path) -> None:
    script, curves = exported
    clean(script)
    env = outside(OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo0" if sys.platform == "darwin" else "lo")
    files = [tmp_path / f"agent{i}" for i in range(len(commands))]
    running = [
        subprocess.Popen(
            [*command, str(script)], cwd=tmp_path, env=env, stdout=file.open("w"), stderr=subprocess.STDOUT
        )
        for command, file in zip(commands, files, strict=True)
    ]
    try:
        end = time.monotonic() + 120
        codes = [process.wait(end - time.monotonic()) for process in running]
    finally:
        for process in running:
            process.kill()
    said = "".join(file.read_text() for file in files)
    assert codes == [0] * len(running), said
    for rank in range(ranks):
        records = metrics(tmp_path, rank)
        assert [one["step"] for one in records] == [*range(len(curves[ranks][rank]))]
        assert [one["loss"] for one in records] == pytest.approx(curves[ranks][rank], abs=1e-6)
    lines = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    assert [line["loss"] for line in lines if "loss" in line] == pytest.approx(curves[ranks][0], abs=1e-6)
    assert sum("result" in line for line in lines) == 1


def test_batch_file_is_a_shell_script(exported) -> None:
    file = exported[0].with_suffix(".sbatch")
    assert subprocess.run(["bash", "-n", file], capture_output=True).returncode == 0
    assert "--nproc-per-node 2" in file.read_text()
    assert "gpus" not in file.read_text(), "device is the CPU"


def test_train_job_fits_its_schema(exported) -> None:
    """By Kubeflow's own models of its API, made from its schema; and the script in it is the script."""
    import yaml

    job = yaml.safe_load(exported[0].with_suffix(".yaml").read_text())
    shell = job["spec"]["trainer"]["command"][-1]
    assert exported[0].read_text().rstrip() in shell
    assert job["metadata"]["generateName"] == "train-"
    assert subprocess.run(["bash", "-n", "-c", shell], capture_output=True).returncode == 0
    models = pytest.importorskip("kubeflow_trainer_api.models", reason="pip install kubeflow-trainer-api checks more")
    fits = models.TrainerV1alpha1TrainJob.from_dict(job)
    assert fits.spec.trainer.num_nodes == 1
    assert fits.to_dict()["spec"]["trainer"].keys() == job["spec"]["trainer"].keys(), "no name that the schema lacks"
