"""What a machine has, from fake /sys and /dev, a fake environment and fake torch queries."""

import re
import warnings
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from course_utils import DeviceError
from course_utils.machine import devices, probe
from course_utils.machine.devices import PLACES, Device, discover, pick
from tests.files import write

GIB = 2**30
RANK_NAMES = ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "COURSE_DEVICE", "TPU_ACCELERATOR_TYPE", "CUDA_VISIBLE_DEVICES")


@pytest.fixture(autouse=True)
def plain(monkeypatch):
    """No rank, no hosted place, no accelerator: the machine the tests start from."""
    for name in {*RANK_NAMES, *(name for names in PLACES.values() for name in names)}:
        monkeypatch.delenv(name, raising=False)
    for kind in ("cuda", "xpu", "mps"):
        monkeypatch.setattr(getattr(torch, kind), "is_available", lambda: False)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: None)


@pytest.fixture
def gpus(monkeypatch):
    def of(count, kind="cuda", current=0, title="NVIDIA H200"):
        about = SimpleNamespace(name=title, total_memory=140 * GIB, major=9, minor=0)
        module = getattr(torch, kind)
        monkeypatch.setattr(module, "is_available", lambda: True)
        monkeypatch.setattr(module, "device_count", lambda: count)
        monkeypatch.setattr(module, "current_device", lambda: current)
        monkeypatch.setattr(module, "get_device_properties", lambda index: about)

    return of


# ---- where it runs --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("env", "place"),
    [
        ({}, "local"),
        ({"COLAB_RELEASE_TAG": "release-colab"}, "Colab"),
        ({"KAGGLE_KERNEL_RUN_TYPE": "Interactive", "COLAB_GPU": "0"}, "Kaggle"),
        ({"BINDER_LAUNCH_HOST": "https://mybinder.org/"}, "Binder"),
        ({"CODESPACES": "true"}, "Codespaces"),
        ({"CODESPACES": ""}, "local"),
    ],
)
def test_place(monkeypatch, env, place):
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert discover().place == place


# ---- devices --------------------------------------------------------------------------------------------------------


def test_cpu_only():
    machine = discover()
    assert [device.name for device in machine.devices] == ["cpu"]
    assert machine.devices[0].current
    assert machine.accelerator is None
    assert "gloo" in machine.backends
    assert "nccl" not in machine.backends


def test_eight_gpus(gpus, monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    gpus(8, current=3)
    machine = discover()
    assert [device.name for device in machine.devices] == ["cpu", *(f"cuda:{i}" for i in range(8))]
    assert machine.devices[4] == Device("cuda:3", "cuda", "NVIDIA H200", 140 * GIB, (9, 0), current=True)
    assert machine.accelerator == "cuda"
    assert machine.backends[:2] == ("gloo", "nccl")
    assert machine.runs(4) == "4 ranks on 4 GPUs; nccl"
    assert machine.runs(1) == "1 rank on 1 GPU; nccl"
    title = "8 \N{MULTIPLICATION SIGN} NVIDIA H200"
    facts = "cuda:0 … cuda:7, current cuda:3 · 140 GiB each · compute capability 9.0"
    assert f"{title} · {facts}" in repr(machine)


def test_two_models_of_gpu(gpus, monkeypatch):
    gpus(2)
    about = [SimpleNamespace(name=name, total_memory=24 * GIB, major=8, minor=9) for name in ("RTX 4090", "L4")]
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: about[index])
    assert re.search(r"RTX 4090 · cuda:0, current cuda:0.*\n.*L4 · cuda:1", repr(discover()))


def test_mps(monkeypatch):
    monkeypatch.setattr(torch.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.mps, "recommended_max_memory", lambda: 10 * GIB)
    machine = discover()
    assert machine.accelerator == "mps"
    assert machine.devices[1].name == "mps"
    assert machine.devices[1].title.endswith(" GPU")
    assert pick() == pick("mps") == torch.device("mps", 0)
    assert machine.runs(4).endswith("(MPS has no collectives between processes); gloo")


def test_xpu(gpus):
    gpus(2, kind="xpu", title="Intel Max 1550")
    assert [device.name for device in discover().accelerators] == ["xpu:0", "xpu:1"]
    assert pick() == torch.device("xpu", 0)


def test_an_accelerator_of_another_kind(monkeypatch):
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: torch.device("hpu"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 1)
    assert discover().accelerators == (Device("hpu:0", "hpu", "HPU"), Device("hpu:1", "hpu", "HPU", current=True))
    assert pick() == torch.device("hpu", 1)


def fails(*args, **kwargs):
    raise RuntimeError("CUDA driver initialization failed\nand more lines")


def test_a_broken_driver_is_a_note(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", fails)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", fails)
    machine = discover()
    assert machine.accelerator is None
    assert machine.notes[0] == "cuda cannot be used: RuntimeError: CUDA driver initialization failed"
    assert "note: cuda cannot be used" in repr(machine)
    assert pick() == torch.device("cpu")


