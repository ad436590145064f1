"""A function that joins and leaves the process group by itself, as a script does."""

import os
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import rpc
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel as DDP

from course_utils import RankError, launch
from tests.kernel import posix

pytestmark = posix


def joined(*args, **kwargs):
    """How many ranks meet."""
    dist.init_process_group(*args, **kwargs)
    total = torch.ones(1)
    dist.all_reduce(total)
    return total.item()


def rank():
    return int(os.environ["RANK"])


@pytest.mark.parametrize("backend", [None, "gloo", "GLOO", "cpu:gloo,cuda:nccl"])
def test_what_launch_has_joined_may_be_joined_once_more(backend):
    assert launch(lambda: joined(backend), ranks=2, device="cpu").results == [2, 2]
    own = launch(lambda: joined("gloo", rank=rank(), world_size=2), ranks=2, device="cpu")
    assert own.results == [2, 2]


def test_who_was_refused_may_ask_again():
    def train():
        with pytest.raises(RuntimeError, match="asks for backend"):
            dist.init_process_group("nccl")
        return joined("gloo")

    assert launch(train, ranks=2, device="cpu").results == [2, 2]


def test_the_functions_own_limit_of_a_collective_holds():
    def train():
        dist.init_process_group("gloo", timeout=timedelta(seconds=0.5))
        if rank() == 0:
            dist.barrier()

    with pytest.raises(RankError, match="Timed out") as caught:
        launch(train, ranks=2, device="cpu")
    assert caught.value.cause != "TimeLimit"


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (
            {"backend": "nccl"},
            'asks for backend="nccl": leave that out, or write backend="gloo"',
        ),
        (
            {"rank": 5, "world_size": 8},
            "asks for rank=5, world_size=8: leave that out, or, for another group, give launch "
            "init_group=False",
        ),
    ],
)
def test_another_group_than_launch_has_joined_is_refused(asked, words):
    with pytest.raises(RankError, match="launch has joined the process group already") as caught:
        launch(lambda: dist.init_process_group(**asked), ranks=2, device="cpu")
    assert words in str(caught.value)
    assert words.endswith("init_group=False") or "init_group" not in str(caught.value)


def at_localhost(tmp_path):
    os.environ["MASTER_ADDR"] = "localhost"
    return joined("gloo", rank=rank(), world_size=2)


def at_its_own_port(tmp_path):
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", "29555"
    return joined("gloo", rank=rank(), world_size=2)


def by_url(tmp_path):
    return joined("gloo", init_method="tcp://127.0.0.1:29556", rank=rank(), world_size=2)


def by_url_of_the_launch(tmp_path):
    url = f"tcp://localhost:{os.environ['MASTER_PORT']}"
    return joined("gloo", init_method=url, rank=rank(), world_size=2)


def by_file(tmp_path):
    return joined("gloo", init_method=f"file://{tmp_path}/met", rank=rank(), world_size=2)


def by_a_store(tmp_path):
    store = dist.TCPStore("127.0.0.1", 29557, 2, rank() == 0)
    return joined("gloo", store=store, rank=rank(), world_size=2)


def by_the_environment(tmp_path):
    return joined(init_method="env://?world_size=2")


@pytest.mark.parametrize(
    "join",
    [
        at_localhost,
        at_its_own_port,
        by_url,
        by_url_of_the_launch,
        by_file,
        by_a_store,
        by_the_environment,
    ],
)
def test_ranks_meet_where_the_function_says(join, tmp_path):
    run = launch(join, tmp_path, ranks=2, device="cpu", init_group=False)
    assert run.results == [2, 2]
    assert run.backend is None
    assert "init_group=False" in repr(run)


def by_a_mesh():
    return init_device_mesh("cpu", (2,)).size()


