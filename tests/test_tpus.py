"""TPUs on a PCI bus of files: which numbers are slices, what the card says, where ranks run.

That ranks compute on them is tested by nobody here: it takes TPUs, and TorchTPU.
"""

import os

import pytest
import torch
import torch.distributed as dist

from course_utils import DeviceError, discover, launch, tpus
from course_utils.ranks.launcher import placement
from tests.python import python
from tests.tables import rows

SLICES = """
kind   chips  numbers of ranks
v5e    1      1
v5e    4      1, 4
v5e    8      1, 4, 8
v4     4      1, 2, 4
7x     2      2
v2/v3  8      0
"""  # TorchTPU does not take v2 and v3


@pytest.mark.parametrize(("kind", "count", "ranks"), rows(SLICES))
def test_numbers_of_chips_that_are_slices(host, kind, count, ranks):
    host(kind, int(count))
    numbers = [int(number) for number in ranks.split(",")]
    assert [*tpus.slices()] == [number for number in numbers if number]
    assert discover().ranks == (numbers[-1] if numbers[-1] > 1 else 4)


def test_the_card(host):
    host("v5e", 4)
    card = repr(discover())
    assert "TPU      ● native     4 \N{MULTIPLICATION SIGN} TPU v5e · torch_tpu 0.2.0\n" in card
    assert "ranks    ● native     4 ranks on 4 TPUs; tpu_dist · real processes" in card
    assert "GPU" not in card
    assert "(2 of 4 TPUs are no slice); gloo" in discover().runs(2)
    assert "(4 TPUs: too few); gloo" in discover().runs(8)


def test_without_torchtpu_ranks_are_on_the_cpu(host):
    host("v5e", 4, torch_tpu="")
    assert not tpus.slices()
    assert placement(4, None) == (4, "cpu")
    assert "4 \N{MULTIPLICATION SIGN} TPU v5e · this kernel has no torch_tpu" in repr(discover())


def test_ranks_get_slices(host):
    host("v5e", 4)
    placed = {None: (4, "tpu"), 1: (1, "tpu"), 2: (2, "cpu")}
    assert {ranks: placement(ranks, None) for ranks in placed} == placed
    assert placement(4, "cpu") == (4, "cpu")
    with pytest.raises(DeviceError, match='or on "tpu", one device each, if they are 1, 4'):
        placement(2, "tpu")


def test_a_kernel_that_has_the_tpu(host, monkeypatch, capsys):
    host("v5e", 4)
    monkeypatch.setattr(tpus, "is_open", lambda: True)
    assert placement(4, None) == (4, "cpu")
    assert "The ranks run on the CPU: this kernel has opened the TPU" in capsys.readouterr().out
    assert placement(4, "cpu") == (4, "cpu")
    assert not capsys.readouterr().out
    with pytest.raises(DeviceError, match=r"this kernel has opened the TPU.*Restart the kernel"):
        placement(4, "tpu")


def test_what_torchtpu_finds_in_a_rank(host):
    host("v5e", 8)
    env = tpus.rank_environment(4)
    assert env["TORCH_TPU_TOPOLOGY"] == "2,2,1"
    addresses = env["TORCH_TPU_SLICEBUILDER_ADDRESSES"].split(",")
    assert len(set(addresses)) == 4


def test_a_batch_of_messages_begins_with_its_receives(monkeypatch):
    def exchange():
        posted, post = [], dist.batch_isend_irecv

        def noted(batch):
            posted.extend(message.op.__name__ for message in batch)
            return post(batch)

        monkeypatch.setattr(dist, "batch_isend_irecv", noted)
        tpus.post_receives_first()
        mine, arrives = torch.tensor(dist.get_rank()), torch.tensor(-1)
        other = 1 - dist.get_rank()
        _, receive = dist.batch_isend_irecv(
            [dist.P2POp(dist.isend, mine, other), dist.P2POp(dist.irecv, arrives, other)]
        )
        receive.wait()
        return posted, arrives.item()

    results = launch(exchange, ranks=2, device="cpu").results
    assert results == [(["irecv", "isend"], 1), (["irecv", "isend"], 0)]


def test_ranks_on_the_cpu_load_no_backend(monkeypatch):
    monkeypatch.setenv("TORCH_DEVICE_BACKEND_AUTOLOAD", "1")

    def autoload():
        return os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"]

    assert launch(autoload, ranks=2, device="cpu").results == ["0", "0"]


A_KERNEL = """
import warnings
import torch
from course_utils import pick, tpus

warnings.simplefilter("error")
tpus.slices = lambda: {4: "2,2,1"}
assert str(pick(ranks=4)) == "tpu"
assert not torch.accelerator.is_available()
assert torch.accelerator.current_accelerator(check_available=True) is None
torch.manual_seed(0)
torch.ones(1, requires_grad=True).sum().backward()
assert not tpus.is_open()
"""


def test_a_kernel_that_has_named_the_tpu_goes_on_without_it():
    python("-c", A_KERNEL)
