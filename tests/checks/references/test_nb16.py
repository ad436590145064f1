"""The published solution of notebook 16 against one process that takes the whole batches."""

import pytest

pytest.importorskip("torch_xla")

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from course_utils import xla
from course_utils.checks.instruments import Rows
from course_utils.checks.nb16_tpu_many_cores import train_replica
from course_utils.lessons import models


def test_train_replica_is_one_process():
    dataset, model = Rows(40), models.mlp(seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        for x, y in DataLoader(dataset, 16):
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            optimizer.step()
    run = xla.launch(lambda: [*train_replica(dataset, 2).parameters()], cores=2)
    torch.testing.assert_close(run.results, [[*model.parameters()]] * 2)