def test_torchs_warning_about_the_driver_is_a_note(tmp_path, monkeypatch):
    def is_available():
        warnings.warn("CUDA initialization: your driver is too old\n(Triggered internally)", stacklevel=1)
        return False

    monkeypatch.setattr(torch.cuda, "is_available", is_available)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert discover(root=tmp_path).notes == ("CUDA initialization: your driver is too old",)


@pytest.mark.parametrize(
    ("built", "visible", "note"),
    [
        (False, None, "was built without CUDA"),
        (True, "", "CUDA_VISIBLE_DEVICES hides"),
        (True, None, "finds no GPU it can use"),
    ],
)
def test_a_driver_that_torch_does_not_use(tmp_path, monkeypatch, built, visible, note):
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: built)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert note in discover(root=write(tmp_path, {"dev/nvidiactl": ""})).notes[0]


# ---- TPU and XLA ----------------------------------------------------------------------------------------------------


def tpu_files(root, chips, device="0x0063"):
    for i in range(chips):
        write(root, {f"sys/bus/pci/devices/{i}/vendor": "0x1ae0", f"sys/bus/pci/devices/{i}/device": device})
    return root


def installed(monkeypatch, **packages):
    monkeypatch.setattr(probe, "find_spec", lambda name: name if name in packages else None)
    monkeypatch.setattr(probe, "version", lambda name: packages[name])


def test_tpu_on_the_bus(tmp_path, monkeypatch):
    installed(monkeypatch, torch_xla="2.9.0")
    machine = discover(root=tpu_files(tmp_path, 8))
    assert (machine.tpu, machine.xla, machine.accelerator) == ("TPU v5e, 8 chips", "torch_xla 2.9.0", "tpu")
    assert "xla" in machine.backends
    assert re.search(r"TPU +● native +TPU v5e, 8 chips · torch_xla 2.9.0", repr(machine))


def test_tpu_without_its_package(tmp_path, monkeypatch):
    installed(monkeypatch)
    machine = discover(root=tpu_files(tmp_path, 1, "0x0062"))
    assert (machine.tpu, machine.xla, machine.accelerator) == ("TPU v5p, 1 chip", None, None)
    assert "○ not usable" in repr(machine)
    assert "neither torch_xla nor torch_tpu is installed" in repr(machine)


def test_tpu_by_device_files_or_environment(tmp_path, monkeypatch):
    installed(monkeypatch, torch_tpu="0.2")
    monkeypatch.setenv("TPU_ACCELERATOR_TYPE", "v5litepod-8")
    assert discover(root=tmp_path).tpu == "TPU v5litepod-8"
    root = write(tmp_path, {f"dev/accel{i}": "" for i in range(4)} | {"dev/accel/accel0": ""})
    assert (discover(root=root).tpu, discover(root=root).xla) == ("TPU, 4 chips", "torch_tpu 0.2")


def test_another_google_card_is_no_tpu(tmp_path):
    assert discover(root=tpu_files(tmp_path, 1, "0x001f")).tpu is None


def test_virtual_cores_without_a_tpu(tmp_path, monkeypatch):
    installed(monkeypatch, torch_xla="2.9.0")
    machine = discover(root=tmp_path)
    assert machine.accelerator is None
    assert "◐ virtual    virtual cores of XLA's CPU client · torch_xla 2.9.0" in repr(machine)


# ---- pick -----------------------------------------------------------------------------------------------------------


def test_pick_on_the_cpu():
    for want in (None, "cpu", "cpu:0", torch.device("cpu")):
        assert pick(want) == torch.device("cpu")
    assert pick("meta") == torch.device("meta")


def test_pick_among_gpus(gpus):
    gpus(4, current=2)
    for want in (None, "cuda", 2, "cuda:2", torch.device("cuda", 2)):
        assert pick(want) == torch.device("cuda", 2)
    assert pick(0) == torch.device("cuda", 0)
    assert pick("cpu") == torch.device("cpu")


def test_pick_in_a_rank(gpus, monkeypatch):
    gpus(4)
    monkeypatch.setenv("LOCAL_RANK", "3")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert pick() == torch.device("cuda", 3)
    monkeypatch.setenv("COURSE_DEVICE", "cpu")
    assert pick() == torch.device("cpu")


def test_all_ranks_use_the_cpu_when_one_would_have_no_gpu(gpus, monkeypatch):
    gpus(2)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    for rank in range(3):
        monkeypatch.setenv("LOCAL_RANK", str(rank))
        assert pick() == torch.device("cpu")


ONLY_CPU = 'This machine has only the CPU: ask for "cpu", or call pick().'
NO_CUDA = f"(torch {torch.__version__} was built without CUDA)"


