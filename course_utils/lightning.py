"""What the course adds to Lightning 2.6.6: live plots, and cores for `accelerator="tpu"`.

Lightning forks the notebook's process into cores, which must not have used XLA before, and expects
no threads. So `use_cores` replaces its launcher's one method: the trainer travels by value to
`xla.launch`, and what comes back is what Lightning brings back itself: state, metrics and weights
of the first core.
"""

import logging
import os
import warnings
from collections.abc import Callable
from typing import Any

from lightning.fabric.accelerators.xla import XLAAccelerator
from lightning.fabric.utilities import move_data_to_device
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.strategies import XLAStrategy
from lightning.pytorch.strategies.launchers.xla import _XLALauncher
from lightning.pytorch.utilities.rank_zero import rank_zero_only

from .pictures.live import LivePlot
from .ranks.metrics import report
from .xla.launcher import VIRTUAL_CORES, launch

NOTICES = (
    "LeafSpec",
    "does not have many workers",
    "smaller than the logging interval",
    "The `srun` command is available",
    "[TG]PU available but not used",
    "Using `DistributedSampler` with the dataloaders",
)


def quiet() -> None:
    """Leave out Lightning's notices and hints, not its errors and warnings about mistakes."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    for notice in NOTICES:
        warnings.filterwarnings("ignore", f".*{notice}")


class LiveCallback(Callback):
    """Give what the module logs at each step to a `LivePlot`.

    Hand it to `Trainer(callbacks=[LiveCallback(plot)])`. What ranks and cores log goes to the plot
    of the launch by `report`. A value on an accelerator is read one step late: then it is computed,
    and neither device nor host waits for the other.
    """

    def __init__(self, plot: LivePlot | None = None) -> None:
        self.plot = plot
        self._step = 0  # to which this batch's gradients belong
        self._known: dict[str, Any] = {}  # the value of each metric that was last seen
        self._late: tuple[int, dict[str, Any]] = 0, {}  # a step, and what it has logged

    def __getstate__(self) -> dict[str, Any]:
        return LiveCallback().__dict__  # the plot does not travel

    def on_train_batch_start(self, trainer: Trainer, *_: Any) -> None:
        self._step = trainer.global_step

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        self._send()
        self._late = self._step, self._news(trainer)

    def on_train_epoch_end(self, trainer: Trainer, *_: Any) -> None:
        """What validation has logged, and an epoch's means, belong to its last step."""
        self._late[1].update(self._news(trainer))

    def on_train_end(self, trainer: Trainer, *_: Any) -> None:
        self.on_train_epoch_end(trainer)  # the last epoch's means are there only now
        self._send()
        self.on_exception()

    def on_exception(self, *_: Any) -> None:
        if self.plot:
            self.plot.close()

    def _news(self, trainer: Trainer) -> dict[str, Any]:
        # an epoch's stay until they are replaced
        before, self._known = self._known, dict(trainer.callback_metrics)
        return {name: value for name, value in self._known.items() if value is not before.get(name)}

    def _send(self) -> None:
        step, values = self._late
        self._late = step, {}
        if values:
            send = self.plot.update if self.plot else report
            send(step, **{name: value.item() for name, value in values.items()})


def use_cores() -> int:
    """Let `Trainer(accelerator="tpu")` find cores here, a TPU's or eight virtual ones.

    They are started by `xla.launch`, on a TPU, too, so that live plots, prints and errors arrive by
    core; a training has no time limit. `Fabric` is left as it is, and takes one core. Returns how
    many there are.
    """
    quiet()
    # Virtual ones also beside a TPU that xla.setup(device="CPU") leaves alone.
    if os.environ.get("PJRT_DEVICE") != "TPU":
        XLAAccelerator.is_available = staticmethod(lambda: True)
        XLAAccelerator.auto_device_count = staticmethod(lambda: VIRTUAL_CORES)
    _XLALauncher.launch = _launch
    return XLAAccelerator.auto_device_count()


def _launch(
    launcher: _XLALauncher, function: Callable, *args: Any, trainer: Trainer, **kwargs: Any
) -> Any:
    """Stands in for `_XLALauncher.launch`: runs `function` on all cores, returns the first's."""
    plots = [callback.plot for callback in trainer.callbacks if isinstance(callback, LiveCallback)]
    cores = launcher._strategy.num_processes
    live = plots[0] if plots else None
    task = launcher, trainer, function, args, kwargs
    output = launch(_on_a_core, *task, cores=cores, live=live, time_limit=None).results[0]
    launcher._recover_results_in_main_process(output, trainer)
    return output.trainer_results


def _on_a_core(
    launcher: _XLALauncher, trainer: Trainer, function: Callable, args: tuple, kwargs: dict
) -> Any:
    """What Lightning's `_wrapping_function` does on each core."""
    quiet()
    # The process has one variable for the rank, and cores may share the process: so whoever reads
    # it asks its own thread. Lightning would set it to the number of the core that came last.
    core = _MyRank()
    rank_zero_only.rank = core
    XLAStrategy.setup_distributed = lambda strategy: None
    output = launcher._collect_rank_zero_results(trainer, function(*args, **kwargs))
    return move_data_to_device(output, "cpu") if core == 0 else None


class _MyRank:
    """The number of the core that asks, as far as Lightning compares it."""

    def __eq__(self, other: object) -> bool:
        import torch_xla.runtime as xr

        return xr.global_ordinal() == other

    def __gt__(self, other: int) -> bool:
        import torch_xla.runtime as xr

        return xr.global_ordinal() > other
