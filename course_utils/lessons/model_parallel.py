"""Batches that pass through stages on different ranks, one stage a rank; a stage here only takes its stated time."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
import torch.distributed as dist

from ..ranks.spans import span


def stream(seconds: Sequence[float], batches: int) -> None:
    """Forward only: rank r takes `seconds[r]` for each batch, hands it on, and takes the next one at once."""
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    dist.barrier()
    activations, sent = torch.zeros(1), []
    for batch in range(batches):
        if rank > 0:
            with span("wait for activations"):
                dist.recv(activations, rank - 1)
        with span(f"forward {batch}"):
            time.sleep(seconds[rank])
        if rank < last:
            sent.append(dist.isend(activations, rank + 1))
    for message in sent:
        message.wait()


def there_and_back(forward: Sequence[float], backward: Sequence[float], batches: int) -> None:
    """One batch after the other, forward through all stages and backward through all; seconds of each by rank."""
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    dist.barrier()
    message = torch.zeros(1)
    for _ in range(batches):
        if rank > 0:
            with span("wait for activations"):
                dist.recv(message, rank - 1)
        with span("forward"):
            time.sleep(forward[rank])
        if rank < last:
            dist.send(message, rank + 1)
            with span("wait for gradients"):
                dist.recv(message, rank + 1)
        with span("backward"):
            time.sleep(backward[rank])
        if rank > 0:
            dist.send(message, rank - 1)
