import pytest
import torch

from course_utils import check


@pytest.mark.parametrize("name", ["replica_shapes", "scatter", "gather"])
def test_the_published_solution_passes(name):
    exercise = getattr(check, name)
    assert exercise(exercise.published), str(exercise(exercise.published))


def test_replica_shapes_with_equal_parts():
    def replica_shapes(rows, devices):
        each = rows // devices
        return [((each, 2), (each, 5))] * devices

    verdict = check.replica_shapes(replica_shapes)
    assert verdict.text.startswith("replica_shapes(30, 4)")
    assert "(8, 2)" in verdict.expected
    assert "(7, 2)" in verdict.got


def test_replica_shapes_with_a_part_for_every_device():
    def replica_shapes(rows, devices):
        return [((len(range(rows)[i::devices]), 2), (len(range(rows)[i::devices]), 5)) for i in range(devices)]

    assert "(8, 2)" in check.replica_shapes(replica_shapes).expected
    assert "expected, this is an int" in check.replica_shapes(lambda rows, devices: rows).text
    assert check.replica_shapes(lambda rows, devices: None).state == "not yet"


def test_replica_shapes_as_torch_gives_them():
    def replica_shapes(rows, devices):
        return [(part.shape, torch.nn.Linear(2, 5)(part).shape) for part in torch.rand(rows, 2).chunk(devices)]

    assert check.replica_shapes(replica_shapes)


def test_scatter_that_strides():
    verdict = check.scatter(lambda batch, devices: [batch[i :: len(devices)] for i in range(len(devices))])
    assert verdict.text.startswith("scatter(10 rows, 4 devices)")
    assert "shape (3, 2)" in verdict.expected


def test_scatter_that_moves_nothing():
    verdict = check.scatter(lambda batch, devices: list(batch.chunk(len(devices))))
    assert verdict.expected == "['cpu', 'meta']"
    assert verdict.got == "['cpu', 'cpu']"


def test_scatter_that_loses_the_history_or_knows_no_dict():
    def tensors_only(batch, devices):
        return [part.to(device) for part, device in zip(batch.chunk(len(devices)), devices, strict=False)]

    assert "history" in check.scatter(lambda batch, devices: [p.detach() for p in tensors_only(batch, devices)]).text
    verdict = check.scatter(tensors_only)
    assert verdict.text == "It raised AttributeError: 'dict' object has no attribute 'chunk'"
    assert "batch.chunk" in verdict.line


def test_gather_that_stacks_or_detaches_or_fails_on_losses():
    assert "raised RuntimeError" in check.gather(lambda outputs, device: torch.stack(outputs).to(device)).text
    verdict = check.gather(lambda outputs, device: torch.cat(outputs).to(device))
    assert "zero-dimensional" in verdict.text
    assert "torch.cat(outputs)" in verdict.line

    def detached(outputs, device):
        return torch.cat([output.detach().reshape(-1, *output.shape[1:]) for output in outputs]).to(device)

    assert "history" in check.gather(detached).text


def test_gather_in_the_wrong_order_or_place():
    verdict = check.gather(lambda outputs, device: torch.cat(outputs[::-1]).to(device))
    assert "off by" in verdict.text
    verdict = check.gather(lambda outputs, device: torch.cat(outputs))
    assert (verdict.expected, verdict.got) == ("'meta'", "'cpu'")
