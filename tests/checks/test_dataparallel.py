"""Scatter and gather: right answers in different styles pass, plausible wrong ones fail in true words."""

import pytest
import torch

from course_utils import check
from tests.checks.judging import judge


@pytest.mark.parametrize("name", ["scatter", "gather"])
def test_the_published_solution_passes(name):
    exercise = getattr(check, name)
    assert exercise(exercise.published), str(exercise(exercise.published))


def tensors(batch, devices):
    return [part.to(device) for part, device in zip(torch.chunk(batch, len(devices)), devices, strict=False)]


def by_index(batch, devices):
    """Number of parts first, then every part by itself."""

    def parts(value):
        if torch.is_tensor(value):
            return len(value.chunk(len(devices)))
        if isinstance(value, (dict, tuple)):
            return min(parts(v) for v in (value.values() if isinstance(value, dict) else value))
        return len(devices)

    def part(value, i):
        if torch.is_tensor(value):
            return value.chunk(len(devices))[i].to(devices[i])
        if isinstance(value, dict):
            return {key: part(inner, i) for key, inner in value.items()}
        return tuple(part(inner, i) for inner in value) if isinstance(value, tuple) else value

    return [part(batch, i) for i in range(parts(batch))]


def in_a_tuple(batch, devices):
    return tuple(by_index(batch, devices))


