"""The published solution of notebook 18 against the notebook's loop. (Answers have torch's loader
for the other.)
"""

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from course_utils import launch
from course_utils.checks.nb18_lightning import fit, port_the_loop
from course_utils.lessons import data, models


def test_port_the_loop_is_the_loop():
    pytest.importorskip("lightning")
    model, images, seen = models.mlp(), data.digits(), {"lr": [], "loss": [], "accuracy": []}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=24)
    for _ in range(3):
        for x, y in DataLoader(images.train, 256):
            loss = cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            seen["lr"].append(schedule.get_last_lr()[0])
            seen["loss"].append(loss.item())
            optimizer.step()
            schedule.step()
        x, y = images.test.tensors
        seen["accuracy"].append((model(x).argmax(1) == y).float().mean().item())
    run = launch(lambda: fit(port_the_loop(models.mlp(), 0.2, 24)), ranks=1, device="cpu")
    assert run.results[0] == {
        name: pytest.approx(values, abs=1e-6) for name, values in seen.items()
    }
