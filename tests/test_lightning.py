"""The callbacks for Lightning, and Lightning's own Trainer on virtual cores: live, equal on all, equal to the loop."""

from __future__ import annotations

import os
import pickle
import warnings

import pytest

pytest.importorskip("torch_xla")
L = pytest.importorskip("lightning")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from lightning.fabric.accelerators.xla import XLAAccelerator  # noqa: E402
from torch.nn.functional import cross_entropy  # noqa: E402
from torch.utils.data import DataLoader, DistributedSampler  # noqa: E402

from course_utils import LivePlot, RankError, launch, xla  # noqa: E402
from course_utils.lessons import data, models  # noqa: E402
from course_utils.lightning import LiveCallback, Witness, quiet, use_cores  # noqa: E402

PLAIN = dict.fromkeys(["logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"], False)
DIGITS = data.digits()
EPOCHS, STEPS = 2, 10  # 1437 images in batches of 256, the rest left out


class Module(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = models.mlp()

    def training_step(self, batch, index):
        x, y = batch
        loss = cross_entropy(self.model(x), y)
        self.log("loss", loss)
        self.log("images", float(len(x)))
        return loss

    def validation_step(self, batch, index):
        x, y = batch
        self.log("accuracy", (self.model(x).argmax(1) == y).float().mean(), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def flat(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).cpu()


def shuffled(replicas):
    return DataLoader(DIGITS.train, 256 // replicas, shuffle=True, drop_last=True)


def held_out():
    return DataLoader(DIGITS.test, 45)


def fit(module, loader, *callbacks, validate=False, **where):
    quiet()
    trainer = L.Trainer(max_epochs=EPOCHS, callbacks=list(callbacks), num_sanity_val_steps=0, **PLAIN, **where)
    trainer.fit(module, loader, held_out() if validate else None)
    return trainer


@pytest.fixture(scope="module")
def loop():
    """The plain loop: its weights and losses."""
    model, losses = models.mlp(), []
    sampler = DistributedSampler(DIGITS.train, 1, 0)
    loader = DataLoader(DIGITS.train, 256, sampler=sampler, drop_last=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return flat(model), losses


@pytest.fixture(autouse=True)
def setup(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    xla.setup()
    use_cores()
    yield
    assert os.listdir(tmp_path) == [], "a fit leaves nothing behind"


def alone():
    return DataLoader(DIGITS.train, 256, sampler=DistributedSampler(DIGITS.train, 1, 0), drop_last=True)


def test_in_this_process_the_trainer_is_the_loop_and_is_drawn(loop, capfd):
    weights, losses = loop
    plot, module = LivePlot("loss", "accuracy"), Module()
    fit(module, alone(), LiveCallback(plot), validate=True, accelerator="cpu", devices=1)
    assert torch.equal(flat(module), weights)
    assert plot.data["loss"][0] == (list(range(STEPS)), losses)
    steps, values = plot.data["accuracy"][0]
    assert steps == [4, 9], "what validation logs belongs to the epoch's last step"
    right = (module.model(DIGITS.test.tensors[0]).argmax(1) == DIGITS.test.tensors[1]).float().mean()
    assert values[-1] == pytest.approx(right.item())
    assert plot._ended is not None, "the plot is closed"
    printed = capfd.readouterr()
    assert "available" not in printed.out + printed.err
    assert "Tip" not in printed.out + printed.err


def test_the_plot_is_closed_when_the_fit_fails_and_does_not_travel():
    class Failing(Module):
        def on_train_epoch_end(self):
            raise ZeroDivisionError("on purpose")

    callback = LiveCallback(LivePlot("loss"))
    with pytest.raises(ZeroDivisionError):
        fit(Failing(), alone(), callback, accelerator="cpu", devices=1)
    assert callback.plot._ended is not None
    assert pickle.loads(pickle.dumps(LiveCallback(LivePlot("loss")))).plot is None


def test_on_ranks(loop):
    def train():
        witness = Witness(start=sampler_of, end=lambda trainer, module: flat(module))
        fit(Module(), shuffled(2), LiveCallback(), witness, accelerator="cpu", devices=2, strategy="ddp")
        return witness.seen[dist.get_rank()]

    plot = LivePlot("loss")
    run = launch(train, ranks=2, live=plot, device="cpu", show=False)
    assert [seen["start"] for seen in run.results] == [("DDPStrategy", "DistributedSampler", 0, 719),
                                                       ("DDPStrategy", "DistributedSampler", 1, 719)]
    assert torch.equal(run.results[0]["end"], run.results[1]["end"])
    assert (run.results[0]["end"] - loop[0]).abs().max() <= 1e-5
    means = [(a + b) / 2 for a, b in zip(*(run.column("loss", rank=rank) for rank in range(2)), strict=True)]
    assert means == pytest.approx(loop[1], abs=1e-5)
    assert {rank: len(values) for rank, (_, values) in plot.data["loss"].items()} == {0: STEPS, 1: STEPS}


def sampler_of(trainer, module):
    loader = getattr(trainer.train_dataloader, "_loader", trainer.train_dataloader)
    return type(trainer.strategy).__name__, type(loader.sampler).__name__, trainer.global_rank, len(loader.sampler)


def test_on_eight_cores(loop, capfd):
    class OwnStart(Module):
        """Built anew on each core; the strategy is to broadcast core 0's."""

        def setup(self, stage):
            self.model = models.mlp(seed=self.global_rank)
            self.built = flat(self)

    starts = {"start": lambda trainer, module: (sampler_of(trainer, module), module.built, flat(module))}
    witness = Witness(**starts, end=lambda trainer, module: flat(module))
    plot, module = LivePlot("loss", "accuracy"), OwnStart()
    callbacks = LiveCallback(plot), witness
    trainer = fit(module, shuffled(8), *callbacks, validate=True, accelerator="tpu", devices=8)
    assert sorted(witness.seen) == list(range(8))
    for core, seen in witness.seen.items():
        found, built, begun = seen["start"]
        assert found == ("XLAStrategy", "DistributedSampler", core, 180)
        assert torch.equal(built, flat(models.mlp(seed=core)))
        assert torch.equal(begun, flat(models.mlp(seed=0)))
        assert torch.equal(seen["end"], witness.seen[0]["end"])
    assert torch.equal(flat(module), witness.seen[0]["end"]), "the weights came back"
    assert {parameter.device.type for parameter in module.parameters()} == {"cpu"}
    assert (flat(module) - loop[0]).abs().max() <= 1e-5
    by_core = [plot.data["loss"][core] for core in range(8)]
    assert all(steps == list(range(STEPS)) for steps, _ in by_core)
    means = [sum(values) / 8 for values in zip(*(values for _, values in by_core), strict=True)]
    assert means == pytest.approx(loop[1], abs=1e-5)
    assert plot.data["accuracy"][0][0] == [4, 9]
    assert trainer.callback_metrics["accuracy"].item() == pytest.approx(plot.data["accuracy"][7][1][-1])
    printed = capfd.readouterr()
    assert printed.err == ""


def test_a_core_that_raises_is_named_and_the_next_fits_work():
    class Failing(Module):
        def on_train_epoch_end(self):
            if self.global_rank == 3:
                raise ZeroDivisionError("on purpose")

    plot, module = LivePlot("loss"), Module()
    with pytest.raises(RankError, match=r"core 3 of 8 raised ZeroDivisionError: on purpose"):
        fit(Failing(), shuffled(8), LiveCallback(plot), accelerator="tpu", devices=8)
    assert plot._ended is not None
    trainer = fit(module, shuffled(8), accelerator="tpu", devices=8)
    before = flat(module)
    (metrics,) = trainer.validate(module, held_out(), verbose=False)
    right = (module.model(DIGITS.test.tensors[0]).argmax(1) == DIGITS.test.tensors[1]).float().mean()
    assert metrics["accuracy"] == pytest.approx(right.item(), abs=1e-6)
    assert torch.equal(flat(module), before)
    trainer.fit_loop.max_epochs += 1
    trainer.fit(module, shuffled(8))
    assert not torch.equal(flat(module), before)


def test_quiet_leaves_warnings_about_mistakes():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        quiet()
        warnings.warn("The 'train_dataloader' does not have many workers which may be a bottleneck.", stacklevel=1)
        warnings.warn("You defined a `validation_step` but have no `val_dataloader`.", stacklevel=1)
    assert [str(warning.message)[:11] for warning in caught] == ["You defined"]


@pytest.mark.parametrize(("device", "there"), [("TPU", 4), ("CPU", 8)])
def test_use_cores_takes_what_a_tpu_has(device, there, monkeypatch):
    """Four on a v4-8; beside a TPU that `xla.setup(device="CPU")` leaves alone, virtual ones."""
    monkeypatch.setenv("PJRT_DEVICE", device)
    monkeypatch.setattr(XLAAccelerator, "is_available", staticmethod(lambda: True))
    monkeypatch.setattr(XLAAccelerator, "auto_device_count", staticmethod(lambda: 4))
    assert use_cores() == there
    assert L.Trainer(accelerator="tpu", **PLAIN).num_devices == there
