"""Callbacks for Lightning (2.6.6), live plots and a witness, and quiet; importable where Lightning is missing."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..errors import CourseError
from ..pictures.live import LivePlot
from ..ranks.report import report

try:
    from lightning.pytorch import Callback
except ModuleNotFoundError:  # only the XLA kernel has it
    Callback = object

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer

CHATTER = (
    "does not have many workers",  # a hint for large data sets; the digits are in memory
    "smaller than the logging interval",
    "The `srun` command is available",
    "[TG]PU available but not used",
    r"Using `DistributedSampler` with the dataloaders",
)


def quiet() -> None:
    """Lightning's notices and hints are left out; its warnings about mistakes, and its errors, stay."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    for chatter in CHATTER:
        warnings.filterwarnings("ignore", f".*{chatter}")


def need_lightning() -> None:
    if Callback is object:
        raise CourseError(
            "Lightning is not installed in this kernel. Its notebook runs on the kernel PyTorch/XLA: "
            "choose it at the top right, or in a terminal: pip install lightning==2.6.6"
        )


class LiveCallback(Callback):
    """Give what the module logs at each step to a `LivePlot`: `Trainer(callbacks=[LiveCallback(plot)])`.

    Args:
        plot: where to draw. On ranks and cores leave it out, or leave it in: it does not travel, and what they log
            goes to the plot of the launch by `report`.
        names: of the metrics; without names, all that were logged.

    A value on an accelerator is read one step late. Reading waits for the device; by then it has computed that step
    while the host was preparing the next one, so neither waits for the other.
    """

    def __init__(self, plot: LivePlot | None = None, *names: str) -> None:
        need_lightning()
        if isinstance(plot, str):
            raise CourseError(f"LiveCallback({plot!r}, …): the plot comes first, then the metrics' names")
        self.plot, self.names = plot, names
        self._known: dict[str, Any] = {}  # the value of each metric that was last seen
        self._late: tuple[int, dict[str, Any]] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"plot": None, "_known": {}, "_late": None}

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        """Send what the step before has logged."""
        late, self._late = self._late, (trainer.global_step - 1, self._news(trainer))
        self._send(late)

    def on_train_epoch_end(self, trainer: Trainer, *_: Any) -> None:
        """What validation has logged belongs to the epoch's last step."""
        if self._late is not None:
            step, late = self._late
            self._late = step, self._news(trainer) | late

    def on_train_end(self, trainer: Trainer, *_: Any) -> None:
        """Send what is left, and close the plot."""
        self.on_train_epoch_end(trainer)  # the last epoch's own means are there only now
        self._send(self._late)
        self._late = None
        self._close()

    def on_exception(self, trainer: Trainer, module: LightningModule, exception: BaseException) -> None:
        """Close the plot."""
        self._close()

    def _news(self, trainer: Trainer) -> dict[str, Any]:
        logged = trainer.callback_metrics  # the epochs' metrics stay in it until they are replaced
        news = {name: value for name, value in logged.items() if value is not self._known.get(name)}
        self._known = dict(logged)
        return {name: value for name, value in news.items() if not self.names or name in self.names}

    def _send(self, news: tuple[int, dict[str, Any]] | None) -> None:
        if not news or not news[1]:
            return
        step, values = news
        values = {name: value.item() for name, value in values.items()}
        if self.plot is not None:
            self.plot.update(step, **values)
        else:
            report(step, **values)

    def _close(self) -> None:
        if self.plot is not None:
            self.plot.close()


class Witness(Callback):
    """Look into the running trainer, on every rank or core, and keep what was seen: `seen[rank]["start"]`, ….

    Args:
        start, end: functions of (trainer, module), called when training starts and when it ends. Return CPU tensors,
            numbers, text.

    On cores the answers of all come back by themselves; from ranks of `launch`, return `witness.seen`.
    """

    def __init__(
        self,
        *,
        start: Callable[[Trainer, LightningModule], Any] | None = None,
        end: Callable[[Trainer, LightningModule], Any] | None = None,
    ) -> None:
        need_lightning()
        self._looks = {"start": start, "end": end}
        self.seen: dict[int, dict[str, Any]] = {}

    def on_train_start(self, trainer: Trainer, module: LightningModule) -> None:
        """Every rank and core is set up; nothing is trained yet."""
        self._look("start", trainer, module)

    def on_train_end(self, trainer: Trainer, module: LightningModule) -> None:
        """The last step is done, the weights are still on the device."""
        self._look("end", trainer, module)

    def _look(self, when: str, trainer: Trainer, module: LightningModule) -> None:
        if (look := self._looks[when]) is not None:
            self.seen.setdefault(trainer.global_rank, {})[when] = look(trainer, module)
