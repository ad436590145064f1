"""Exercises of notebook 18: the steps of an epoch, and a loop as a LightningModule."""

import functools
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from ..lessons import data, models
from .compare import kind
from .exercise import exercise, on_cpus
from .instruments import weights

PLAIN: dict[str, Any] = {  # a Trainer that writes and says nothing
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "num_sanity_val_steps": 0,
}
# samples, batch, devices: what the sampler adds completes a batch, or begins one, or neither.
EPOCHS_OF = (
    (1437, 64, 4),
    (1437, 200, 8),
    (1441, 60, 8),
    (1437, 60, 8),
    (1440, 60, 8),
    (7, 3, 2),
    (1, 1, 1),
    (5, 8, 1),
    (3, 1, 8),
    (16_385, 1, 16_384),
    (4097, 4096, 1),
)


def steps_per_epoch(samples, batch, devices, drop_last):
    each = -(-samples // devices)  # the sampler deals equally many, and fills up
    return each // batch if drop_last else -(-each // batch)


def share_rounded_down(samples, batch, devices, drop_last):
    return steps_per_epoch(samples // devices, batch, 1, drop_last)


def on_one_device(samples, batch, devices, drop_last):
    return steps_per_epoch(samples, batch, 1, drop_last)


@exercise(
    steps_per_epoch,
    mistakes={
        "the sampler fills up, so that all devices get equally many: round a device's share "
        "up": share_rounded_down,
        "these are the steps of one device with all samples: each gets its share of "
        "them": on_one_device,
    },
)
def _(answer):
    for case in EPOCHS_OF:
        for drop_last in (False, True):
            yield f"steps_per_epoch{(*case, drop_last)}", answer(*case, drop_last)
    yield "", "As many as the loaders that the Trainer makes have."


def port_the_loop(model, lr, steps):
    import lightning as L

    class Ported(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = model

        def training_step(self, batch, index):
            x, y = batch
            loss = cross_entropy(self.model(x), y)
            self.log("loss", loss)
            return loss

        def validation_step(self, batch, index):
            x, y = batch
            right = (self.model(x).argmax(1) == y).float().mean()
            self.log("accuracy", right, sync_dist=True)

        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=lr, momentum=0.9)
            schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=steps)
            return {
                "optimizer": optimizer,
                "lr_scheduler": {"scheduler": schedule, "interval": "step"},
            }

    return Ported()


def once_an_epoch(model, lr, steps):
    module = port_the_loop(model, lr, steps)
    both = module.configure_optimizers()
    both["lr_scheduler"]["interval"] = "epoch"
    module.configure_optimizers = lambda: both
    return module


@exercise(
    port_the_loop,
    ranks=(1, 2),
    seconds=60,
    tol=1e-6,
    launch=on_cpus,
    mistakes={
        "the schedule moves once an epoch, which is Lightning's way without "
        '"interval": "step"': once_an_epoch,
    },
)
def _(answer):
    from lightning.pytorch import LightningModule

    # 18 steps are taken, on two ranks 9; there the second accuracy falls in the end.
    for lr, steps in ((0.2, 12), (0.5, 24)):
        model = models.mlp()
        with torch.no_grad():
            next(model.parameters()).mul_(8)  # for gradients that show whether somebody clips them
        module = answer(model, lr, steps)
        is_module = isinstance(module, LightningModule)
        yield "what it returns", "a LightningModule" if is_module else kind(module)
        seen = fit(module)
        yield f"lr={lr}: the learning rates of the steps", seen["lr"]
        if dist.get_world_size() == 1:  # on several, each rank may log its own, or all their mean
            yield f'lr={lr}: what it logs as "loss" in each step', seen["loss"]
        yield f"lr={lr}: the weights of the model that it was given", weights(model)
        words = 'what it logs as "accuracy" after each epoch, over all test images'
        yield f"lr={lr}: {words}", seen["accuracy"]
    yield (
        "",
        "Losses, learning rates, weights and accuracies are the loop's, and the ranks agree on the "
        "accuracy.",
    )


def fit(module: Any) -> dict[str, list]:
    """Three epochs of six steps: learning rates, and what it logs."""
    from lightning.pytorch import Callback, Trainer

    from ..lightning import quiet

    quiet()
    seen: dict[str, list] = {"lr": [], "loss": [], "accuracy": []}

    def log(name: str, trainer: Trainer, *_: Any) -> None:
        logged = trainer.callback_metrics.get(name)
        seen[name].append(None if logged is None else logged.item())

    def note_rate(trainer: Trainer, module: Any, optimizer: torch.optim.Optimizer) -> None:
        seen["lr"].append(optimizer.param_groups[0]["lr"])

    notes = Callback()
    notes.on_before_optimizer_step = note_rate
    notes.on_train_batch_end = functools.partial(log, "loss")
    notes.on_train_epoch_end = functools.partial(log, "accuracy")
    ranks = dist.get_world_size()
    trainer = Trainer(
        max_epochs=3,
        callbacks=[notes],
        accelerator="cpu",
        devices=ranks,
        strategy="ddp" if ranks > 1 else "auto",
        **PLAIN,
    )
    images = data.digits()
    # The two test batches differ in size: the mean of their means is not that over the images.
    trainer.fit(module, DataLoader(images.train, 256), DataLoader(images.test, 300 // ranks))
    return seen
