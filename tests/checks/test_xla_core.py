"""The exercises on one TPU core: published solutions pass, plausible wrong answers fail in words."""

import pytest
import torch
from torch.nn.functional import pad

from course_utils import check, xla


@pytest.fixture(scope="module", autouse=True)
def core():
    pytest.importorskip("torch_xla")
    xla.setup()


def filled(lines, to=64, value=0):
    return torch.stack([pad(line, (0, to - len(line)), value=value) for line in lines])


def masked_mean(lines, table, to):
    ids, real = filled(lines, to).to(table.device), filled([torch.ones(len(x)) for x in lines], to).to(table.device)
    return (table[ids] * real[:, :, None]).sum(1) / real.sum(1, keepdim=True)


@pytest.mark.parametrize("name", ["remove_recompiles", "read_once", "count_compiles"])
def test_solution(name):
    exercise = getattr(check, name)
    for again in (1, 2):  # the second time programs are in torch_xla's cache
        verdict = exercise(exercise.published)
        assert verdict, f"{again}: {verdict}"


def in_three_buckets(lines, table):
    import torch_xla

    means = []
    for ids in lines:
        size = next(size for size in (16, 32, 64) if len(ids) <= size)
        means.append(masked_mean([ids], table, size)[0])
        torch_xla.sync()
    return torch.stack(means)


def test_remove_recompiles_by_buckets():
    verdict = check.remove_recompiles(in_three_buckets)
    assert verdict, str(verdict)
    assert "4 compiles" in verdict.text


def as_given(lines, table):
    import torch_xla

    means = []
    for ids in lines:
        means.append(table[ids.to(table.device)].mean(0))
        torch_xla.sync()
    return torch.stack(means)


def up_to_the_longest(lines, table):
    return masked_mean(lines, table, max(map(len, lines)))


def without_sync(lines, table):
    return torch.stack([table[ids.to(table.device)].mean(0) for ids in lines])


def filling_counts(lines, table):
    return table[filled(lines).to(table.device)].mean(1)


def divided_by_64(lines, table):
    real = filled([torch.ones(len(x)) for x in lines]).to(table.device)
    return (table[filled(lines).to(table.device)] * real[:, :, None]).mean(1)


def on_the_cpu(lines, table):
    vectors = table.cpu()
    return torch.stack([vectors[ids].mean(0) for ids in lines]).to(table.device)


def left_on_the_cpu(lines, table):
    return torch.stack([table.cpu()[ids].mean(0) for ids in lines])


def first_line_only(lines, table):
    return masked_mean(lines[:1], table, 64)


@pytest.mark.parametrize(
    ("answer", "words", "expected", "got"),
    [
        (as_given, "too much was compiled", "at most 4 compiles in 6 calls", "in 1 call"),
        (up_to_the_longest, "too much was compiled", "at most 4 compiles in 6 calls", "5 compiles in 5 calls"),
        (without_sync, "too much was compiled", "at most 4 compiles in 6 calls", "5 compiles in 5 calls"),
        (filling_counts, "filled up count in the mean", "tensor of shape (3,)", "tensor of shape (3,)"),
        (divided_by_64, "divided by 64", "tensor of shape (3,)", "tensor of shape (3,)"),
        (on_the_cpu, "without reading from it", "no download", "0 programs, 1 download"),
        (left_on_the_cpu, "to stay on the XLA device", "a tensor on xla", "on cpu"),
        (first_line_only, "shape (12, ", "shape (12, ", "shape (1, "),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_remove_recompiles_wrong(answer, words, expected, got):
    verdict = check.remove_recompiles(answer)
    assert verdict.state == "wrong"
    assert words in verdict.text
    assert expected in verdict.expected
    assert got in verdict.got


def read_at_every_step(step, batches):
    return [step(x, y).item() for x, y in batches]


def read_one_by_one(step, batches):
    import torch_xla

    losses = []
    for x, y in batches:
        losses.append(step(x, y))
        torch_xla.sync()
    return [loss.item() for loss in losses]


def one_large_program(step, batches):
    return torch.stack([step(x, y).detach() for x, y in batches]).tolist()


def not_read(step, batches):
    import torch_xla

    losses = []
    for x, y in batches:
        losses.append(step(x, y).detach())
        torch_xla.sync()
    return losses


def two_programs(step, batches):
    import torch_xla

    losses = []
    for x, y in batches:
        losses.append(step(x, y).detach())
        torch_xla.sync()
        losses[-1] = losses[-1] * 1.0
        torch_xla.sync()
    return torch.stack(losses).tolist()


@pytest.mark.parametrize(
    ("answer", "words", "got"),
    [
        (read_at_every_step, "read one by one", "6 downloads"),
        (read_one_by_one, "read one by one", "6 downloads"),
        (one_large_program, "several steps waited in one graph", "program"),
        (not_read, "to be floats", "tensor"),
        (two_programs, "more than one program", "13 programs"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_read_once_wrong(answer, words, got):
    verdict = check.read_once(answer)
    assert verdict.state == "wrong"
    assert words in verdict.text
    assert got in verdict.got
    assert verdict.expected


@pytest.mark.parametrize(
    ("answer", "case"),
    [
        (lambda samples, batch, bucket: -(-samples // batch), "(100, 32, 1)"),
        (lambda samples, batch, bucket: 1 + (samples % batch > 0), "(100, 32, 32)"),
        (lambda samples, batch, bucket: 1 + (samples % batch % bucket > 0), "(100, 32, 1)"),
    ],
)
def test_count_compiles_wrong(answer, case):
    verdict = check.count_compiles(answer)
    assert verdict.state == "wrong"
    assert f"count_compiles{case}" in verdict.text
    assert verdict.expected != verdict.got


def test_an_answer_that_raises():
    def remove_recompiles(lines, table):
        return table[lines[0][:, 0]]

    verdict = check.remove_recompiles(remove_recompiles)
    assert verdict.state == "wrong"
    assert verdict.line.endswith("return table[lines[0][:, 0]]")
    assert "course_utils" not in str(verdict)


def test_stubs():
    def read_once(step, batches): ...

    assert check.read_once(read_once).state == "not yet"
