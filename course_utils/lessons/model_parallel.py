"""Batches that pass through stages on different ranks, one stage a rank; a stage here only takes its stated time."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
import torch.distributed as dist

from ..machine.devices import pick
from ..ranks.spans import span


def stream(seconds: Sequence[float], batches: int) -> None:
    """Forward only: rank r takes `seconds[r]` for each batch, hands it on, and takes the next one at once.

    What is sent is the batch's number, each in a tensor of its own: one that is still on its way must not be changed.
    All messages go one way, so no two ranks can wait for each other, even where a send lasts until it is received.
    """
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    dist.barrier()
    sent = []
    for number in range(batches):
        batch = torch.tensor(number, device=pick())
        if rank > 0:
            with span("wait for activations"):
                dist.recv(batch, rank - 1)
                batch.item()  # on an accelerator recv returns at once; whoever reads waits
        with span(f"forward {batch.item()}"):
            time.sleep(seconds[rank])
        if rank < last:
            sent.append((dist.isend(batch, rank + 1), batch))
    for message, _ in sent:
        message.wait()


def there_and_back(forward: Sequence[float], backward: Sequence[float], batches: int) -> None:
    """One batch after the other, forward through all stages and backward through all; seconds of each by rank.

    Each send meets the receive that its neighbour calls next, so nobody waits in a circle.
    """
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    dist.barrier()
    for number in range(batches):
        batch = torch.tensor(number, device=pick())
        if rank > 0:
            _receive("activations", batch, rank - 1)
        with span("forward"):
            time.sleep(forward[rank])
        if rank < last:
            dist.send(batch, rank + 1)
            _receive("gradients", batch, rank + 1)
        with span("backward"):
            time.sleep(backward[rank])
        if rank > 0:
            dist.send(batch, rank - 1)


def _receive(what: str, message: torch.Tensor, source: int) -> None:
    with span(f"wait for {what}"):
        dist.recv(message, source)
        message.item()  # as above
