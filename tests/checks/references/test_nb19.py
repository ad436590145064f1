"""The published solution of notebook 19, killed twice, against the notebook's loop that nobody
killed.
"""

import os
import signal

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from course_utils import RankError, launch
from course_utils.checks.instruments import weights
from course_utils.checks.nb19_many_machines import survive


def loop(model, optimizer, sampler, loader, epochs, folder):
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            optimizer.step()


def train(answer, folder, kill_after):
    torch.manual_seed(dist.get_rank())
    dataset = TensorDataset(torch.arange(60.0).reshape(20, 3) / 60, torch.arange(20) % 2)
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, 3, sampler=sampler)
    model = nn.parallel.DistributedDataParallel(
        nn.Sequential(nn.Linear(3, 9), nn.Dropout(), nn.Linear(9, 2))
    )
    optimizer, steps = torch.optim.SGD(model.parameters(), 0.5, momentum=0.9), []

    def killed(*_):
        steps.append(1)
        if len(steps) > kill_after:
            os.kill(os.getpid(), signal.SIGKILL)

    optimizer.register_step_pre_hook(killed)
    answer(model, optimizer, sampler, loader, 3, folder)
    return weights(model)


def test_survive_is_the_loop(tmp_path):
    [expected, _] = launch(train, loop, tmp_path, 99, ranks=2, device="cpu").results
    for steps in (2, 2):  # in the middle of the first epoch, and at its end
        with pytest.raises(RankError, match="SIGKILL"):
            launch(train, survive, tmp_path, steps, ranks=2, device="cpu")
    for found in launch(train, survive, tmp_path, 99, ranks=2, device="cpu").results:
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)