def by_slices(batch, devices):
    if torch.is_tensor(batch):
        each = -(-len(batch) // len(devices))
        starts = range(0, len(batch), each)
        return [batch[s : s + each].to(d) for s, d in zip(starts, devices, strict=False)]
    if isinstance(batch, dict):
        cut = [[(key, part) for part in by_slices(value, devices)] for key, value in batch.items()]
        return [dict(pairs) for pairs in zip(*cut, strict=False)]
    if isinstance(batch, tuple):
        return [tuple(parts) for parts in zip(*[by_slices(value, devices) for value in batch], strict=False)]
    return [batch for _ in devices]


def with_append(batch, devices):
    parts = []
    if isinstance(batch, torch.Tensor):
        for i, part in enumerate(batch.split(-(-batch.size(0) // len(devices)))):
            parts.append(part.to(device=devices[i], non_blocking=True))
    elif isinstance(batch, dict):
        values = {key: with_append(value, devices) for key, value in batch.items()}
        for i in range(min(len(v) for v in values.values())):
            parts.append({key: value[i] for key, value in values.items()})
    elif isinstance(batch, tuple):
        values = [with_append(value, devices) for value in batch]
        for i in range(min(map(len, values))):
            parts.append(tuple(value[i] for value in values))
    else:
        parts += len(devices) * [batch]
    return parts


@pytest.mark.parametrize("answer", [by_index, in_a_tuple, by_slices, with_append])
def test_scatter_in_other_styles(answer):
    assert check.scatter(answer), str(check.scatter(answer))


def of_a_batch(tensor=tensors, dicts=None, tuples=None, rest=lambda value, devices: [value] * len(devices)):
    """The published solution with one branch replaced."""

    def scatter(batch, devices):
        if torch.is_tensor(batch):
            return tensor(batch, devices)
        if isinstance(batch, dict):
            if dicts:
                return dicts(scatter, batch, devices)
            parts = [scatter(value, devices) for value in batch.values()]
            return [dict(zip(batch, values, strict=True)) for values in zip(*parts, strict=False)]
        if isinstance(batch, tuple):
            if tuples:
                return tuples(scatter, batch, devices)
            return list(zip(*(scatter(value, devices) for value in batch), strict=False))
        return rest(batch, devices)

    return scatter


def in_place(scatter, batch, devices):
    for key in batch:
        batch[key] = scatter(batch[key], devices)
    return [{key: parts[i] for key, parts in batch.items()} for i in range(min(map(len, batch.values())))]


def for_every_device(scatter, batch, devices):
    parts = {key: scatter(value, devices) for key, value in batch.items()}
    return [{key: p[i] if i < len(p) else p[-1] for key, p in parts.items()} for i in range(len(devices))]


def by_the_first(scatter, batch, devices):
    parts = {key: scatter(value, devices) for key, value in batch.items()}
    return [{key: value[i] for key, value in parts.items()} for i in range(len(next(iter(parts.values()))))]


def whole(scatter, batch, devices):
    return [batch] * len(devices)


def as_lists(scatter, batch, devices):
    return [list(parts) for parts in zip(*(scatter(value, devices) for value in batch), strict=False)]


def text_in_pieces(value, devices):
    if not hasattr(value, "__len__"):
        return [value] * len(devices)
    return [value[i :: len(devices)] for i in range(len(devices))]


def numbers_only(value, devices):
    return [value] * len(devices) if isinstance(value, (int, float)) else None


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (of_a_batch(tensor=lambda b, d: [b[i :: len(d)] for i in range(len(d))]), "10 rows, 4 devices): part 0"),
        (of_a_batch(tensor=lambda b, d: list(b.tensor_split(len(d)))), "10 rows, 4 devices): part 2"),
        (of_a_batch(tensor=lambda b, d: list(b.chunk(len(d)))), "part 1 is on the wrong device"),
        (of_a_batch(tensor=lambda b, d: [p.detach() for p in tensors(b, d)]), "history"),
        (of_a_batch(dicts=in_place), "the batch that was given changed"),
        (of_a_batch(dicts=for_every_device), "the number of parts"),
        (of_a_batch(dicts=by_the_first), "It raised IndexError"),
        (of_a_batch(dicts=whole), "part 0['x']"),
        (of_a_batch(tuples=whole), "scatter((images, labels), 2 devices): part 0[0]"),
        (of_a_batch(tuples=as_lists), "scatter((images, labels), 2 devices): part 0 is something else"),
        (of_a_batch(rest=text_in_pieces), '"digits", 4 devices): part 0'),
        (of_a_batch(rest=numbers_only), '"digits", 4 devices)'),
        (tensors, "It raised"),
    ],
)
def test_scatter_wrong(answer, says):
    verdict = check.scatter(answer)
    assert verdict.state in ("wrong", "not yet"), str(verdict)
    assert says in str(verdict) or verdict.state == "not yet"


def reshaped(outputs, device):
    if isinstance(outputs[0], dict):
        return {key: reshaped([o[key] for o in outputs], device) for key in outputs[0]}
    return torch.cat([o.reshape(1) if o.dim() == 0 else o for o in outputs]).to(device)


def stacked(outputs, device):
    first = outputs[0]
    if isinstance(first, dict):
        return {key: stacked([o[key] for o in outputs], device) for key in first}
    outputs = [o.to(device) for o in outputs]
    return torch.stack(outputs) if first.ndim == 0 else torch.concatenate(outputs, dim=0)


def unsqueezed(outputs, device):
    if isinstance(outputs[0], dict):
        found = {}
        for key in outputs[0]:
            found[key] = unsqueezed([output[key] for output in outputs], device)
        return found
    return torch.vstack([o.to(device) for o in outputs]) if outputs[0].ndim > 1 else torch.hstack(outputs).to(device)


def with_zip(outputs, device):
    if isinstance(outputs[0], dict):
        columns = zip(*(output.values() for output in outputs), strict=True)
        return {key: with_zip(list(column), device) for key, column in zip(outputs[0], columns, strict=True)}
    return torch.cat([o.view(-1) if o.dim() < 1 else o for o in outputs], 0).to(device=torch.device(device))


@pytest.mark.parametrize("answer", [reshaped, stacked, unsqueezed, with_zip])
def test_gather_in_other_styles(answer):
    assert check.gather(answer), str(check.gather(answer))


def of_outputs(tensor=lambda o, d: torch.cat([torch.atleast_1d(t) for t in o]).to(d), dicts=None):
    def gather(outputs, device):
        if isinstance(outputs[0], dict):
            if dicts:
                return dicts(gather, outputs, device)
            return {key: gather([o[key] for o in outputs], device) for key in outputs[0]}
        return tensor(outputs, device)

    return gather


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (of_outputs(lambda o, d: torch.stack(o).to(d)), "It raised RuntimeError"),
        (of_outputs(lambda o, d: torch.cat(o).to(d)), "zero-dimensional"),
        (of_outputs(lambda o, d: torch.cat([torch.atleast_1d(t) for t in o[::-1]]).to(d)), "in another order"),
        (of_outputs(lambda o, d: torch.cat([torch.atleast_1d(t) for t in o])), "on the wrong device"),
        (of_outputs(lambda o, d: torch.cat([torch.atleast_1d(t.detach()) for t in o]).to(d)), "history"),
        (of_outputs(lambda o, d: torch.stack(list(o)).to(d) if o[0].dim() < 2 else torch.cat(o).to(d)), "raised"),
        (of_outputs(lambda o, d: torch.cat([t.reshape(-1, t.shape[-1]) if t.dim() > 1 else torch.atleast_1d(t)
                                            for t in o]).to(d)), "shape (2, 3, 4) and (1, 3, 4)"),
        (of_outputs(dicts=lambda g, o, d: {k: g([x[k] for x in o], d) for k in ("logits", "loss")}), "KeyError"),
        (of_outputs(dicts=lambda g, o, d: {k: g([x.pop(k) for x in o], d) for k in list(o[0])}), "given changed"),
        (of_outputs(dicts=lambda g, o, d: [g(list(x.values()), d) for x in o]), "raised"),
        (of_outputs(lambda o, d: torch.cat([torch.atleast_1d(t) for t in o]).float().to(d)), "has another type"),
        (of_outputs(lambda o, d: torch.stack(o).mean(0) if o[0].dim() == 0 else torch.cat(o).to(d)), "two losses"),
    ],
)
def test_gather_wrong(answer, says):
    judge("gather", answer, says)


def test_empty():
    assert check.scatter(lambda batch, devices: None).state == "not yet"
    assert check.gather(lambda outputs, device: None).state == "not yet"
