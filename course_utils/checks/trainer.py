"""The exercises on Lightning: what Lightning's Trainer does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from ..lessons import data, models
from ..ranks.launch import launch
from .old import exercise, expect, wrong

EPOCHS, LR = 2, 0.2
RANKS = 2
SECONDS = 60.0
# samples, batch, devices. The last two: what the sampler adds to make the shares equal completes a batch, or does not.
EPOCHS_OF = [(1437, 64, 1), (1437, 64, 4), (1437, 32, 8), (1437, 200, 8), (1441, 60, 8), (1437, 60, 8), (1440, 60, 8)]
# The two test batches differ in size, so the mean of their means is not the mean over the images.
TRAIN_BATCH, TEST_BATCH = 256, 300


def steps_per_epoch(samples: int, batch: int, devices: int, drop_last: bool) -> int:
    each = -(-samples // devices)  # the sampler deals equally many, and fills up
    return each // batch if drop_last else -(-each // batch)


@exercise(
    steps_per_epoch,
    "First deal the samples: each device gets samples / devices of them, rounded up.",
    "Then cut a device's share into batches of `batch`: the batch of a DataLoader is the batch of one device.",
    "What is left over is one more, smaller batch, unless drop_last leaves it out: // or rounded up.",
)
def _steps_per_epoch(answer: Callable[[int, int, int, bool], int]) -> str:
    for samples, batch, devices in EPOCHS_OF:
        dealt = DistributedSampler(range(samples), devices, 0)
        for drop_last in (False, True):
            steps = len(DataLoader(range(samples), batch, sampler=dealt, drop_last=drop_last))
            call = f"steps_per_epoch({samples}, {batch}, {devices}, {drop_last})"
            expect(call, steps, answer(samples, batch, devices, drop_last))
    return "As many as the loaders that the Trainer makes have."


def port_the_loop(model: nn.Module, lr: float, steps: int) -> Any:
    import lightning as L

    class Ported(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            x, y = batch
            loss = cross_entropy(self.model(x), y)
            self.log("loss", loss)
            return loss

        def validation_step(self, batch: Any, index: int) -> None:
            x, y = batch
            right = (self.model(x).argmax(1) == y).float().mean()
            self.log("accuracy", right, sync_dist=True)

        def configure_optimizers(self) -> dict[str, Any]:
            optimizer = torch.optim.SGD(self.parameters(), lr=lr, momentum=0.9)
            schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=steps)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    return Ported()


def _loop(model: nn.Module, digits: data.Digits, lr: float, steps: int) -> dict[str, list]:
    """The loop of the exercise; what it computes, step by step."""
    loader, test = _loaders(digits)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=steps)
    seen: dict[str, list] = {"lr": [], "loss": [], "accuracy": []}
    for _ in range(EPOCHS):
        for x, y in loader:
            loss = cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            seen["lr"].append(schedule.get_last_lr()[0])
            seen["loss"].append(loss.item())
            optimizer.step()
            schedule.step()
        with torch.no_grad():
            right = sum((model(x).argmax(1) == y).sum().item() for x, y in test)
        seen["accuracy"].append(right / len(digits.test))
    return seen


def _loaders(digits: data.Digits) -> tuple[DataLoader, DataLoader]:
    return DataLoader(digits.train, TRAIN_BATCH), DataLoader(digits.test, TEST_BATCH)


def _fit(module: Any, digits: data.Digits, **where: Any) -> dict[str, list]:
    """What the learner's module logs, step by step, and the learning rates it used."""
    from lightning.pytorch import Callback, Trainer

    from ..lightning import quiet

    quiet()
    seen: dict[str, list] = {"lr": [], "loss": [], "accuracy": [], "known": []}

    class Notes(Callback):
        def on_before_optimizer_step(self, trainer: Any, module: Any, optimizer: Any) -> None:
            seen["lr"].append(optimizer.param_groups[0]["lr"])

        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            seen["loss"].append(_logged(trainer, "loss"))
            seen["known"] = sorted(trainer.callback_metrics)

        def on_train_epoch_end(self, trainer: Any, *_: Any) -> None:
            seen["accuracy"].append(_logged(trainer, "accuracy"))

    trainer = Trainer(max_epochs=EPOCHS, logger=False, enable_checkpointing=False, enable_progress_bar=False,
                      enable_model_summary=False, num_sanity_val_steps=0, callbacks=[Notes()], **where)
    trainer.fit(module, *_loaders(digits))
    return seen


def _logged(trainer: Any, name: str) -> float | None:
    value = trainer.callback_metrics.get(name)
    return None if value is None else value.item()


def _on_ranks(answer: Callable[..., Any], digits: data.Digits) -> tuple[list[float | None], float]:
    """The accuracies that this rank knows when its test images are every second one; the last one, by hand."""
    model = models.mlp()
    module = answer(model, LR, EPOCHS * len(_loaders(digits)[0]))
    known = _fit(module, digits, accelerator="cpu", devices=RANKS, strategy="ddp")["accuracy"]
    x, y = digits.test.tensors
    with torch.no_grad():
        return known, (model(x).argmax(1) == y).float().mean().item()


