"""Which build of PyTorch this machine wants: the CPU one, from PyTorch's own index, or pip's ordinary choice.

On Linux the ordinary choice brings gigabytes of CUDA libraries, which are of use with an NVIDIA driver only.
"""

import functools
import glob
import os
import platform
import re
import shutil
import subprocess
import threading
import urllib.request

CPU = os.environ.get("CPU")  # 1: from the CPU index, unasked. 0: pip's ordinary choice. Else what the machine says.
INDEX = os.environ.get("TORCH_CPU_INDEX") or "https://download.pytorch.org/whl/cpu"
OTHER = "https://download.pytorch.org/whl/"
DRIVER = ["/proc/driver/nvidia/version", "/dev/nvidiactl", "/usr/lib/wsl/lib/libcuda.so*"]
AMD, INTEL = "/dev/kfd", "/sys/bus/pci/drivers/xe/[0-9]*"
PATIENCE = 3  # seconds


def choose(gpu: bool) -> "tuple[list[str], str]":
    """pip's options, and a sentence; `gpu`: whether the environment can use one."""
    small = ["--extra-index-url", INDEX]  # its versions end in +cpu, which counts as newer than the same without
    if CPU == "1":
        return small, "PyTorch's CPU build (CPU=1)"
    if CPU == "0":
        return [], "the PyTorch that pip chooses (CPU=0)"
    if platform.system() != "Linux":
        return [], "PyTorch for this machine"
    if gpu and driver():
        return [], "PyTorch with CUDA, for the NVIDIA driver that is here"
    if answers(INDEX):
        return small, "PyTorch's CPU build" + ", as no NVIDIA driver is here" * gpu
    return [], f"the PyTorch that pip chooses, maybe with gigabytes of CUDA libraries, as {INDEX} does not answer"


@functools.lru_cache(maxsize=1)
def driver() -> bool:
    """Whether there is an NVIDIA driver: Linux's, Windows' as WSL shows it, or one that answers."""
    if any(map(glob.glob, DRIVER)):
        return True
    ask = shutil.which("nvidia-smi")
    try:
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        return ask is not None and subprocess.call([ask, "-L"], timeout=10, **quiet) == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


@functools.lru_cache(maxsize=1)
def answers(index: str) -> bool:
    """Whether torch is listed there; asked once, and given up in time even where looking up a name takes minutes."""
    found = []

    def ask() -> None:
        try:
            with urllib.request.urlopen(f"{index.rstrip('/')}/torch/", timeout=PATIENCE) as page:
                found.append(b"torch-" in page.read(1 << 16))  # a hotel's login page answers as well
        except (OSError, ValueError):
            pass

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    return found == [True]


def left_idle(folder: str, requirements: str) -> str:
    """What to do about a GPU that the environment's torch does not use, where there is one; else nothing."""
    if platform.system() != "Linux" or CPU:
        return ""
    torch = "".join(glob.glob(os.path.join(folder, "lib/python*/site-packages/torch-*.dist-info")))
    if driver():
        late = "An NVIDIA driver is here, and .venv has PyTorch's CPU build. For the CUDA build: make clean, make lab"
        return late if "+cpu" in torch else ""
    for kind, build, there in (("AMD", "rocm7.2", AMD), ("Intel", "xpu", INTEL)):
        if glob.glob(there) and "+" + build[:3] not in torch:
            pin = re.search(r"^torch==[\d.]+", requirements, re.MULTILINE)[0]
            get = f".venv/bin/pip install {pin}+{build} --extra-index-url {OTHER}{build}"
            return f"An {kind} GPU is here, which the PyTorch in .venv does not use. Some GB more, and it does: {get}"
    return ""
