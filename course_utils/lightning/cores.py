"""Lightning's `accelerator="tpu"` on the cores of `xla.launch`; for Lightning 2.6.6.

Lightning starts cores by forking the notebook's process, which must not have used XLA before, and on virtual cores
(threads of one process) several of its assumptions do not hold. So its launcher's one method is replaced: the trainer
travels by value to the course's own launch, and what comes back is what Lightning itself brings back from a launcher:
state, metrics and weights of the first core.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from .. import xla
from ..errors import CourseError
from .callbacks import LiveCallback, Witness, need_lightning, quiet


def use_cores(cores: int = 8) -> int:
    """Let `Trainer(accelerator="tpu")` find cores here: a TPU's, or where there is none, `cores` virtual ones.

    Lightning then starts them by `xla.launch`, on a TPU, too, so that live plots, prints and errors arrive by core: its
    own launcher's `launch` is replaced, and in the cores' processes two of its functions that say which core it is.

    Returns:
        How many cores there are.

    Raises:
        CourseError: Lightning or torch_xla is not installed here, or `cores` is no whole number from 1.
    """
    need_lightning()
    if isinstance(cores, bool) or not isinstance(cores, int) or cores < 1:
        raise CourseError(f"use_cores({cores!r}): give the number of virtual cores, a whole number from 1, e.g. 8.")
    quiet()

    from lightning.fabric.accelerators.xla import XLAAccelerator
    from lightning.pytorch.strategies.launchers.xla import _XLALauncher

    if os.environ.get("PJRT_DEVICE") != "TPU":  # also beside a TPU that xla.setup(device="CPU") leaves alone
        XLAAccelerator.is_available = staticmethod(lambda: True)
        XLAAccelerator.auto_device_count = staticmethod(lambda: cores)
    _XLALauncher.launch = _launch
    return XLAAccelerator.auto_device_count()


def _launch(launcher: Any, function: Callable, *args: Any, trainer: Any = None, **kwargs: Any) -> Any:
    """Stands in for `_XLALauncher.launch`: run `function` on all cores, return what the first one returned."""
    callbacks = trainer.callbacks if trainer is not None else []
    plots = [callback.plot for callback in callbacks if isinstance(callback, LiveCallback) and callback.plot]
    run = xla.launch(
        _on_a_core, launcher, trainer, function, args, kwargs,
        cores=launcher._strategy.num_processes, live=next(iter(plots), None),
    )
    witnesses = [callback for callback in callbacks if isinstance(callback, Witness)]
    for _, seen in run.results:
        for witness, theirs in zip(witnesses, seen, strict=True):
            witness.seen |= theirs
    output = run.results[0][0]
    if trainer is None:
        return output
    launcher._recover_results_in_main_process(output, trainer)
    return output.trainer_results


def _on_a_core(launcher: Any, trainer: Any, function: Callable, args: tuple, kwargs: dict) -> tuple[Any, list[dict]]:
    """What Lightning's `_wrapping_function` does on each core, and what the witnesses there saw."""
    import torch_xla.runtime as xr
    from lightning.fabric.utilities import move_data_to_device
    from lightning.pytorch.strategies import XLAStrategy
    from lightning.pytorch.utilities.rank_zero import rank_zero_only

    quiet()
    # The rank is kept in one place for the whole process, and cores may share it: so whoever looks asks its own thread.
    rank_zero_only.rank = _MyRank()
    XLAStrategy.setup_distributed = lambda strategy: None  # would set it to the number of whichever core came last
    output = function(*args, **kwargs)
    if trainer is not None:
        output = launcher._collect_rank_zero_results(trainer, output)
    first = xr.global_ordinal() == 0
    seen = [callback.seen for callback in trainer.callbacks if isinstance(callback, Witness)] if trainer else []
    return move_data_to_device(output, "cpu") if first else None, seen


class _MyRank:
    """The number of the core that asks; compares like an int."""

    def __index__(self) -> int:
        import torch_xla.runtime as xr

        return xr.global_ordinal()

    __int__ = __index__

    def __eq__(self, other: object) -> bool:
        return int(self) == other

    def __gt__(self, other: int) -> bool:
        return int(self) > other

    def __hash__(self) -> int:
        return hash(int(self))

    def __repr__(self) -> str:
        return str(int(self))