@exercise(
    port_the_loop,
    "Three methods: training_step returns the loss, validation_step logs the accuracy, configure_optimizers returns "
    "what steps. Keep the model in __init__: self.model = model. zero_grad, backward and step are the Trainer's.",
    "A schedule moves once an epoch unless you say otherwise: return {'optimizer': optimizer, 'lr_scheduler': "
    "{'scheduler': schedule, 'interval': 'step'}}.",
    "self.log in validation_step takes the mean over the epoch, weighted by the size of the batches. "
    "Over the ranks it takes the mean only with sync_dist=True.",
)
def _port_the_loop(answer: Callable[..., Any]) -> str:
    digits = data.digits()
    for lr, factor in ((LR, 1), (LR / 2, 2)):  # the second time another rate, and a schedule of twice as many steps
        _like_the_loop(answer, digits, lr, factor * EPOCHS * len(_loaders(digits)[0]))
    _accuracy_on_ranks(answer, digits)
    return f"Losses, learning rates, weights and accuracies are the loop's, and {RANKS} ranks agree on the accuracy."


def _like_the_loop(answer: Callable[..., Any], digits: data.Digits, lr: float, steps: int) -> None:
    loop, model = models.mlp(), models.mlp()
    expected = _loop(loop, digits, lr, steps)
    module = answer(model, lr, steps)
    _is_a_module(module)
    got = _fit(module, digits, accelerator="cpu", devices=1)
    if got["loss"][:1] == [None]:
        if "loss" in got["known"]:
            wrong('"loss" is logged after an epoch, not in every step.', expected='self.log("loss", loss)',
                  got="on_step=False, or logged elsewhere than in training_step")
        wrong('Nothing is logged as "loss".', expected='self.log("loss", loss)', got=_list(got["known"]))
    if len(got["lr"]) < len(expected["lr"]):
        wrong("The optimizer did not step in every step: training_step is to return the loss, and "
              "configure_optimizers the optimizer and its schedule.", expected=f"{len(expected['lr'])} steps",
              got=f"{len(got['lr'])} steps")
    expect("The learning rate of the steps", expected["lr"], got["lr"], tol=1e-9)
    expect("The loss of the steps", expected["loss"], got["loss"], tol=1e-6)
    for name, there in loop.named_parameters():
        off = float((there - dict(model.named_parameters())[name]).detach().abs().max())
        if off > 1e-6:
            wrong(f"Parameter {name} of the model you were given is not the loop's after the fit: train that model, "
                  "not a copy.", expected="off by at most 1e-06", got=f"off by {off:.2g}")
    if None in got["accuracy"]:
        wrong('After an epoch nothing is logged as "accuracy".', expected='self.log("accuracy", …) in validation_step',
              got=_list(got["known"]))
    expect("The accuracy over all test images after each epoch", expected["accuracy"], got["accuracy"], tol=1e-6)


def _is_a_module(module: Any) -> None:
    from lightning.pytorch import LightningModule

    if isinstance(module, type):
        wrong("port_the_loop(model, lr, steps) is to return a LightningModule, not the class: call it.",
              expected="a LightningModule", got=f"the class {module.__name__}")
    if not isinstance(module, LightningModule):
        other = any(kind.__name__ == "LightningModule" for kind in type(module).__mro__)
        hint = " of `lightning`; this one is of another package, pytorch_lightning" if other else ""
        wrong(f"port_the_loop(model, lr, steps) is to return a LightningModule{hint}.", expected="a LightningModule",
              got=type(module).__name__)
    for method in ("training_step", "configure_optimizers", "validation_step"):
        if getattr(type(module), method) is getattr(LightningModule, method):
            wrong(f"The module has no {method}: the Trainer calls it.", expected=f"def {method}(self, …)",
                  got="nothing")


def _accuracy_on_ranks(answer: Callable[..., Any], digits: data.Digits) -> None:
    even = TensorDataset(*(tensor[: len(digits.test) // RANKS * RANKS] for tensor in digits.test.tensors))
    digits = data.Digits(digits.train, even)
    run = launch(_on_ranks, answer, digits, ranks=RANKS, device="cpu", time_limit=SECONDS, show=False)
    (first, rights), *others = run.results
    for rank, (theirs, _) in enumerate(others, 1):
        if theirs != first:
            wrong(f"On {RANKS} ranks each knows the accuracy of its own test images only.",
                  expected=f"rank {rank}: {first[-1]:.4f}, as rank 0",
                  got=f"rank {rank}: {theirs[-1]:.4f}, rank 0: {first[-1]:.4f}")
    expect(f"On {RANKS} ranks, which share the test images, the accuracy over all of them", rights, first[-1], tol=1e-4)


def _list(names: list[str]) -> str:
    return ", ".join(names) or "nothing"
