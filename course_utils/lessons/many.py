"""The script `solo.py` on any number of devices; notebook 22 explains its ten changes.

torchrun --nproc-per-node 4 -m course_utils.lessons.many --epochs 12 --out runs/many [--resume]
"""

import os
import time
from contextlib import nullcontext
from functools import partial
from itertools import islice
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, Subset

from course_utils.lessons import solo


def join(wanted):
    """This process's device, its rank and the number of ranks; started by python it is alone."""
    device = torch.device(wanted or torch.accelerator.current_accelerator(True) or "cpu")
    if device.type != "cpu":
        device = torch.device(device.type, int(os.environ.get("LOCAL_RANK", 0)))
        torch.accelerator.set_device_index(device.index)
    if "RANK" in os.environ and not dist.is_initialized():
        dist.init_process_group("gloo" if device.type == "cpu" else None)
    elif not dist.is_initialized():
        dist.init_process_group(store=dist.HashStore(), rank=0, world_size=1)
    return device, dist.get_rank(), dist.get_world_size()


def main(argv=None):
    args = solo.arguments(argv)
    device, rank, ranks = join(args.device)  # 1
    kind = torch.float64 if args.precision == "float64" else torch.float32
    half = args.precision == "bfloat16"
    if args.seed >= 0:
        torch.manual_seed(args.seed)
    folder = Path(args.out)
    if rank == 0:  # 2
        folder.mkdir(parents=True, exist_ok=True)
        solo.prepare(args.cache, args.shift)
    dist.barrier()
    train, test = solo.prepare(args.cache, args.shift)
    each, rest = divmod(args.batch, args.pieces * ranks)  # 3
    if rest:
        raise SystemExit(f"--batch {args.batch}: not divisible by {args.pieces} x {ranks} ranks")
    sampler = DistributedSampler(train, seed=max(args.seed, 0), drop_last=True)  # 4
    loader = DataLoader(train, each, sampler=sampler, drop_last=True, num_workers=args.workers)
    share = Subset(test, range(rank, len(test), ranks))
    network = solo.network(args.dropout, args.norm).to(device, kind)
    model = DDP(network)  # 5
    if args.seed >= 0:
        torch.manual_seed(args.seed * ranks + rank)  # 6
    optimizer = torch.optim.AdamW(model.parameters(), args.lr, weight_decay=0.05)
    steps = len(loader) // args.pieces  # of an epoch; pieces that are left over are not used
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, partial(solo.ramp, args.warmup, args.epochs * steps)
    )
    parts = {"network": network, "optimizer": optimizer, "schedule": schedule}
    history = []
    if args.resume:
        history, random = solo.restore(folder, parts)
        if len(random) == ranks:  # as many as were saved
            solo.set_random_state(random[rank], device)  # 6

    # of sums that all ranks have, so all stop alike
    while len(history) < args.epochs and solo.waited(history) < args.patience:
        epoch = len(history)
        sampler.set_epoch(epoch)  # 4
        began = time.time()
        total = torch.zeros((), dtype=kind, device=device)
        for piece, (x, y) in enumerate(islice(loader, steps * args.pieces), 1):
            last = piece % args.pieces == 0
            with nullcontext() if last else model.no_sync():  # 7
                with torch.autocast(device.type, torch.bfloat16, enabled=half):
                    out = model(x.to(device, kind))
                    loss = cross_entropy(out, y.to(device)) / args.pieces
                loss.backward()
            total += loss.detach()
            if last:
                nn.utils.clip_grad_norm_(model.parameters(), args.clip)
                optimizer.step()
                optimizer.zero_grad()
                schedule.step()
                if rank == 0:  # 10
                    print(f"\repoch {epoch}: step {piece // args.pieces} of {steps}", end="")
        for buffer in network.buffers():  # 8
            dist.broadcast(buffer, src=0)
        sums = solo.evaluate(network, share)
        dist.all_reduce(sums)  # 9
        dist.all_reduce(total)
        loss, right, rows = sums.tolist()
        history.append((total.item() / ranks / steps, loss / rows, right / rows))
        random = [None] * ranks
        dist.all_gather_object(random, solo.random_state(device))  # 6
        if rank == 0:  # 10
            print("  loss {:.3f}, validation {:.3f}, {:.1%}".format(*history[-1]), end=", ")
            print(f"{time.time() - began:.1f} s")
            solo.write(folder, history, random, parts)
    if rank == 0 and len(history) < args.epochs:
        print("stopped early")
    return model


if __name__ == "__main__":
    main()
    dist.barrier()  # rank 0 may still be writing
    dist.destroy_process_group()