@pytest.mark.parametrize(
    ("want", "words"),
    [
        ("cuda:7", f'"cuda:7" is not there {NO_CUDA}. {ONLY_CPU}'),
        ("cuda", f'"cuda" is not there {NO_CUDA}. {ONLY_CPU}'),
        (torch.device("cuda", 7), f'"cuda:7" is not there {NO_CUDA}. {ONLY_CPU}'),
        ("mps", f'"mps" is not there. {ONLY_CPU}'),
        ("cpu:3", f'"cpu:3" is not there. {ONLY_CPU}'),
        (0, f"0 is the index of an accelerator that is not there. {ONLY_CPU}"),
        (-1, '-1 is what `Tensor.get_device()` says of a tensor on the CPU; to ask for the CPU, say "cpu". This'),
        (-2, f"-2 is no index: accelerators are counted from 0. {ONLY_CPU}"),
        ("gpu", '"gpu" is not a name torch knows: it calls NVIDIA and AMD GPUs "cuda", Apple\'s "mps" and'),
        ("tpu", '"tpu" is reached through PyTorch/XLA: `xla.setup` for one core, `xla.launch` for all of them.'),
        ("xla:0", '"xla:0" is reached through PyTorch/XLA'),
        ("CUDA", '"CUDA" is not a name torch knows: names are lower-case and without spaces, as "cuda".'),
        ("banana", '"banana" is not a name torch knows: names look like "cpu", "cuda", "cuda:0" or "mps".'),
        ("", '"" is not a name torch knows: names look like'),
        (3.5, '3.5 (float) names no device: give a name as "cpu" or "cuda:0", the index of an accelerator'),
        (True, "True (bool) names no device"),
        ([0], "[0] (list) names no device"),
    ],
)
def test_pick_what_is_not_there(monkeypatch, want, words):
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: False)
    with pytest.raises(DeviceError) as caught:
        pick(want)
    assert str(caught.value).startswith(words)
    assert str(caught.value).endswith(ONLY_CPU)


@pytest.mark.parametrize("want", ["cuda:7", 7])
def test_pick_past_the_last_gpu_lists_what_is_there(gpus, want):
    gpus(2)
    with pytest.raises(DeviceError, match=r"has cpu, cuda:0, cuda:1: ask for one of them, or call pick\(\)"):
        pick(want)


def test_pick_past_the_last_of_many(gpus):
    gpus(8)
    with pytest.raises(DeviceError, match="This machine has cpu, cuda:0, …, cuda:7: ask"):
        pick("cuda:8")


def test_pick_with_a_broken_driver_says_why(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", fails)
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    with pytest.raises(DeviceError, match=r'"cuda" is not there \(cuda cannot be used: RuntimeError: CUDA driver init'):
        pick("cuda")


# ---- the card -------------------------------------------------------------------------------------------------------


def test_runs():
    machine = replace(discover(), cores=2.0)
    assert machine.runs(4) == "4 ranks share 2 CPU cores; gloo"
    assert machine.runs(2) == "2 ranks on 2 CPU cores; gloo"
    assert machine.runs(1) == "1 rank on 2 CPU cores; gloo"
    assert replace(machine, cores=1.0).runs(4) == "4 ranks share 1 CPU core; gloo"
    assert replace(machine, cores=0.5).runs(1) == "1 rank on 0.5 CPU cores; gloo"


def test_card_and_text_say_the_same(gpus):
    gpus(8)
    machine = replace(discover(), cores=1.5, cores_total=8, memory=4 * GIB, memory_total=64 * GIB, memory_available=GIB)
    page, text = machine._repr_html_(), repr(machine)
    for row in machine.rows():
        for words in (row.what, row.here, row.how):
            assert words in page
            assert words in text
    assert "1.5 of 8 cores" in text
    assert "4 GiB of 64 GiB · 1 GiB free now" in text
    assert 'aria-label="2 of 8"' in page
    assert 'aria-label="75 % used"' in page


def test_card_follows_the_theme():
    page = discover()._repr_html_()
    assert "color:inherit" in page
    assert not re.search(r"background:#?(fff|white|000|black)", page)
    assert not re.search(r"<script|https?://", page)


def test_card_escapes():
    machine = replace(discover(), notes=("<b>bold</b>",))
    assert "&lt;b&gt;bold" in machine._repr_html_()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.device_count(), reason="needs one CUDA GPU")
def test_this_gpu(monkeypatch):
    monkeypatch.undo()
    machine = discover()
    assert machine.accelerators[0].title == torch.cuda.get_device_name(0)
    assert machine.accelerators[0].capability == torch.cuda.get_device_capability(0)
    assert len(machine.accelerators) == torch.cuda.device_count()
    assert torch.ones(1, device=pick()).device == pick()
    assert devices.pick("cuda:0") == torch.device("cuda", 0)
