"""What a machine has, all limits counted, as data that shows itself as the capability card."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import groupby

from . import card
from .card import Row
from .probe import Device


@dataclass(frozen=True)
class Machine:
    """What can be used here, all limits counted, memory in bytes; shows itself as a card."""

    place: str  # "local", "Kaggle", "Colab", "Binder", "Codespaces"
    system: str
    python: str
    torch: str
    cores: float
    cores_total: int
    memory: int
    memory_total: int
    memory_available: int  # of `memory`, now
    devices: tuple[Device, ...]  # the CPU first
    backends: tuple[str, ...]  # of torch.distributed: those that can run here
    library: str = "gloo"  # the backend between ranks that have an accelerator each
    xla: str | None = None  # the installed way to XLA: "torch_xla 2.9.0", "torch_tpu 0.2"
    tpu: str | None = None  # the chips found: "TPU v5e, 8 chips"
    notes: tuple[str, ...] = ()  # why something that seems to be there cannot be used

    @property
    def accelerators(self) -> tuple[Device, ...]:
        return self.devices[1:]

    @property
    def accelerator(self) -> str | None:
        """The kind to compute on ("cuda", "mps", "xpu", "tpu"), or None where there is only the CPU."""
        if self.accelerators:
            return self.accelerators[0].kind
        return "tpu" if self.tpu and self.xla else None

    @property
    def gpus_for_ranks(self) -> int:
        """Accelerators that ranks can have one each of; MPS has no collectives between processes."""
        return sum(device.kind != "mps" for device in self.accelerators)

    def runs(self, ranks: int) -> str:
        """How `ranks` ranks run here: "4 ranks share 2 CPU cores; gloo", "4 ranks on 4 GPUs; nccl"."""
        who, gpus = f"{ranks} rank{'s' * (ranks != 1)}", self.gpus_for_ranks
        if gpus >= ranks:
            return f"{who} on {ranks} GPU{'s' * (ranks != 1)}; {self.library}"
        cores = f"{self.cores:g} CPU core{'s' * (self.cores != 1)}"
        why = f" ({gpus} GPU{'s are' if gpus > 1 else ' is'} too few)" if gpus else ""
        why = why or " (MPS has no collectives between processes)" * bool(self.accelerators)
        return f"{who} {'on' if ranks <= max(1, self.cores) else 'share'} {cores}{why}; gloo"

    def __repr__(self) -> str:
        return card.text(self._about(), self.rows(), self.notes)

    def _repr_html_(self) -> str:
        return card.html(self._about(), self.rows(), self.notes)

    def rows(self) -> list[Row]:
        """The card's facts, in the order they are read."""
        return [_cpu(self), _memory(self), *_accelerators(self), _xla(self), _ranks(self)]

    def _about(self) -> str:
        return f"{self.place} · {self.system} · Python {self.python} · torch {self.torch}"


def _cpu(machine: Machine) -> Row:
    usable, total = f"{machine.cores:g}", machine.cores_total
    here = f"{usable} core{'s' * (total != 1)}" if machine.cores == total else f"{usable} of {total} cores"
    why = "" if machine.cores == total else ", limited for this process"
    return Row("CPU", here, machine.devices[0].title + why, "native", (total, math.ceil(machine.cores)))


def _memory(machine: Machine) -> Row:
    here = _bytes(machine.memory)
    # A kernel keeps a little to itself: only a limit well below the total is one somebody set.
    if machine.memory < 0.98 * machine.memory_total:
        here += f" of {_bytes(machine.memory_total)}"
    used = 1 - machine.memory_available / machine.memory
    return Row("memory", here, f"{_bytes(machine.memory_available)} free now", "native", filled=used)


def _accelerators(machine: Machine) -> list[Row]:
    found = []
    for (title, memory, capability), same in groupby(machine.accelerators, lambda d: (d.title, d.memory, d.capability)):
        group = list(same)
        names = group[0].name if len(group) == 1 else f"{group[0].name} … {group[-1].name}"
        current = next((device.name for device in group if device.current), None)
        facts = [names + (f", current {current}" if current and len(machine.accelerators) > 1 else "")]
        facts += [f"{_bytes(memory)}{' each' if len(group) > 1 else ''}"] if memory else []
        facts += [f"compute capability {capability[0]}.{capability[1]}"] if capability else []
        here = f"{len(group)} \N{MULTIPLICATION SIGN} {title}" if len(group) > 1 else title
        cells = (len(group), len(group)) if len(group) > 1 else (0, 0)
        found.append(Row("GPU" if group[0].kind != "tpu" else "TPU", here, " · ".join(facts), "native", cells))
    return found or [Row("GPU", "none that torch can use", "the meta device stands in as a second device", "not here")]


def _xla(machine: Machine) -> Row:
    if machine.tpu:
        return Row("TPU", machine.tpu, machine.xla or "neither torch_xla nor torch_tpu is installed in this kernel",
                   "native" if machine.xla else "not usable")
    if machine.xla and machine.xla.startswith("torch_xla"):
        return Row("TPU", "virtual cores of XLA's CPU client", machine.xla, "virtual")
    return Row("TPU", "none", machine.xla or "torch_xla is not installed in this kernel", "not here")


def _ranks(machine: Machine) -> Row:
    gpus = machine.gpus_for_ranks
    ranks = gpus if gpus > 1 else 4
    sentence = machine.runs(ranks)
    own = ranks <= max(gpus, machine.cores)
    kind = "real processes" + ("" if own else " that take turns on the cores")
    backends = f"backends: {', '.join(machine.backends)}" if machine.backends else "this torch has no torch.distributed"
    return Row("ranks", sentence, f"{kind} · {backends}", "native" if own else "virtual")


def _bytes(number: int) -> str:
    value = number / 2**30
    return f"{value:.3g} GiB" if value < 999.5 else f"{value:.0f} GiB"
