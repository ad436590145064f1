"""Exercises on one device: a training step that runs on any of them, and a run that goes on where it stopped."""

from __future__ import annotations

import copy
import tempfile
from numbers import Integral
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from .old import exercise, expect, wrong
from .old_compare import kind


def train_step(model, optimizer, x, y):
    """One step on the device of the model, wherever the batch is; the loss stays there, without its graph."""
    device = next(model.parameters()).device
    x, y = x.to(device), y.to(device)
    loss = cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


def _model(device: str | torch.device = "cpu", *, momentum: float = 0.0, seed: int = 5) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / 2)
    model.to(device)
    return model, torch.optim.SGD(model.parameters(), lr=0.5, momentum=momentum)


def _batches(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(7)
    return [(torch.randn(8, 6, generator=generator), torch.randint(3, (8,), generator=generator)) for _ in range(count)]


@exercise(
    train_step,
    "A model has no device, but its parameters have: next(model.parameters()).device.",
    "Gradients of the step before are still there: optimizer.zero_grad() must come before loss.backward().",
    "Return loss.detach(): the value without the graph that made it, and without waiting for the device.",
)
def _train_step(answer):
    model, optimizer = _model()
    for number, (x, y) in enumerate(_batches(3), 1):
        before, training = copy.deepcopy(model.state_dict()), number != 3
        right, its_optimizer = _model()
        right.load_state_dict(before)
        its_loss = train_step(right, its_optimizer, x, y)
        model.train(training)
        loss = answer(model, optimizer, x.clone(), y.clone())
        _same_weights(number, before, right, model)
        _a_loss(f"step {number} on the CPU", "cpu", loss)
        words = f"the loss of step {number}: that of the batch, with the weights before the step"
        expect(words, its_loss, loss, tol=1e-5)
        if model.training != training:
            names = {True: "train()", False: "eval()"}
            wrong("The model is in another mode afterwards.", expected=names[training], got=names[not training])
    # The meta device is the second device that every machine has: no values there, but all its rules.
    places = ["meta", *filter(None, [torch.accelerator.current_accelerator(check_available=True)])]
    for place in places:
        model, optimizer = _model(place)
        try:
            loss = answer(model, optimizer, *_batches(1)[0])
        except (NotImplementedError, RuntimeError) as error:
            if "item()" not in str(error) and "copy out of meta" not in str(error):
                raise
            if "Module.to()" in str(error):
                _moved(place, "cpu")
            wrong(f"On {place}: something is fetched from the device, and the CPU has to wait for it.",
                  expected="the loss as a tensor, where it is", got=str(error).splitlines()[0])
        where = {parameter.device.type for parameter in model.parameters()}
        if where != {torch.device(place).type}:
            _moved(place, ", ".join(sorted(where)))
        _a_loss(f"a model on {place}, a batch on the CPU", place, loss)
    return f"It trains on the CPU, and follows its model to {' and '.join(str(p) for p in places)}."


def _moved(place: str | torch.device, where: str) -> None:
    wrong("The model was moved. Move the batch to the model, not the model to the batch.",
          expected=f"the model on {place}", got=f"the model on {where}")


def _same_weights(number: int, before: dict, right: nn.Module, model: nn.Module) -> None:
    mine, its = model[2].bias.detach().cpu(), right[2].bias.detach()
    if all(torch.allclose(a, b, atol=1e-6) for a, b in zip(model.parameters(), right.parameters(), strict=True)):
        return
    shown = {"expected": f"the last layer's bias {_short(its)}", "got": f"the last layer's bias {_short(mine)}"}
    if all(torch.equal(a, b) for a, b in zip(before.values(), model.state_dict().values(), strict=True)):
        wrong(f"The weights did not change in step {number}.", **shown)
    if number > 1:
        wrong(f"The weights are right after step {number - 1} and wrong after step {number}. Something of the step "
              "before is still there when this one is taken.", **shown)
    wrong("The weights after step 1 are not those of one optimizer step with the gradients of the mean cross-entropy.",
          **shown)


def _short(values: torch.Tensor) -> str:
    return "[" + ", ".join(f"{value:.4f}" for value in values.tolist()) + "]"


def _a_loss(words: str, place: str | torch.device, loss: Any) -> None:
    """End the check unless `loss` is a tensor with no dimension on `place` that needs no gradient."""
    wanted = f"a tensor with no dimension on {place}"
    if loss is None or loss is ...:
        expect(f"{words}: the loss", wanted, loss)
    if not isinstance(loss, torch.Tensor):
        wrong(f"{words}: return the loss as a tensor; a number has to be fetched from the device.",
              expected=wanted, got=kind(loss))
    if loss.requires_grad:
        wrong("The loss still holds its graph, and with it the activations of the step.",
              expected="a tensor that needs no gradient", got="a tensor with requires_grad=True")
    if loss.device.type != torch.device(place).type:
        wrong(f"{words}: the loss is on another device.", expected=wanted, got=f"a tensor on {loss.device}")
    if loss.dim():
        wrong(f"{words}: the loss has dimensions.", expected=wanted, got=f"a tensor of shape {tuple(loss.shape)}")


def resume(path, model, optimizer, shuffle):
    """Restore all that the file at `path` holds; the number of the epoch to go on with."""
    state = torch.load(path, map_location="cpu")
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    shuffle.set_state(state["shuffle"])
    return state["epoch"] + 1


def _epochs(model: Any, optimizer: Any, shuffle: torch.Generator, count: int) -> list[float]:
    batches, losses = _batches(16), []
    for _ in range(count):
        order = torch.randperm(len(batches), generator=shuffle)
        losses.append(sum(train_step(model, optimizer, *batches[i]).item() for i in order))
    return losses


@exercise(
    resume,
    "The file has four entries: model, optimizer, shuffle and epoch. torch.load(path, …) gives them as a dict.",
    'It was written where the tensors were on cuda:7. torch.load(…, map_location="cpu") reads it on any machine.',
    "model and optimizer have load_state_dict, the generator has set_state; `epoch` is the last one that was finished.",
)
def _resume(answer):
    for last, seed in ((2, 5), (4, 6)):
        model, optimizer = _model(momentum=0.9, seed=seed)
        shuffle = torch.Generator().manual_seed(11)
        _epochs(model, optimizer, shuffle, last + 1)
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "shuffle": shuffle.get_state()}
        saved = copy.deepcopy(state)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "checkpoint.pt"
            # As if written on a machine with eight GPUs: this one may have none.
            with mock.patch("torch.serialization.location_tag", return_value="cuda:7"):
                torch.save(state | {"epoch": last}, path)
            content = path.read_bytes()
            again, its_optimizer = _model(momentum=0.9, seed=1)
            its_shuffle = torch.Generator().manual_seed(3)
            first = answer(path, again, its_optimizer, its_shuffle)
            if not path.exists() or path.read_bytes() != content:
                wrong("The file was changed: a checkpoint is only read.")
        _restored(saved, again, its_optimizer, its_shuffle)
        if first is None or first is ...:
            expect("the number of the epoch to go on with", last + 1, first)
        if isinstance(first, bool) or not isinstance(first, Integral):
            wrong(f"The file was written after epoch {last} was finished. The number of an epoch is an int.",
                  expected=f"{last + 1} (int)", got=f"{first!r} ({type(first).__name__})")
        if first != last + 1:
            wrong(f"The file was written after epoch {last} was finished. Return the number of the next epoch.",
                  expected=last + 1, got=first)
        whole, resumed = _epochs(model, optimizer, shuffle, 2), _epochs(again, its_optimizer, its_shuffle, 2)
        expect(f"the losses of epochs {last + 1} and {last + 2}, compared with the run that never stopped",
               whole, resumed, tol=1e-6)
    return "The epochs after it are the same as if the run had never stopped: after epoch 2, and after epoch 4."


def _restored(saved: dict, model: Any, optimizer: Any, shuffle: torch.Generator) -> None:
    """End the check at the first part that is not as in the file."""
    if any(not torch.equal(a, b) for a, b in zip(saved["model"].values(), model.state_dict().values(), strict=True)):
        wrong("The model that was given does not hold the weights of the file.",
              expected="model.state_dict() as in the file", got="other weights")
    mine, its = optimizer.state_dict()["state"], saved["optimizer"]["state"]
    if mine.keys() != its.keys() or any(
        not torch.equal(mine[key]["momentum_buffer"], its[key]["momentum_buffer"]) for key in its
    ):
        wrong("The optimizer that was given does not hold the velocities of the file.",
              expected=f"the state of {len(its)} parameters", got=f"that of {len(mine)}, or other values")
    if not torch.equal(shuffle.get_state(), saved["shuffle"]):
        wrong("The generator `shuffle` that was given is not in the state of the file: the images would come in "
              "another order.", expected="shuffle.get_state() as in the file", got="another state")