def test_a_store_of_its_own_is_used_also_where_launch_has_joined():
    def met():
        store = dist.TCPStore("127.0.0.1", 29559, 2, rank() == 0)
        total = joined("gloo", store=store, rank=rank(), world_size=2)
        dist.barrier()
        return total, store.num_keys() > 1

    assert launch(met, ranks=2, device="cpu").results == [(2, True)] * 2


def test_torch_and_programs_take_it_for_torchrun():
    names = ("RUN_ID", "RESTART_COUNT", "MAX_RESTARTS", "USE_AGENT_STORE")
    needed = {f"TORCHELASTIC_{name}" for name in names}
    needed |= {"RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "MASTER_ADDR"}
    needed |= {"WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE"}

    def missing():
        return dist.is_torchelastic_launched(), needed - os.environ.keys()

    assert launch(missing, ranks=2, device="cpu").results == [(True, set())] * 2


@pytest.mark.parametrize("join", [joined, by_a_mesh])
@pytest.mark.parametrize("init_group", [True, False])
def test_a_group_may_be_left_and_another_joined(init_group, join):
    def train():
        totals = []
        for _ in range(3):
            totals.append(join())
            dist.destroy_process_group()
        return totals, dist.is_initialized()

    run = launch(train, ranks=2, device="cpu", init_group=init_group)
    assert run.results == [([2, 2, 2], False)] * 2


def test_a_model_may_outlive_its_group():
    """torch frees the group with the model, and may wait for ever, in half of the launches."""

    def train():
        model = DDP(nn.Sequential(nn.Linear(10, 10), nn.ReLU(), nn.Linear(10, 5)))
        model(torch.randn(20, 10)).square().mean().backward()
        dist.destroy_process_group()

    for _ in range(10):
        launch(train, ranks=2, device="cpu")


@pytest.mark.slow
def test_who_waits_to_join_is_said_like_who_waits_in_a_collective():
    def train():
        if rank() == 1:
            dist.init_process_group(
                "gloo", init_method="tcp://127.0.0.1:29558", rank=1, world_size=2
            )

    with pytest.raises(RankError, match="rank 1 waits in init_process_group here") as caught:
        launch(train, ranks=2, device="cpu", init_group=False, time_limit=8)
    assert "rank 0 had returned" in str(caught.value)


def test_accelerate_finds_the_group():
    accelerate = pytest.importorskip("accelerate")
    run = launch(lambda: accelerate.Accelerator().num_processes, ranks=2, device="cpu")
    assert run.results == [2, 2]


def steps(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()


def alone():
    steps(nn.Linear(2, 1))


def alone_and_left():
    alone()
    dist.destroy_process_group()


def with_ddp():
    steps(DDP(nn.Linear(2, 1)))
    dist.destroy_process_group()


def with_a_message():
    alone()
    way = dist.send if rank() == 0 else dist.recv
    way(torch.ones(1), 1 - rank())


def with_a_group_of_one():
    alone()
    group = dist.new_group([0])
    if rank() == 0:
        dist.all_reduce(torch.ones(1), group=group)


def with_rpc():
    alone()
    rpc.init_rpc(f"rank{rank()}", rank=rank(), world_size=2)
    rpc.shutdown()


@pytest.mark.parametrize(
    ("train", "said"),
    [
        (alone, True),
        (alone_and_left, True),
        (with_ddp, False),
        (with_a_message, False),
        (with_a_group_of_one, False),
        (with_rpc, False),
        (dist.get_rank, False),
    ],
)
def test_ranks_that_train_alone_do_not_look_like_a_success(train, said, capsys):
    run = launch(train, ranks=2, device="cpu")
    printed = capsys.readouterr().out
    assert printed.count("tell Trainer or Fabric devices=2") == said
    assert not any("Trainer" in output for output in run.output)


def test_one_rank_alone_or_without_a_group_is_no_news(capsys):
    launch(alone, ranks=1, device="cpu")
    launch(alone, ranks=2, device="cpu", init_group=False)
    assert not capsys.readouterr().out
