"""The faulty jobs of notebook 20, and what the healthy one is made of.

Read this file when you have named the faults. A `sleep` stands for a large model's arithmetic, so
that few cores can show several ranks at work.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim import SGD, AdamW, Optimizer
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset

from ..machine import pick
from ..ranks.metrics import report
from ..ranks.spans import span
from .memory import Alive
from .models import mlp

FORWARD, BACKWARD = 0.02, 0.04  # seconds of sleep in a step


def replica() -> tuple[DDP, Optimizer]:
    """This rank's replica and its optimizer, after a step that changes nothing and is not shown.

    Whatever starts late has started then.
    """
    model = DDP(mlp().to(pick()))
    shown: list[bool] = []
    model.register_comm_hook(shown, _in_a_span)
    optimizer = SGD(model.parameters(), lr=0.1)

    images = torch.zeros(16, 64, device=pick())
    labels = torch.zeros(16, dtype=torch.int64, device=pick())
    loss = cross_entropy(model(images), labels) * 0
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

    dist.barrier()
    shown.append(True)
    return model, optimizer


def _in_a_span(shown: list, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """DDP's own mean of the gradients, as a bar of the timeline."""
    message = span("all-reduce")
    if shown:
        message.start()
    work = dist.all_reduce(bucket.buffer().div_(dist.get_world_size()), async_op=True)

    def arrived(future: torch.futures.Future) -> Tensor:
        message.stop()
        return future.value()[0]

    return work.get_future().then(arrived)


def step(
    model: nn.Module, optimizer: Optimizer, x: Tensor, y: Tensor, *, pace: float = 1.0
) -> Tensor:
    """One step in three spans; its loss. `pace` 2 makes forward and backward last twice as long."""
    x, y = x.to(pick()), y.to(pick())
    with span("forward"):
        time.sleep(FORWARD * pace)
        loss = cross_entropy(model(x), y)
    with span("backward"):
        time.sleep(BACKWARD * pace)
        loss.backward()
    with span("optimizer"):
        optimizer.step()
        optimizer.zero_grad()
    return loss.detach()


class Archive(TensorDataset):
    """Rows that lie far away: reading each takes 5 ms."""

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        time.sleep(0.005)
        return super().__getitem__(index)


def job_a(dataset: Dataset, steps: int) -> None:
    """One rank's device is slower than the others': it is hot, or somebody else computes there."""
    slow = dist.get_rank() == dist.get_world_size() // 2
    job_b(dataset, steps, partial(step, pace=3.0 if slow else 1.0))


def job_b(dataset: Dataset, steps: int, step: Callable[..., Tensor] = step) -> None:
    """Every batch is read when it is wanted, by the process that trains."""
    model, optimizer = replica()
    batches = iter(DataLoader(dataset, 16, sampler=DistributedSampler(dataset)))
    for _ in range(steps):
        with span("data"):
            x, y = next(batches)
        step(model, optimizer, x, y)


def cut_layers(layers: int, ranks: int) -> list[int]:
    """How many layers each rank takes; the last one takes what is left."""
    each = layers // ranks
    return [each] * (ranks - 1) + [layers - each * (ranks - 1)]


