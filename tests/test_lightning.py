"""The callbacks for Lightning, and its Trainer on virtual cores: live, equal on all."""

import hashlib
import os
import re

import pytest

pytest.importorskip("torch_xla")
L = pytest.importorskip("lightning")

import torch  # noqa: E402
from torch.nn.functional import cross_entropy  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

from course_utils import LivePlot, RankError, launch, xla  # noqa: E402
from course_utils.checks.instruments import weights  # noqa: E402
from course_utils.checks.nb18_lightning import PLAIN  # noqa: E402
from course_utils.lessons import data, models  # noqa: E402
from course_utils.lightning import LiveCallback, quiet, use_cores  # noqa: E402

DIGITS = data.digits()
HELD_OUT = DataLoader(DIGITS.test, 45)
STEPS = 10  # two epochs of 1437 images in batches of 256, the rest left out


class Module(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = models.mlp()

    def setup(self, stage):
        if stage == "fit":  # another start on each; the strategy is to broadcast the first's
            self.model = models.mlp(seed=self.global_rank)

    def training_step(self, batch, index):
        x, y = batch
        loss = cross_entropy(self.model(x), y)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, index):
        x, y = batch
        self.log("accuracy", (self.model(x).argmax(1) == y).float().mean(), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


class Failing(Module):
    def on_train_epoch_end(self):
        if self.global_rank == self.trainer.world_size // 2:
            raise ZeroDivisionError("on purpose")


def fingerprint(network):
    return hashlib.sha1(weights(network).cpu().numpy().tobytes()).hexdigest()


class Prints(L.Callback):
    def on_train_start(self, trainer, module):
        print("starts with", fingerprint(module))

    def on_train_end(self, trainer, module):
        print("ends with", fingerprint(module))


def fit(module, replicas, *callbacks, **where):
    quiet()
    trainer = L.Trainer(max_epochs=2, callbacks=[*callbacks], devices=replicas, **PLAIN, **where)
    batches = DataLoader(DIGITS.train, 256 // replicas, shuffle=True, drop_last=True)
    trainer.fit(module, batches, HELD_OUT)
    return trainer


def accuracy(module):
    x, y = DIGITS.test.tensors
    return (module.model(x).argmax(1) == y).float().mean().item()


@pytest.fixture(autouse=True)
def setup(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    xla.setup()
    use_cores()
    yield
    assert os.listdir(tmp_path) == [], "a fit leaves nothing behind"


def test_in_this_process_the_trainer_is_drawn(capfd):
    plot, module = LivePlot("loss", "accuracy"), Module()
    fit(module, 1, LiveCallback(plot), accelerator="cpu")
    assert plot.data["loss"][0][0] == [*range(STEPS)]
    steps, values = plot.data["accuracy"][0]
    assert steps == [4, 9], "what validation logs belongs to the epoch's last step"
    assert values[-1] == pytest.approx(accuracy(module))
    assert not plot._open, "the plot is closed"
    assert not re.search("available|Tip", "".join(capfd.readouterr()))


def test_each_batch_is_drawn_at_the_step_that_its_gradients_take():
    plot = LivePlot("loss")
    fit(Module(), 1, LiveCallback(plot), accelerator="cpu", accumulate_grad_batches=2)
    assert plot.data["loss"][0][0] == [0, 0, 1, 1, 2, 3, 3, 4, 4, 5], "five batches an epoch"


@pytest.mark.parametrize(("where", "replicas"), [("ranks", 2), ("cores", 8)])
def test_replicas_are_drawn_and_start_and_end_alike(where, replicas, capfd):
    def train(accelerator, **strategy):
        module = Module()
        trainer = fit(module, replicas, callback, Prints(), accelerator=accelerator, **strategy)
        return fingerprint(module), trainer.callback_metrics["accuracy"].item()

    plot = LivePlot("loss", "accuracy")
    callback = LiveCallback(plot)
    if where == "ranks":
        run = launch(train, "cpu", strategy="ddp", ranks=2, live=plot, device="cpu")
        end, last = run.results[0]
    else:
        end, last = train("tpu")  # the weights came back
    out, err = capfd.readouterr()
    assert err == ""
    for when, these in ("starts", fingerprint(models.mlp())), ("ends", end):
        assert out.count(f"{when} with {these}") == replicas, out
    assert all(plot.data["loss"][i][0] == [*range(STEPS)] for i in range(replicas))
    assert last == pytest.approx(plot.data["accuracy"][0][1][-1])


@pytest.mark.parametrize("accelerator", ["cpu", "tpu"])
def test_the_plot_is_closed_when_a_fit_fails_and_the_next_ones_work(accelerator):
    plot = LivePlot("loss")
    replicas, error = (8, RankError) if accelerator == "tpu" else (1, ZeroDivisionError)
    with pytest.raises(error, match="on purpose"):
        fit(Failing(), replicas, LiveCallback(plot), accelerator=accelerator)
    assert not plot._open
    module = Module()
    trainer = fit(module, replicas, accelerator=accelerator)
    [metrics] = trainer.validate(module, HELD_OUT, verbose=False)
    assert metrics["accuracy"] == pytest.approx(accuracy(module), abs=1e-6)
