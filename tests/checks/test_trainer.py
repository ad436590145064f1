"""The exercises on Lightning: published solutions pass, plausible wrong answers fail in words."""

from __future__ import annotations

import pytest

pytest.importorskip("torch_xla")
L = pytest.importorskip("lightning")

import torch  # noqa: E402
from torch.nn.functional import cross_entropy  # noqa: E402
from torch.optim.lr_scheduler import LinearLR  # noqa: E402

from course_utils import check, xla  # noqa: E402


@pytest.fixture(autouse=True, scope="module")
def setup():
    xla.setup()


def test_steps_per_epoch_solution():
    assert check.steps_per_epoch(check.steps_per_epoch.published)


def whole_batches(samples, batch, devices, drop_last):
    return samples // (batch * devices)


def one_device(samples, batch, devices, drop_last):
    return samples // batch if drop_last else -(-samples // batch)


def not_filled_up(samples, batch, devices, drop_last):
    each = samples // devices
    return each // batch if drop_last else -(-each // batch)


@pytest.mark.parametrize(
    ("answer", "what", "expected", "got"),
    [
        (whole_batches, "steps_per_epoch(1437, 64, 1, False)", "23", "22"),
        (one_device, "steps_per_epoch(1437, 64, 4, False)", "6", "23"),
        (not_filled_up, "steps_per_epoch(1441, 60, 8, False)", "4", "3"),
    ],
)
def test_steps_per_epoch_wrong(answer, what, expected, got):
    verdict = check.steps_per_epoch(answer)
    assert verdict.state == "wrong"
    assert verdict.text.startswith(what)
    assert (verdict.expected, verdict.got) == (expected, got)


def test_port_the_loop_solution():
    verdict = check.port_the_loop(check.port_the_loop.published)
    assert verdict, str(verdict)


def ported(*, another=False, interval="step", log="loss", returned=True, accuracy=True, sync=True, lr_factor=1.0):
    """An answer that is right but for one thing."""

    def port_the_loop(model, lr, steps):
        class Module(L.LightningModule):
            def __init__(self):
                super().__init__()
                self.model = torch.nn.Linear(64, 10) if another else model

            def training_step(self, batch, index):
                x, y = batch
                loss = cross_entropy(self.model(x), y)
                self.log(log, loss)
                return loss if returned else None

            def validation_step(self, batch, index):
                x, y = batch
                right = (self.model(x).argmax(1) == y).float()
                if accuracy:
                    self.log("accuracy", right.mean() if accuracy is True else right.sum() / 180, sync_dist=sync)

            def configure_optimizers(self):
                optimizer = torch.optim.SGD(self.parameters(), lr=lr * lr_factor, momentum=0.9)
                schedule = LinearLR(optimizer, 1.0, 0.1, total_iters=steps)
                return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": interval}}

        return Module()

    return port_the_loop


@pytest.mark.parametrize(
    ("answer", "text", "got"),
    [
        (lambda model, lr, steps: model, "is to return a LightningModule", "Sequential"),
        (ported(another=True), "The loss of the steps", "["),
        (ported(interval="epoch"), "The learning rate of the steps", "[0.2, 0.2, 0.2"),
        (ported(log="train_loss"), 'Nothing is logged as "loss"', "train_loss"),
        (ported(accuracy=False), 'nothing is logged as "accuracy"', "loss"),
        (ported(accuracy="summed"), "The accuracy over all test images after each epoch", "["),
        (ported(sync=False), "each knows the accuracy of its own test images only", "rank 1"),
        (ported(lr_factor=0.5), "The learning rate of the steps", "[0.1, "),
    ],
    ids=["no module", "another model", "per epoch", "no loss", "no accuracy", "wrong accuracy", "no sync", "half lr"],
)
@pytest.mark.filterwarnings("ignore")
def test_port_the_loop_wrong(answer, text, got):
    verdict = check.port_the_loop(answer)
    assert verdict.state == "wrong", str(verdict)
    assert text in verdict.text
    assert got in verdict.got
    assert verdict.expected


def test_port_the_loop_without_a_training_step():
    def port_the_loop(model, lr, steps):
        class Module(L.LightningModule):
            def configure_optimizers(self):
                return None

        return Module()

    verdict = check.port_the_loop(port_the_loop)
    assert verdict.text.startswith("The module has no training_step")


def test_port_the_loop_that_raises():
    def port_the_loop(model, lr, steps):
        class Module(check.port_the_loop.published(model, lr, steps).__class__):
            def training_step(self, batch, index):
                return batch.x

        return Module()

    verdict = check.port_the_loop(port_the_loop)
    assert "AttributeError" in verdict.text
    assert "return batch.x" in verdict.line
    assert "course_utils" not in str(verdict)


def test_stubs():
    def port_the_loop(model, lr, steps):
        """Not written."""

    def steps_per_epoch(samples, batch, devices, drop_last):
        """Not written."""

    assert check.port_the_loop(port_the_loop).state == "not yet"
    assert check.steps_per_epoch(steps_per_epoch).state == "not yet"
