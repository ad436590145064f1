"""A training that saves after each step and goes on where it was: the cells of a notebook."""

TRAIN = """
def train(steps, pause=0.0):
    \"\"\"Train a little model, saved after each step; go on where the last save was.\"\"\"
    torch.manual_seed(0)
    model = DDP(torch.nn.Linear(8, 1).to(pick()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    first = 0
    if SAVED.exists():
        saved = torch.load(SAVED, map_location=pick())
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["step"] + 1
    for step in range(first, steps):
        batch = torch.rand(32, 8, generator=torch.Generator().manual_seed(step)).to(pick())
        x = batch[dist.get_rank() :: dist.get_world_size()]
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        dist.all_reduce(loss)
        report(step, loss=loss.item() / dist.get_world_size())
        if dist.get_rank() == 0:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, "new.pt")
            os.replace("new.pt", SAVED)
        time.sleep(pause)
"""
IMPORTS = """
import os
import time
from itertools import pairwise
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from course_utils import pick, report

SAVED = Path("last.pt")
"""
