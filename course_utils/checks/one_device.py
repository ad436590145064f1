"""Exercises of notebook 02: a training step that runs on any device, and a run that goes on where it stopped."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from .exercise import exercise, expect, wrong


def train_step(model, optimizer, x, y):
    """One step on the device of the model, wherever the batch is; the loss stays there, without its graph."""
    device = next(model.parameters()).device
    x, y = x.to(device), y.to(device)
    loss = cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


def _model(device: str | torch.device = "cpu", *, momentum: float = 0.0) -> tuple[nn.Module, torch.optim.Optimizer]:
    generator = torch.Generator().manual_seed(5)
    model = nn.Linear(6, 3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
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
    before = copy.deepcopy(model.state_dict())
    for number, (x, y) in enumerate(_batches(3), 1):
        right, its_optimizer = _model()
        right.load_state_dict(before)
        train_step(right, its_optimizer, x, y)
        answer(model, optimizer, x, y)
        expect(f"the weights after step {number} on the CPU", right.weight.detach(), model.weight.detach(), tol=1e-6)
        before = copy.deepcopy(model.state_dict())
    # The meta device is the second device that every machine has: no values there, but all its rules.
    places = ["meta", *filter(None, [torch.accelerator.current_accelerator(check_available=True)])]
    x, y = _batches(1)[0]
    for place in places:
        try:
            loss = answer(*_model(place), x, y)
        except (NotImplementedError, RuntimeError) as error:
            if "item()" not in str(error) and "copy out of meta" not in str(error):
                raise
            loss = "a value that was fetched from the device"
        if not isinstance(loss, torch.Tensor):
            wrong("Return the loss as a tensor where it is: .item(), float() and .cpu() make the device wait.",
                  expected=f"a tensor with no dimension on {place}", got=loss)
        if loss.requires_grad:
            wrong("The loss still holds its graph, and with it the activations of the step.",
                  expected="a tensor that needs no gradient", got="a tensor with requires_grad=True")
        expect(f"the device of the loss, for a model on {place} and a batch on the CPU",
               torch.device(place).type, loss.device.type)
        expect("the shape of the loss", [], list(loss.shape))
    return f"It trains on the CPU, and follows its model to {' and '.join(str(p) for p in places)}."


def resume(path, model, optimizer, shuffle):
    """Restore all that the file at `path` holds; the number of the epoch to go on with."""
    state = torch.load(path, map_location="cpu")
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    shuffle.set_state(state["shuffle"])
    return state["epoch"] + 1


def _run(resume_with: Callable | None, path: Path, stop: int, epochs: int) -> tuple[list[float], object]:
    """Losses by epoch of a small run that is saved after epoch `stop`, or that goes on from there."""
    model, optimizer = _model(momentum=0.9)
    shuffle, batches = torch.Generator().manual_seed(11), _batches(16)
    first = 0
    if resume_with is not None:
        first = resume_with(path, model, optimizer, shuffle)
        if type(first) is not int:
            return [], first
    losses = []
    for epoch in range(first, epochs):
        order = torch.randperm(len(batches), generator=shuffle)
        losses.append(sum(train_step(model, optimizer, *batches[i]).item() for i in order))
        if epoch == stop and resume_with is None:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "shuffle": shuffle.get_state()}
            # As if written on a machine with eight GPUs: this one may have none.
            with mock.patch("torch.serialization.location_tag", return_value="cuda:7"):
                torch.save(state | {"epoch": epoch}, path)
    return losses, first


@exercise(
    resume,
    "The file has four entries: model, optimizer, shuffle and epoch. torch.load(path, …) gives them as a dict.",
    'It was written where the tensors were on cuda:7. torch.load(…, map_location="cpu") reads it on any machine.',
    "model and optimizer have load_state_dict, the generator has set_state; `epoch` is the last one that was finished.",
)
def _resume(answer):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoint.pt"
        whole, _ = _run(None, path, 2, 6)
        again, first = _run(answer, path, 2, 6)
    if first is not None and (type(first) is not int or first != 3):
        wrong("The file was written after epoch 2 was finished. Return the number of the next epoch.",
              expected=3, got=first)
    expect("the number of the epoch to go on with", 3, first)
    expect("the losses of epochs 3, 4 and 5, compared with the run that never stopped", whole[3:], again, tol=1e-6)
    return "Epochs 3, 4 and 5 are the same as if the run had never stopped."
