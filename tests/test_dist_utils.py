"""What a rank takes and writes outside of a launch: a device of its own, lines of metrics."""

import json
import warnings

import pytest
import torch

from course_utils import LivePlot, dist_utils, report


@pytest.mark.parametrize(
    ("option", "count", "kind", "took"),
    [
        (None, 1, "mps", "cpu"),
        (None, 2, "cuda", "cuda:1"),
        ("cpu", 2, "cuda", "cpu"),
        (None, 1, "cuda", "has 1 of the 2 cuda devices .*--device cpu"),
        ("cuda", 0, "cuda", "has 0 of the 2 cuda"),  # a host whose driver is broken
    ],
)
def test_a_rank_takes_a_device_of_its_own_or_raises(option, count, kind, took, gpus, monkeypatch):
    gpus(count, kind)
    joined = []
    monkeypatch.setattr(torch.accelerator, "set_device_index", joined.append)
    monkeypatch.setattr(dist_utils, "join", lambda backend, *more: joined.append(backend))
    monkeypatch.setattr(dist_utils, "ON_CPU", {})
    for name, value in {"RANK": "1", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    if "has" in took:
        with pytest.raises(RuntimeError, match=took):
            dist_utils.init_distributed(option)
        assert joined == []
    else:
        dist_utils.init_distributed(option)
        assert str(dist_utils.pick()) == took
        assert joined == (["gloo"] if took == "cpu" else [1, "nccl"])


def test_under_torchrun_report_writes_what_follow_reads(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    report(loss=9.0)  # nobody would read it
    assert not [*tmp_path.iterdir()]
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        report(3, loss=torch.tensor(1.5 + rank))
        dist_utils.report(4, loss=2.5 + rank)
    plot = LivePlot("loss")
    plot.follow("runs")
    assert plot.data["loss"] == {0: ([3, 4], [1.5, 2.5]), 1: ([3, 4], [2.5, 3.5])}
    assert capsys.readouterr().out.count("loss") == 2, "rank 0 prints its own"
    with pytest.raises(TypeError):
        dist_utils.report(rank=1)


def test_an_exported_report_takes_what_a_ranks_takes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RANK", "1")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dist_utils.report(torch.tensor(3), loss=torch.ones((), requires_grad=True))
    record = json.loads((tmp_path / "runs/rank1.jsonl").read_text())
    assert (record["step"], record["loss"]) == (3, 1.0)
