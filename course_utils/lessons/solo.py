"""Learns to read handwritten digits, on one device: a script as many are, for notebook 22.

python solo.py --epochs 12 --out runs/solo [--resume]
"""

import argparse
import csv
import math
import time
from functools import partial
from itertools import islice
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy, pad
from torch.utils.data import DataLoader, Dataset

DEFAULTS = {
    "epochs": 12,
    "batch": 64,
    "pieces": 2,  # of a batch, each with a backward of its own
    "lr": 4e-3,
    "warmup": 20,
    "clip": 1.0,
    "patience": 3,
    "seed": 0,  # below 0: none
    "dropout": 0.2,
    "shift": 1,
    "norm": "batch",
    "precision": "bfloat16",
    "workers": 2,
    "device": "",
    "out": "runs/solo",
    "cache": "digits.pt",
}


def arguments(argv):
    parser = argparse.ArgumentParser()
    for name, default in DEFAULTS.items():
        parser.add_argument(f"--{name}", type=type(default), default=default)
    parser.add_argument("--resume", action="store_true")
    return parser.parse_args(argv)


class Digits(Dataset):
    """Images (1, 8, 8), each moved by up to `shift` pixels at random, and what they show."""

    def __init__(self, images, digits, shift=0):
        self.images = images
        self.digits = digits
        self.shift = shift

    def __len__(self):
        return len(self.images)

    def __getitem__(self, row):
        image = self.images[row]
        if self.shift:
            down, right = torch.randint(2 * self.shift + 1, (2,)).tolist()
            image = pad(image, [self.shift] * 4)[:, down : down + 8, right : right + 8]
        return image, self.digits[row]


def prepare(cache, shift):
    """The rows to train on and those to validate on; making `cache` stands for a download."""
    if not Path(cache).exists():
        from sklearn.datasets import load_digits

        x, y = load_digits(return_X_y=True)
        images = torch.tensor(x / 16, dtype=torch.float32).view(-1, 1, 8, 8)
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
        torch.save((images[order], torch.tensor(y)[order]), cache)
    x, y = torch.load(cache)
    return Digits(x[359:], y[359:], shift), Digits(x[:359], y[:359])


def network(dropout, norm):
    norms = {"batch": nn.BatchNorm2d, "group": partial(nn.GroupNorm, 4)}
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        norms[norm](16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(dropout),
        nn.Linear(256, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def ramp(warmup, total, step):
    """The factor of the learning rate: it rises in `warmup` steps, and falls along a cosine."""
    return min((step + 1) / warmup, 0.5 + 0.5 * math.cos(math.pi * step / total))


@torch.no_grad()
def evaluate(network, rows):
    """Three sums over the rows: the losses, those that are right, and the rows themselves."""
    network.eval()
    one = next(network.parameters())
    sums = torch.zeros(3, dtype=one.dtype, device=one.device)
    for x, y in DataLoader(rows, 100):
        out = network(x.to(one.device, one.dtype))
        y = y.to(one.device)
        loss = cross_entropy(out, y, reduction="sum")
        sums += torch.stack([loss, (out.argmax(1) == y).sum(), torch.ones_like(y).sum()])
    network.train()
    return sums


def waited(history):
    """How many epochs ago the validation loss was best."""
    losses = [loss for _, loss, _ in history]
    return len(losses) - 1 - losses.index(min(losses)) if losses else 0


def generators(device):
    """What this process draws from: the CPU's generator, and the device's, for dropout."""
    places = torch, torch.get_device_module(device)
    return [place for place in places if hasattr(place, "get_rng_state")]  # torch.cpu has none


def random_state(device):
    return [generator.get_rng_state() for generator in generators(device)]


def set_random_state(states, device):
    for generator, state in zip(generators(device), states, strict=True):
        generator.set_rng_state(state)


def write(folder, history, random, parts):
    """The last epoch into log.csv, all that the next one needs into last.pt, the best network's
    weights into best.pt.
    """
    with (folder / "log.csv").open("a" if history[1:] else "w", newline="") as log:
        csv.writer(log).writerow([len(history) - 1, *history[-1]])
    state = {name: part.state_dict() for name, part in parts.items()}
    torch.save(state | {"history": history, "random": random}, folder / "last.pt")
    if waited(history) == 0:
        torch.save(state["network"], folder / "best.pt")


def restore(folder, parts):
    """Give each part its state from last.pt; the history so far, and the random states."""
    state = torch.load(folder / "last.pt", map_location="cpu")
    for name, part in parts.items():
        part.load_state_dict(state[name])
    return state["history"], state["random"]


def main(argv=None):
    args = arguments(argv)
    device = torch.device(args.device or torch.accelerator.current_accelerator(True) or "cpu")
    kind = torch.float64 if args.precision == "float64" else torch.float32
    half = args.precision == "bfloat16"
    if args.seed >= 0:
        torch.manual_seed(args.seed)
    folder = Path(args.out)
    folder.mkdir(parents=True, exist_ok=True)
    train, test = prepare(args.cache, args.shift)
    each = args.batch // args.pieces
    loader = DataLoader(train, each, shuffle=True, drop_last=True, num_workers=args.workers)
    model = network(args.dropout, args.norm).to(device, kind)
    optimizer = torch.optim.AdamW(model.parameters(), args.lr, weight_decay=0.05)
    steps = len(loader) // args.pieces  # of an epoch; pieces that are left over are not used
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, partial(ramp, args.warmup, args.epochs * steps)
    )
    parts = {"network": model, "optimizer": optimizer, "schedule": schedule}
    history = []
    if args.resume:
        history, random = restore(folder, parts)
        set_random_state(random[0], device)

    while len(history) < args.epochs and waited(history) < args.patience:
        epoch = len(history)
        began = time.time()
        total = 0.0
        for piece, (x, y) in enumerate(islice(loader, steps * args.pieces), 1):
            with torch.autocast(device.type, torch.bfloat16, enabled=half):
                out = model(x.to(device, kind))
                loss = cross_entropy(out, y.to(device)) / args.pieces
            loss.backward()
            total += loss.item()
            if piece % args.pieces == 0:
                nn.utils.clip_grad_norm_(model.parameters(), args.clip)
                optimizer.step()
                optimizer.zero_grad()
                schedule.step()
                print(f"\repoch {epoch}: step {piece // args.pieces} of {steps}", end="")
        loss, right, rows = evaluate(model, test).tolist()
        history.append((total / steps, loss / rows, right / rows))
        print("  loss {:.3f}, validation {:.3f}, {:.1%}".format(*history[-1]), end=", ")
        print(f"{time.time() - began:.1f} s")
        write(folder, history, [random_state(device)], parts)
    if len(history) < args.epochs:
        print("stopped early")
    return model


if __name__ == "__main__":
    main()
