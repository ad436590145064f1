"""What notebooks 15 to 17 say of torch_xla and no cell shows, held against the installed package."""

from __future__ import annotations

import inspect
from importlib.metadata import requires

import pytest

pytest.importorskip("torch_xla")

import torch
import torch_xla
import torch_xla.core.xla_model as xm

from course_utils import xla
from course_utils.lessons import models


def test_the_extra_tpu_installs_libtpu() -> None:
    assert any(line.startswith("libtpu") and 'extra == "tpu"' in line for line in requires("torch_xla"))


def test_every_device_begins_with_one_state_that_torchs_seed_does_not_set() -> None:
    def states() -> tuple[int, int, int]:
        import torch_xla.runtime as xr

        before = xm.get_rng_state()
        torch.manual_seed(xr.global_ordinal())
        same = xm.get_rng_state()
        torch_xla.manual_seed(7 + xr.global_ordinal())
        return before, same, xm.get_rng_state()

    found = xla.launch(states, cores=3, show=False).results
    assert len({before for before, _, _ in found}) == 1
    assert all(before == same for before, same, _ in found)
    assert [state for _, _, state in found] == [7, 8, 9]


def test_a_new_state_compiles_nothing() -> None:
    ones = torch.ones(8, 3).to(torch_xla.device())

    def drop() -> list:
        kept = torch.dropout(ones, 0.5, train=True)
        torch_xla.sync()
        return kept.tolist()

    torch_xla.manual_seed(1)
    drop()
    before, first = xla.counters(), drop()
    assert drop() != first, "the state moves on with each step"
    torch_xla.manual_seed(2)
    drop()
    assert (xla.counters() - before).compiles == 0


def test_torchs_checkpoint_fails_and_torch_xlas_has_a_barrier() -> None:
    from torch.utils.checkpoint import checkpoint
    from torch_xla.utils import checkpoint as theirs

    block, x = models.MLP(8).to(torch_xla.device()), torch.ones(2, 8).to(torch_xla.device()).requires_grad_()
    for reentrant, error in ((False, AttributeError), (True, (AttributeError, RuntimeError))):
        with pytest.raises(error, match="xla"):
            checkpoint(block, x, use_reentrant=reentrant).sum().backward()
    theirs.checkpoint(block, x).sum().backward()
    graph = torch_xla._XLAC._get_xla_tensors_text([block.up.weight.grad])
    assert "optimization_barrier" in graph


def test_scan_layers_needs_jax() -> None:
    import torch_xla._internal.jax_workarounds as jax
    from torch_xla.experimental import scan, scan_layers

    assert "import jax" in inspect.getsource(jax)
    assert "partition_fn" in inspect.signature(scan_layers.scan_layers).parameters
    assert "min_cut_rematerialization_partition" in scan.scan.__doc__


def test_all_gather_pads_by_the_ordinal_unless_told_otherwise() -> None:
    assert inspect.signature(xm.all_gather).parameters["pin_layout"].default is True
    source = inspect.getsource(xm._all_gather_using_all_reduce)
    assert "global_ordinal" in source
    assert "pad" in source


def test_a_closure_runs_when_its_step_has_run() -> None:
    said = []
    x = torch.ones(2).to(torch_xla.device()) * 3
    xm.add_step_closure(lambda value: said.append(value.tolist()), args=(x,))
    assert said == []
    torch_xla.sync()
    assert said == [[3.0, 3.0]]
