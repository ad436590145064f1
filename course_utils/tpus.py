"""This host's TPUs, counted without touching them, and TorchTPU, their backend in torch.

One process at a time has a TPU; alone on its host it takes all chips. Where TorchTPU (`torch_tpu`)
is loaded, even a backward pass on the CPU or a seed opens them. So nothing loads it but `load`, in
a rank that runs on a TPU or where `pick` gives one.
"""

import contextlib
import io
import os
import socket
import sys
import warnings
from importlib.metadata import distributions
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

from .limits import text_of

PCI = Path("/sys/bus/pci/devices")
GOOGLE = "0x1ae0"  # as vendor
KINDS = {  # by device id, as in jax's hardware_utils
    "0x0027": "v2/v3",
    "0x005e": "v4",
    "0x0062": "v5p",
    "0x0063": "v5e",
    "0x006f": "v6e",
    "0x0076": "7x",
}
CUBE = {1: "1,1,1", 2: "1,2,1", 4: "2,2,1", 8: "2,2,2"}
PLANE = {1: "1,1,1", 4: "2,2,1", 8: "2,4,1"}
# How so many chips of a host are connected; other numbers are no slice. As TorchTPU 0.2.0 has them
# in torch_tpu/_internal/utils/hardware.py.
SLICES = {
    "v4": CUBE,
    "v5p": CUBE,
    "v5e": PLANE,
    "v6e": PLANE,
    "7x": {2: "1,1,1,2", 4: "1,2,1,2", 8: "2,2,1,2"},
}


# Warnings that nobody can do anything about, and the modules in which they are needless: of what
# `load` asks for, of TorchTPU's own views, of ranks without a `device_id`, of torch's own calls.
NEEDLESS = {
    "<TorchTpu/(ApiStage|Performance)/": "",
    r"The \.grad attribute of a Tensor that is not a leaf": "",
    r"barrier\(\): using the device under current context": "",
    "<TorchTpu/Correctness/> `DTensor.from_local` called without": r"torch\.distributed\.tensor",
}


class Chips(NamedTuple):
    """The TPUs of a host: "v5e" and how many."""

    kind: str
    count: int

    def __str__(self) -> str:
        return f"{self.count} \N{MULTIPLICATION SIGN} TPU {self.kind}"


def chips() -> Chips | None:
    """What is on the PCI bus; nothing is opened."""
    kinds = []
    for card in PCI.glob("*"):
        if text_of(card / "vendor") == GOOGLE and text_of(card / "device") in KINDS:
            kinds.append(KINDS[text_of(card / "device")])
    return Chips(kinds[0], len(kinds)) if kinds else None


def installed(package: str) -> str | None:
    """ "torch_tpu 0.2.0", if it is; not imported, which may start threads or take the TPU."""
    return next((f"{package} {found.version}" for found in distributions(name=package)), None)


def slices() -> dict[int, str]:
    """The numbers of ranks that can have a TPU each, and how those are connected."""
    here = chips()
    if here is None or installed("torch_tpu") is None:
        return {}
    return {n: shape for n, shape in SLICES.get(here.kind, {}).items() if n <= here.count}


def is_open() -> bool:
    """Whether this process has the TPU."""
    module = getattr(sys.modules.get("torch"), "tpu", None)
    if module is None:
        return False
    with warnings.catch_warnings(action="ignore"):  # it is experimental, it says
        return module.is_initialized()


# What torch asks of a device that has a name: `torch.accelerator` whether it is there, and
# `manual_seed` to be told.
NOT_LOADED = SimpleNamespace(
    is_available=lambda: False,
    is_initialized=lambda: False,
    _is_in_bad_fork=lambda: False,
    manual_seed_all=lambda seed: None,
)


def name_device() -> None:
    """Let `torch.device("tpu")` exist, whether or not TorchTPU is loaded."""
    import torch

    torch.utils.rename_privateuse1_backend("tpu")
    vars(torch).setdefault("tpu", NOT_LOADED)


def load() -> None:
    """Make "tpu" a device of torch, with products of float32 as exact as on other devices."""
    import torch

    if "torch_tpu" not in sys.modules:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # only errors
        torch.get_device_module.cache_clear()  # it may remember NOT_LOADED
        with contextlib.redirect_stderr(io.StringIO()):  # it prints what it registers
            torch._import_device_backends()
        for message, module in NEEDLESS.items():
            warnings.filterwarnings("ignore", message, module=module)
        post_receives_first()
    torch.set_float32_matmul_precision("highest")  # by default TPUs multiply in bfloat16


def post_receives_first() -> None:
    """In each batch of messages: TorchTPU's `isend` waits until the other side has posted `irecv`.

    torch's 1F1B posts the sends of a batch first, on both sides, so both would wait for ever.
    """
    import torch.distributed as dist

    post = dist.batch_isend_irecv

    def batch_isend_irecv(p2p_op_list: list[dist.P2POp]) -> list[dist.Work]:
        receives_first = sorted(p2p_op_list, key=lambda message: message.op is dist.isend)
        works = {message: post([message]) for message in receives_first}
        return [work for message in p2p_op_list for work in works[message]]

    dist.batch_isend_irecv = batch_isend_irecv  # ty: ignore[invalid-assignment]  # called the same way


def rank_environment(ranks: int) -> dict[str, str]:
    """What TorchTPU wants to find in every rank: how the chips are connected, and a port each.

    As `torch.tpu.distributed.set_tpu_launch_env` does it, which sets them once for all launches.
    """
    with contextlib.ExitStack() as open_at_once:
        ports = []
        for _ in range(ranks):
            listener = open_at_once.enter_context(socket.create_server(("localhost", 0)))
            ports.append(listener.getsockname()[1])
    return {
        "TORCH_TPU_TOPOLOGY": slices()[ranks],
        "TORCH_TPU_SLICEBUILDER_ADDRESSES": ",".join(f"localhost:{port}" for port in ports),
    }
