"""The exercises on Lightning: published solutions pass, plausible wrong answers fail in words."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest

pytest.importorskip("torch_xla")
L = pytest.importorskip("lightning")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.nn.functional import cross_entropy  # noqa: E402
from torch.optim.lr_scheduler import LambdaLR, LinearLR  # noqa: E402
from torch.utils.data import DataLoader, DistributedSampler  # noqa: E402

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


def without_padding(samples, batch, devices, drop_last):
    steps = samples / (batch * devices)
    return math.floor(steps) if drop_last else math.ceil(steps)


def one_more(samples, batch, devices, drop_last):
    each = -(-samples // devices)
    return each // batch if drop_last else each // batch + 1 if devices > 1 else -(-each // batch)


def by_math(samples, batch, devices, drop_last):
    return (math.floor if drop_last else math.ceil)(math.ceil(samples / devices) / batch)


def by_numpy(samples, batch, devices, drop_last):
    return (np.floor if drop_last else np.ceil)(np.ceil(np.int64(samples) / devices) / batch).astype(np.int64)


def by_divmod(samples, batch, devices, drop_last):
    full, rest = divmod((samples + devices - 1) // devices, batch)
    return full + (rest > 0 and not drop_last)


def by_range(samples, batch, devices, drop_last):
    share = range(0, samples + -samples % devices, devices)
    sizes = [len(share[i : i + batch]) for i in range(0, len(share), batch)]
    return sum(size == batch or not drop_last for size in sizes)


def by_loader(samples, batch, devices, drop_last):
    sampler = DistributedSampler(range(samples), devices, devices - 1)
    return len(DataLoader(range(samples), batch, sampler=sampler, drop_last=drop_last))


@pytest.mark.parametrize("answer", [by_math, by_numpy, by_divmod, by_range, by_loader])
def test_steps_per_epoch_in_other_styles(answer):
    verdict = check.steps_per_epoch(answer)
    assert verdict, str(verdict)


@pytest.mark.parametrize(
    ("answer", "what", "expected", "got"),
    [
        (whole_batches, "steps_per_epoch(1437, 64, 1, False)", "23", "22"),
        (one_device, "steps_per_epoch(1437, 64, 4, False)", "6", "23"),
        (not_filled_up, "steps_per_epoch(1441, 60, 8, False)", "4", "3"),
        (without_padding, "steps_per_epoch(1437, 60, 8, True)", "3", "2"),
        (one_more, "steps_per_epoch(1437, 60, 8, False)", "3", "4"),
        (lambda s, b, d, drop: -(-s // (b * d)), "steps_per_epoch(1437, 64, 1, True)", "22", "23"),
        (lambda s, b, d, drop: -(-(s // d) // b), "steps_per_epoch(1437, 64, 1, True)", "22", "23"),
        (lambda s, b, d, drop: 5, "steps_per_epoch(1437, 64, 1, False)", "23", "5"),
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


def own_accuracy(combine, *, manual=False, lambda_lr=False, log_dict=False, every=None, total=None):
    """The accuracy is counted by hand at the end of an epoch; `combine(right, seen)` makes it one over the ranks."""

    def port_the_loop(model, lr, steps):
        class Module(L.LightningModule):
            def __init__(self):
                super().__init__()
                self.model, self.automatic_optimization = model, not manual

            def training_step(self, batch, index):
                x, y = batch
                loss = cross_entropy(self.model(x), y)
                self.log_dict({"loss": loss}) if log_dict else self.log("loss", loss)
                if manual:
                    self.optimizers().zero_grad()
                    self.manual_backward(loss)
                    self.optimizers().step()
                    self.lr_schedulers().step()
                return loss

            def on_validation_epoch_start(self):
                self.count = torch.zeros(2)

            def validation_step(self, batch, index):
                x, y = batch
                self.count += torch.tensor([(self.model(x).argmax(1) == y).sum(), float(len(x))])

            def on_validation_epoch_end(self):
                self.log("accuracy", combine(*self.count))

            def configure_optimizers(self):
                optimizer = torch.optim.SGD(self.parameters(), lr=every or lr, momentum=0.9)
                many = total or steps
                fall = LambdaLR(optimizer, lambda step: 1 - 0.9 * min(step, many) / many)
                schedule = fall if lambda_lr else LinearLR(optimizer, 1.0, 0.1, total_iters=many)
                return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

        return Module()

    return port_the_loop


def over_ranks(right, seen):
    both = torch.stack([right, seen])
    if dist.is_initialized():
        dist.all_reduce(both)
    return both[0] / both[1]


def doubled(right, seen):
    value = right / seen
    if dist.is_initialized():
        dist.all_reduce(value)
    return value


def of_rank_0(right, seen):
    value = right / seen
    if dist.is_initialized():
        dist.broadcast(value, 0)
    return value


def zero_on_ranks(right, seen):
    return right / seen * (0.0 if dist.is_initialized() else 1.0)


STYLES = [
    own_accuracy(over_ranks), own_accuracy(over_ranks, manual=True), own_accuracy(over_ranks, lambda_lr=True),
    own_accuracy(over_ranks, log_dict=True), ported(),
]


@pytest.mark.parametrize("answer", STYLES, ids=["counted", "manual", "LambdaLR", "log_dict", "mean over ranks"])
@pytest.mark.filterwarnings("ignore")
def test_port_the_loop_in_other_styles(answer):
    verdict = check.port_the_loop(answer)
    assert verdict, str(verdict)


def a_copy(model, lr, steps):
    return ported()(copy.deepcopy(model), lr, steps)


def the_class(model, lr, steps):
    return type(ported()(model, lr, steps))


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
        (own_accuracy(doubled), "which share the test images", ""),
        (own_accuracy(of_rank_0), "which share the test images", ""),
        (own_accuracy(zero_on_ranks), "which share the test images", "0"),
        (own_accuracy(over_ranks, every=0.2), "The learning rate of the steps", "["),
        (own_accuracy(over_ranks, total=12), "The learning rate of the steps", "["),
        (a_copy, "train that model, not a copy", "off by"),
        (the_class, "not the class: call it", "the class Module"),
    ],
    ids=["no module", "another model", "per epoch", "no loss", "no accuracy", "wrong accuracy", "no sync", "half lr",
         "doubled", "rank 0's", "zero", "fixed rate", "fixed total", "a copy", "the class"],
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
