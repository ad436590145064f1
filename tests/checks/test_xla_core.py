"""The exercises on one TPU core: right answers in several styles pass, plausible wrong ones fail in words."""

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


def in_buckets_of_16(lines, table):
    import torch_xla

    means = []
    for ids in lines:
        means.append(masked_mean([ids], table, -(-len(ids) // 16) * 16)[0])
        torch_xla.sync()
    return torch.stack(means)


def by_one_hot(lines, table):
    counts = torch.stack([torch.bincount(ids, minlength=len(table)).float() / len(ids) for ids in lines])
    return counts.to(table.device) @ table


def with_an_extra_row(lines, table):
    wide = torch.cat([table, torch.zeros(1, table.shape[1]).to(table.device)])
    lengths = torch.tensor([[float(len(ids))] for ids in lines]).to(table.device)
    return wide[filled(lines, value=len(table)).to(table.device)].sum(1) / lengths


def in_place(lines, table):
    lengths = torch.tensor([[float(len(ids))] for ids in lines]).to(table.device)
    real = filled([torch.ones(len(ids)) for ids in lines]).to(table.device)
    for i in range(len(lines)):
        lines[i] = pad(lines[i], (0, 64 - len(lines[i])))
    return (table[torch.stack(lines).to(table.device)] * real[:, :, None]).sum(1) / lengths


def by_product(lines, table):
    real = filled([torch.ones(len(ids)) / len(ids) for ids in lines]).to(table.device)
    return torch.einsum("nl,nlw->nw", real, table[filled(lines).to(table.device)])


def emptied(lines, table):
    result = masked_mean(lines, table, 64)
    lines.clear()
    return result


STYLES = [in_buckets_of_16, by_one_hot, with_an_extra_row, in_place, by_product, emptied]


@pytest.mark.parametrize("answer", STYLES, ids=lambda answer: answer.__name__)
def test_remove_recompiles_in_other_styles(answer):
    verdict = check.remove_recompiles(answer)
    assert verdict, str(verdict)


def in_float64(lines, table):
    return masked_mean(lines, table, 64).double()


def test_another_float_type_is_compared_by_value():
    assert check.remove_recompiles(in_float64)


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


def in_place_and_filled(lines, table):
    lines[:] = [pad(ids, (0, 64 - len(ids))) for ids in lines]
    return table[torch.stack(lines).to(table.device)].mean(1)


def sums(lines, table):
    return masked_mean(lines, table, 64) * 2


def first_line_only(lines, table):
    return masked_mean(lines[:1], table, 64)


@pytest.mark.parametrize(
    ("answer", "words", "expected", "got"),
    [
        (as_given, "too much was compiled", "at most 5 compiles in 8 calls", "in 1 call"),
        (up_to_the_longest, "too much was compiled", "at most 5 compiles in 8 calls", "6 compiles in 6 calls"),
        (without_sync, "too much was compiled", "at most 5 compiles in 8 calls", "6 compiles in 6 calls"),
        (filling_counts, "filled up count in the mean", "line ", "line "),
        (divided_by_64, "divided by 64", "line ", "line "),
        (on_the_cpu, "without reading from it", "no download", "0 programs, 1 download"),
        (left_on_the_cpu, "to stay on the XLA device", "a tensor on xla", "on cpu"),
        (in_place_and_filled, "filled up count in the mean", "line ", "line "),
        (sums, "are not right", "line ", "line "),
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


def six_only(step, batches):
    import torch_xla

    losses = []
    for i in range(6):
        losses.append(step(*batches[i]).detach())
        torch_xla.sync()
    return torch.stack(losses).tolist()


def in_reverse(step, batches):
    return check.read_once.published(step, batches)[::-1]


def mean_only(step, batches):
    losses = check.read_once.published(step, batches)
    return [sum(losses) / len(losses)]


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
        (in_reverse, "The losses of 6 batches", "["),
        (mean_only, "6 of them were expected, these are 1", "["),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_read_once_wrong(answer, words, got):
    verdict = check.read_once(answer)
    assert verdict.state == "wrong"
    assert words in verdict.text
    assert got in verdict.got
    assert verdict.expected


def test_read_once_of_six_batches_only():
    assert "IndexError" in check.read_once(six_only).text


def as_numpy(step, batches):
    import numpy

    return [numpy.float32(loss) for loss in check.read_once.published(step, batches)]


def as_a_tuple(step, batches):
    return tuple(check.read_once.published(step, batches))


def at_the_end(step, batches):
    import torch_xla

    losses = []
    for x, y in batches:
        losses += [step(x, y).detach()]
        torch_xla.sync(wait=True)
    return torch.stack(losses).cpu().tolist()


def concatenated(step, batches):
    import torch_xla

    found = None
    for x, y in batches:
        loss = step(x, y).detach().reshape(1)
        torch_xla.sync()
        found = loss if found is None else torch.cat([found, loss])
    return found.cpu().numpy()


def with_a_context(step, batches):
    import torch_xla

    losses = []
    for x, y in batches:
        with torch_xla.step():
            losses.append(step(x, y).detach())
    return torch.stack(losses).tolist()


@pytest.mark.parametrize("answer", [as_numpy, as_a_tuple, at_the_end, concatenated, with_a_context])
def test_read_once_in_other_styles(answer):
    verdict = check.read_once(answer)
    assert verdict, str(verdict)


def numpys_number(samples, batch, bucket):
    import numpy

    sizes = numpy.array([min(batch, samples - first) for first in range(0, samples, batch)])
    return (numpy.diff(numpy.sort(-(-sizes // bucket))) != 0).sum() + 1


def by_cases(samples, batch, bucket):
    if samples <= batch or samples % batch == 0:
        return 1
    return 1 if -(-(samples % batch) // bucket) == -(-batch // bucket) else 2


@pytest.mark.parametrize("answer", [numpys_number, by_cases])
def test_count_compiles_in_other_styles(answer):
    verdict = check.count_compiles(answer)
    assert verdict, str(verdict)


@pytest.mark.parametrize(
    ("answer", "case"),
    [
        (lambda samples, batch, bucket: -(-samples // batch), "(100, 32, 1)"),
        (lambda samples, batch, bucket: 1 + (samples % batch > 0), "(100, 32, 32)"),
        (lambda samples, batch, bucket: 1 + (samples % batch % bucket > 0), "(100, 32, 1)"),
        (lambda s, b, k: 1 if s <= b else 1 + (1 if s % b and b - s % b >= k else 0), "(52, 20, 16)"),
        (lambda s, b, k: 1 if s % b == 0 or s % b > b - k else 2, "(20, 32, 1)"),
        (lambda s, b, k: len({min(b, s - i) for i in range(0, s, b)}), "(100, 32, 32)"),
        (lambda s, b, k: -(-b // k), "(100, 32, 1)"),
        (lambda s, b, k: 2, "(128, 32, 1)"),
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
