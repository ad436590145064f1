"""Exercises of notebook 02: a training step for any device, a run that goes on where it stopped."""

import itertools
import tempfile
from operator import index
from pathlib import Path
from unittest import mock

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from .exercise import exercise, patched
from .instruments import inside


def small(
    device: str = "cpu", *, seed: int = 5, lr: float = 0.2
) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A network with buffers, whose first part has no weights, and its optimizer, by the seed."""
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)
    ).to(device)
    groups = [{"params": part.parameters()} for part in (model[1:3], model[4])]
    return model, torch.optim.SGD(groups, lr=lr, momentum=0.9)


def batches(*rows: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(7)
    return [(5 * torch.randn(n, 6), torch.randint(3, (n,))) for n in rows]


def train_step(model, optimizer, x, y):
    """One step on the model's device, wherever the batch is; the loss, there, without its graph."""
    device = next(model.parameters()).device
    x, y = x.to(device), y.to(device)
    loss = cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


old_gradients_too = patched(train_step, "torch.optim.Optimizer.zero_grad")


@exercise(
    train_step,
    mistakes={
        "gradients of an earlier backward are in it, too: `optimizer.zero_grad()` belongs before "
        "`backward()`": old_gradients_too,
    },
)
def _(answer):
    model, optimizer = small()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)  # of an earlier backward
    for step, (x, y) in enumerate(batches(8, 5, 70), 1):
        model.train(step != 2)
        model[2].train(step != 3)
        loss = answer(model, optimizer, x, y)
        yield f"step {step}: the loss before it", loss
        yield f"step {step}: the model after it", inside(model)
        yield f"step {step}: the batch after it", [x, y]
    kinds = {
        "numbers of words": (nn.Embedding(10, 4), torch.randint(10, (5, 8))),
        "one image": (nn.Conv2d(1, 2, 3), -100 * torch.randn(1, 1, 6, 6)),  # large gradients
    }
    for words, (first, x) in kinds.items():
        torch.manual_seed(4)
        model = nn.Sequential(first, nn.Flatten(), nn.Linear(32, 3))
        first.reset_parameters()
        model[2].bias.requires_grad_(False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
        # the image's label is neither the first nor the last
        loss = answer(model, optimizer, x, (torch.arange(len(x)) + 1) % 3)
        yield f"a model that reads {words}: the loss", loss
        yield f"a model that reads {words}: the model after it", inside(model)
    # the second device of every machine: no values there, but all its rules
    model, optimizer = small("meta")
    loss = answer(model, optimizer, *batches(8)[0])
    yield "a model on meta, a batch on the CPU: the loss, without its graph", loss
    yield "a model on meta, a batch on the CPU: where the model is", str(model[1].weight.device)
    yield "", "It trains on the CPU, and follows its model to another device."


def resume(path, model, optimizer, shuffle):
    """Restore all that the file at `path` holds; the number of the epoch to go on with."""
    state = torch.load(path, map_location="cpu")
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    shuffle.set_state(state["shuffle"])
    return state["epoch"] + 1


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, shuffle: torch.Generator, epochs: int
) -> list[float]:
    """The loss of each of these epochs."""
    all_of_them = batches(8, 8, 8, 8)
    orders = [torch.randperm(4, generator=shuffle) for _ in range(epochs)]
    return [
        sum(train_step(model, optimizer, *all_of_them[i]).item() for i in order) for order in orders
    ]


def save(path: Path, last: int) -> tuple[nn.Module, torch.optim.Optimizer, torch.Generator]:
    """Train until epoch `last` is finished, and write the file as on a machine with eight GPUs."""
    model, optimizer = small()
    shuffle = torch.Generator().manual_seed(11)
    train(model, optimizer, shuffle, last + 1)
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "shuffle": shuffle.get_state(),
    }
    gpus = itertools.cycle(f"cuda:{i}" for i in range(8))
    with mock.patch("torch.serialization.location_tag", side_effect=gpus):
        torch.save(state | {"epoch": last}, path)
    return model, optimizer, shuffle


def finished_epoch(*given):
    return resume(*given) - 1


@exercise(resume, mistakes={"that epoch is finished; go on with the next": finished_epoch})
def _(answer):
    for last in (2, 0):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "checkpoint.pt"
            save(path, last)
            before = path.read_bytes()
            model, optimizer = small(seed=1, lr=0.1)
            model[2].eval()
            model[1].bias.requires_grad_(False)
            model[4].bias.grad = torch.ones(3)
            shuffle = torch.Generator().manual_seed(3)
            epoch = answer(path, model, optimizer, shuffle)
            intact = path.exists() and path.read_bytes() == before
        where = f"a file written after epoch {last}"
        number = None if epoch is None else index(epoch)
        yield f"{where}: the number of the epoch to go on with", number
        file = "as it was" if intact else "gone or changed"
        yield f"{where}: the file afterwards, which is only read", file
        yield f"{where}: the model that was given", inside(model)
        yield f"{where}: the gradients in it, which no file holds", model[4].bias.grad
        yield f"{where}: what the optimizer that was given holds", optimizer.state_dict()
        drawn = torch.randperm(8, generator=shuffle).tolist()
        yield f"{where}: what `shuffle`, as it was given, draws next", drawn
        yield f"{where}: the losses of the epochs after it", train(model, optimizer, shuffle, 2)
    yield (
        "",
        "All of the file is restored, so the epochs after it are those of a run that never "
        "stopped: after epoch 2, and after epoch 0.",
    )
