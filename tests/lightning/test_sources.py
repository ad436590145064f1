"""What notebook 18 says of Lightning and no cell shows, held against the installed package."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

pytest.importorskip("torch_xla")
pytest.importorskip("lightning")

import torch_xla
from lightning import fabric, pytorch
from lightning.fabric.strategies import XLAFSDPStrategy
from lightning.pytorch.accelerators import XLAAccelerator
from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop
from lightning.pytorch.plugins import XLAPrecision
from lightning.pytorch.strategies import DDPStrategy, XLAStrategy
from lightning.pytorch.strategies.launchers.xla import _XLALauncher
from lightning.pytorch.trainer.connectors.logger_connector.result import _ResultMetric
from lightning.pytorch.utilities.types import LRSchedulerConfig


def test_the_accelerator_is_experimental() -> None:
    assert "experimental" in XLAAccelerator.__doc__


def test_fully_sharded_on_xla_is_in_fabric_only_and_experimental() -> None:
    assert "experimental" in XLAFSDPStrategy.__doc__
    assert not hasattr(pytorch.strategies, "XLAFSDPStrategy")
    assert hasattr(fabric.strategies, "XLAFSDPStrategy")


def test_the_strategy_is_no_ddp_and_broadcasts_the_start() -> None:
    assert issubclass(XLAStrategy, DDPStrategy)
    assert inspect.getsource(XLAStrategy._setup_model).rstrip().endswith("return model"), "DDP wraps it; this does not"
    assert "broadcast_master_param(self.model)" in inspect.getsource(XLAStrategy.setup)
    assert "MpDeviceLoader(dataloader, self.root_device)" in inspect.getsource(XLAStrategy.process_dataloader)


def test_lightning_starts_cores_by_forking_this_process() -> None:
    source = Path(inspect.getfile(_XLALauncher)).read_text(encoding="utf-8")  # other tests here replace its `launch`
    assert 'super().__init__(strategy=strategy, start_method="fork")' in source
    assert "xmp.spawn(" in source


def test_most_broadcasts_say_whether_rank_0_was_told_to_stop() -> None:
    source = inspect.getsource(_TrainingEpochLoop._broadcast_sigterm_tensor)
    assert "received_sigterm" in source
    assert "broadcast(sigterm_tensor, src=0)" in source
    assert "self._broadcast_sigterm_tensor()" in inspect.getsource(_TrainingEpochLoop.advance)


def test_of_the_half_precisions_torch_xla_reads_one_variable() -> None:
    source = inspect.getsource(XLAPrecision.__init__)
    assert '"XLA_USE_BF16"' in source
    assert '"XLA_USE_F16"' in source
    binary = Path(torch_xla._XLAC.__file__).read_bytes()
    assert b"XLA_USE_BF16 will be deprecated" in binary
    assert b"XLA_USE_F16" not in binary


def test_a_schedule_moves_once_an_epoch_and_a_mean_is_weighted() -> None:
    assert LRSchedulerConfig.__dataclass_fields__["interval"].default == "epoch"
    assert "value * batch_size" in inspect.getsource(_ResultMetric.update)


def test_nothing_reads_tpu_cores() -> None:
    for package in (pytorch, fabric, torch_xla):
        for file in Path(package.__file__).parent.rglob("*.py"):
            assert "TPU_CORES" not in file.read_text(encoding="utf-8"), file


def test_seed_everything_leaves_xla_alone() -> None:
    import torch_xla.core.xla_model as xm

    torch_xla.manual_seed(5)
    pytorch.seed_everything(3, verbose=False)
    assert xm.get_rng_state() == 5
