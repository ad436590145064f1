"""Answers to the exercises of notebook 20; the functions to be mended are among the mistakes."""

import contextlib
import itertools
import math
import queue
import threading

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim import SGD
from torch.utils.data import DataLoader, DistributedSampler

from course_utils import pick, span
from course_utils.lessons import faulty_jobs
from course_utils.lessons.models import mlp

from .nb07 import divided_by_those_left


def names(letters, said):
    return lambda: dict(zip(letters, said.split(", "), strict=False))


def reading(read, *, fewer=0, sampler=DistributedSampler):
    def train_archive(dataset, steps):
        model, optimizer = faulty_jobs.replica()
        batches = iter(read(dataset, sampler(dataset) if sampler else None))
        for _ in range(steps - fewer):
            with span("data"):
                x, y = next(batches)
            faulty_jobs.step(model, optimizer, x, y)

    return train_archive


def by_a_thread(dataset, sampler):
    batches = queue.Queue(4)

    def read():
        for batch in DataLoader(dataset, 16, sampler=sampler):
            batches.put(batch)

    threading.Thread(target=read, daemon=True).start()
    return iter(batches.get, None)


def with_workers(dataset, sampler):
    return DataLoader(dataset, 16, sampler=sampler, num_workers=1, persistent_workers=True)


def a_loader_a_step(dataset, sampler):
    for step in itertools.count():
        workers = iter(with_workers(dataset, sampler))
        yield next(itertools.islice(workers, step, None))


def all_at_once(dataset, sampler):
    return [*with_workers(dataset, sampler)]


def rounded(layers, ranks):
    counts = [round(layers / ranks)] * ranks
    counts[-1] += layers - sum(counts)
    return counts


def the_first_batch_again(dataset, sampler):
    return itertools.repeat(next(iter(with_workers(dataset, sampler))))


def labels_of_the_next(dataset, sampler):
    pairs = itertools.pairwise(with_workers(dataset, sampler))
    return ((x, labels) for (x, _), (_, labels) in pairs)


def without_ddp(dataset, steps):
    model, batches = mlp().to(pick()), iter(with_workers(dataset, DistributedSampler(dataset)))
    for _ in range(steps):
        faulty_jobs.step(model, SGD(model.parameters(), lr=0.1), *next(batches))


def pieces(
    scale=lambda part, rows, count: part / rows,
    *,
    clear=True,
    together=False,
    over=lambda x: 1,
    own=None,
):
    def train_large(model, optimizer, x, y, count):
        if clear:
            optimizer.zero_grad()
        total, kept = 0.0, []
        for part, labels in zip(x.chunk(count), y.chunk(count), strict=True):
            loss = cross_entropy(model(part), labels)
            kept.append(loss * scale(len(part), len(x), count))
            if not together:
                kept.pop().backward()
            total += loss.item() * len(part) / len(x)
        if together:
            sum(kept).backward()
        for p in model.parameters():
            p.grad /= over(x)
        (own(optimizer, model) if own else optimizer).step()
        return total

    return train_large


def clipped(optimizer, model):
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    return optimizer


def in_equal_slices(model, optimizer, x, y, count):
    optimizer.zero_grad()
    size, total = -(-len(x) // count), 0.0
    for i in range(count):
        part = slice(i * size, (i + 1) * size)
        loss = cross_entropy(model(x[part]), y[part]) * len(x[part]) / len(x)
        loss.backward()
        total += loss.item()
    optimizer.step()
    return total


def without_momentum(optimizer, model):
    return SGD(model.parameters(), lr=optimizer.param_groups[0]["lr"])


def noisy(loss_of, around=lambda model: contextlib.nullcontext(), most=math.inf):
    """train_noisy with its own loss, or None to leave a step out."""

    def train_noisy(batches):
        model = DDP(mlp().to(pick()))
        optimizer = SGD(model.parameters(), lr=0.1)
        with around(model):
            for x, y in batches:
                loss = loss_of(model, x, y)
                if loss is not None:
                    optimizer.zero_grad()
                    loss.backward()
                    nn.utils.clip_grad_norm_(model.parameters(), most)
                    optimizer.step()
        return model.module

    return train_noisy


def zero_for_a_broken_batch(model, x, y):
    loss = cross_entropy(model(x.nan_to_num()), y)
    return loss if x.isfinite().all() else loss * 0


def none_for_a_broken_batch(model, x, y):
    return cross_entropy(model(x), y) if x.isfinite().all() else None


def sees_the_first_pixel(model, x, y):
    return cross_entropy(model(x), y) if x[:, 0].isfinite().all() else None


def sees_the_fourth_row(model, x, y):
    return cross_entropy(model(x), y) if x[3].isfinite().all() else None


RIGHT = {
    "name_abc": [
        names("ABC", "a straggler, DATA-STALL, Unbalanced_Pipeline"),
        names("ABC", "slow rank, slow loader, pipeline imbalance"),
    ],
    "name_others": [
        names("DEFGH", "Loss scale, missing `set_epoch`, the silent rank, memory leak, rounding"),
        names("DEFGH", "wrong loss-scale., set_epoch, dead rank, graph kept, updates rounded away"),
    ],
    "train_archive": [reading(by_a_thread), reading(with_workers)],
    "cut_layers": [
        lambda layers, ranks: tuple(len(part) for part in np.array_split(range(layers), ranks)),
        lambda layers, ranks: torch.tensor(
            [layers * (r + 1) // ranks - layers * r // ranks for r in range(ranks)]
        ),
    ],
    "train_large": [pieces(lambda part, rows, count: part, over=len), pieces()],
    "train_noisy": [
        noisy(none_for_a_broken_batch, DDP.join),
        noisy(zero_for_a_broken_batch),
        noisy(none_for_a_broken_batch, divided_by_those_left),
    ],
}
WRONG = {
    "name_abc": [
        names("ABC", "stragler"),
        names("AB", "straggler, data stall"),
        lambda: ["straggler", "data stall", "unbalanced pipeline"],
    ],
    "name_others": [
        names("DEF", "wrong loss scale, no set_epoch, silent rank"),
        names("DEFGH", "wrong loss scale, no set_epoch, silent rank, graph kept, graph kept"),
    ],
    "train_archive": [
        reading(the_first_batch_again),
        reading(labels_of_the_next),
        without_ddp,
        reading(lambda dataset, sampler: [*DataLoader(dataset, 16, sampler=sampler)]),
        reading(with_workers, sampler=None),
        reading(with_workers, fewer=1),
        reading(a_loader_a_step),
        reading(all_at_once),
    ],
    "cut_layers": [
        lambda layers, ranks: [layers // ranks] * ranks,
        lambda layers, ranks: layers // ranks,
        rounded,
        lambda layers, ranks: (
            [-(-layers // ranks)] * (ranks - 1) + [layers - (ranks - 1) * -(-layers // ranks)]
        ),
    ],
    "train_large": [
        pieces(lambda part, rows, count: 1 / count),
        pieces(together=True),
        pieces(clear=False),
        pieces(own=without_momentum),
        pieces(own=clipped),
        in_equal_slices,  # of which the last may have no row
    ],
    "train_noisy": [
        faulty_jobs.train_noisy,
        noisy(zero_for_a_broken_batch, most=1.0),
        noisy(sees_the_first_pixel, DDP.join),
        noisy(sees_the_fourth_row, DDP.join),
        noisy(lambda model, x, y: cross_entropy(model(x.nan_to_num()), y)),
    ],
}
HANGS = {faulty_jobs.train_noisy}