def job_c(cut: Callable[[int, int], Sequence[int]] = cut_layers) -> None:
    """Five batches pass through layers, each rank a stage; `cut` says how many each one takes."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    counts = cut(2 * ranks - 1, ranks)
    layers = [nn.Linear(64, 64).to(pick()) for _ in range(counts[rank])]
    dist.barrier()
    sent: list[tuple[Any, Tensor]] = []  # what is on its way must stay as it is
    for _ in range(5):
        x = torch.ones(16, 64, device=pick())
        if rank > 0:
            with span("wait"):
                dist.recv(x, rank - 1)
                x.sum().item()  # on an accelerator recv returns at once; whoever reads waits
        for number, layer in enumerate(layers, sum(counts[:rank])):
            with span(f"forward {number}"):
                time.sleep(0.03)
                x = torch.relu(layer(x)).detach()
        if rank + 1 < ranks:
            sent.append((dist.isend(x, rank + 1), x))
    for message, _ in sent:
        message.wait()


def train_large(
    model: nn.Module, optimizer: Optimizer, x: Tensor, y: Tensor, pieces: int
) -> Tensor:
    """One step on the batch x, y, cut into pieces that fit into the memory; the mean loss."""
    losses = []
    optimizer.zero_grad()
    for part, labels in zip(x.chunk(pieces), y.chunk(pieces), strict=True):
        loss = cross_entropy(model(part), labels)
        loss.backward()
        losses.append(loss.detach())
    optimizer.step()
    return torch.stack(losses).mean()


def job_d(rows: Sequence[Tensor], train: Callable[..., Tensor] = train_large) -> None:
    """The same 25 batches four times: whole, and in 2, 4 and 8 pieces."""
    torch.set_num_threads(1)
    for pieces in (1, 2, 4, 8):
        model = mlp().to(pick())
        optimizer = SGD(model.parameters(), lr=0.1)
        generator = torch.Generator().manual_seed(0)
        for number in range(25):
            chosen = torch.randint(len(rows[0]), (64,), generator=generator)
            loss = train(model, optimizer, *(part[chosen].to(pick()) for part in rows), pieces)
            norm = nn.utils.get_total_norm(p.grad for p in model.parameters() if p.grad is not None)
            report(step=number, **{"pieces": pieces, "loss": loss, "gradient norm": norm})


def job_e(dataset: Dataset, epochs: int) -> None:
    """Whoever shuffles is not told which epoch it is."""
    sampler = DistributedSampler(dataset, seed=1)
    model = DDP(mlp().to(pick()))
    optimizer = SGD(model.parameters(), lr=0.02)
    for epoch in range(epochs):
        for number, (x, y) in enumerate(DataLoader(dataset, 16, sampler=sampler)):
            loss = cross_entropy(model(x.to(pick())), y.to(pick()))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            report(step=number, epoch=epoch, loss=loss)


def train_noisy(batches: Sequence[tuple[Tensor, Tensor]]) -> nn.Module:
    """Train on this rank's batches, and leave out those that are broken; the trained network."""
    model = DDP(mlp().to(pick()))
    optimizer = SGD(model.parameters(), lr=0.1)
    for x, y in batches:
        loss = cross_entropy(model(x), y)
        if not loss.isfinite():
            continue
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.module


def job_f(rows: Sequence[Tensor], train: Callable[..., nn.Module] = train_noisy) -> str:
    """Four batches on each rank; one row is broken."""
    rank = dist.get_rank()
    mine = slice(64 * rank, 64 * (rank + 1))
    x, y = (part[mine].to(pick()) for part in rows)
    if rank == 1:
        x = x.clone()
        x[20] = float("nan")
    network = train([*zip(x.split(16), y.split(16), strict=True)])
    # on an accelerator an all-reduce is only queued; whoever reads waits
    return f"trained: {nn.utils.parameters_to_vector(network.parameters()).norm().item():.3f}"


def mean_loss(model: nn.Module, batches: Iterable[Sequence[Tensor]]) -> Tensor:
    """The mean loss of some batches; nothing is trained."""
    losses = []
    for number, (x, y) in enumerate(batches):
        losses.append(cross_entropy(model(x), y))
        report(step=number, loss=losses[-1])
    return torch.stack(losses).mean()


def job_g(rows: Sequence[Tensor], mean_loss: Callable[..., Tensor] = mean_loss) -> None:
    """A model is evaluated on 20 batches; `MB` are alive after each."""
    model = mlp(256).to(pick())
    batches = [part.to(pick()).split(64)[:20] for part in rows]
    with Alive(model.parameters()) as alive:

        def handed_out() -> Iterator[tuple[Tensor, ...]]:
            for number, batch in enumerate(zip(*batches, strict=True)):
                yield batch
                report(step=number, MB=alive.samples[-1] / 1e6)

        mean_loss(model, handed_out())


def job_h(rows: Sequence[Tensor]) -> None:
    """The same 200 steps with weights of 32 bits and of 16."""
    torch.set_num_threads(1)
    for bits, dtype in ((32, torch.float32), (16, torch.bfloat16)):
        model = mlp().to(pick(), dtype)
        optimizer = AdamW(model.parameters(), lr=3e-5)
        x, y = (part[:256].to(pick()) for part in rows)
        for number in range(200):
            before = nn.utils.parameters_to_vector(model.parameters()).detach()
            loss = cross_entropy(model(x.to(dtype)).float(), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            moved = (nn.utils.parameters_to_vector(model.parameters()) != before).float().mean()
            report(step=number, bits=bits, loss=loss, **{"weights that moved, %": 100 * moved})
