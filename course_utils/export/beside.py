"""What a cluster asks for beside the script: a batch file for Slurm, a job for Kubernetes."""

from __future__ import annotations

import re
import shlex
import textwrap
from pathlib import PurePath

# https://slurm.schedmd.com/sbatch.html; https://docs.pytorch.org/docs/stable/elastic/run.html
SLURM = """\
#!/bin/bash
# Exported from a notebook: sbatch @FILE@, from a folder that all nodes share, with torchrun on the PATH.
#SBATCH --job-name=@NAME@
#SBATCH --nodes=@NODES@
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=@CPUS@
@GPUS@#SBATCH --time=01:00:00
#SBATCH --requeue
#SBATCH --open-mode=append

head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
port=$((20000 + SLURM_JOB_ID % 10000))  # another job on that node meets at another one
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1  # else workers that are started again may meet addresses of the dead
srun --cpus-per-task "$SLURM_CPUS_PER_TASK" --kill-on-bad-exit=1 \\
    torchrun --nnodes "$SLURM_JOB_NUM_NODES" --nproc-per-node @EACH@ --max-restarts 3 \\
    --rdzv-id "$SLURM_JOB_ID" --rdzv-backend c10d --rdzv-endpoint "$head:$port" @SCRIPT@ "$@"
"""

# https://www.kubeflow.org/docs/components/trainer/; torch's plugin there tells torchrun nodes and addresses.
KUBERNETES = """\
# Exported from a notebook: kubectl create -f @FILE@, on a cluster with Kubeflow Trainer 2. Name the image's tag; it
# needs what the script imports. A checkpoint needs a volume, and nccl more of /dev/shm than a pod's 64 MiB.
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata:
  generateName: @NAME@-
spec:
  runtimeRef:
    name: torch-distributed
  trainer:
    image: pytorch/pytorch
    numNodes: @NODES@
    numProcPerNode: @EACH@
@GPUS@    command:
      - bash
      - -c
      - |
        cat > @SCRIPT@ <<'END_OF_SCRIPT'
@TEXT@
        END_OF_SCRIPT
        torchrun @SCRIPT@
"""

BESIDE = {"slurm": (".sbatch", SLURM), "kubernetes": (".yaml", KUBERNETES)}


def beside_text(kind: str, script: str, text: str, *, ranks: int, nodes: int, cpu: bool) -> tuple[str, str]:
    """(suffix, text) of the file of this kind for a script of this name and text."""
    suffix, template = BESIDE[kind]
    each = ranks // nodes
    gpus = ""
    if not cpu and kind == "slurm":
        gpus = f"#SBATCH --gpus-per-node={each}\n"
    elif not cpu:
        gpus = f"    resourcesPerNode:\n      limits:\n        nvidia.com/gpu: {each}\n"
    name = re.sub("[^a-z0-9]+", "-", PurePath(script).stem.lower()).strip("-")
    name = name if name[:1].isalpha() else f"job-{name}"  # what Kubernetes allows
    values = {"FILE": PurePath(script).with_suffix(suffix).name, "NODES": str(nodes), "EACH": str(each)}
    cpus = str(each if cpu else 4 * each)  # with GPUs: some for the workers of a DataLoader
    for key, value in {**values, "CPUS": cpus, "GPUS": gpus, "NAME": name, "SCRIPT": shlex.quote(script)}.items():
        template = template.replace(f"@{key}@", value)
    return suffix, template.replace("@TEXT@\n", textwrap.indent(text, " " * 8))
