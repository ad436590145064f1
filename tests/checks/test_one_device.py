"""A step on any device, and a run that goes on: right answers in other styles pass, wrong ones fail in true words."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, log_softmax, nll_loss

from course_utils import check
from tests.checks.judging import judge


@pytest.mark.parametrize("name", ["train_step", "resume"])
def test_the_published_solution_passes(name):
    exercise = getattr(check, name)
    assert exercise(exercise.published), str(exercise(exercise.published))


def by_layer(model, optimizer, x, y):
    device = model[0].weight.device
    optimizer.zero_grad(set_to_none=False)
    loss = nn.CrossEntropyLoss()(model(x.to(device)), y.to(device))
    loss.backward()
    optimizer.step()
    return loss.detach()


def with_closure(model, optimizer, x, y):
    weight = next(iter(model.parameters()))
    x, y = x.to(weight), y.to(weight.device)

    def closure():
        optimizer.zero_grad()
        loss = cross_entropy(model(x), y)
        loss.backward()
        return loss

    return optimizer.step(closure).detach()


def zero_last(model, optimizer, x, y):
    device = {p.device for p in model.parameters()}.pop()
    loss = nll_loss(log_softmax(model(x.to(device, non_blocking=True)), 1), y.to(device))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.clone().detach()


def by_hand(model, optimizer, x, y):
    where = next(model.parameters()).get_device()
    where = next(model.parameters()).device if where < 0 else where
    output = model(x.to(where))
    loss = -log_softmax(output, -1)[torch.arange(len(y), device=output.device), y.to(where)].mean()
    weights = list(model.parameters())
    for weight, gradient in zip(weights, torch.autograd.grad(loss, weights), strict=True):
        weight.grad = gradient
    optimizer.step()
    return loss.data


@pytest.mark.parametrize("answer", [by_layer, with_closure, zero_last, by_hand])
def test_train_step_in_other_styles(answer):
    assert check.train_step(answer), str(check.train_step(answer))


def answered(*, zero="before", give=lambda loss, *_: loss.detach(), device=None, reduction="mean", after=None):
    """A step with one thing done otherwise."""

    def train_step(model, optimizer, x, y):
        where = device(model, x) if device else next(model.parameters()).device
        x, y = x.to(where), y.to(where)
        loss = cross_entropy(model(x), y, reduction=reduction)
        if zero == "before":
            optimizer.zero_grad()
        loss.backward()
        if zero == "between":
            optimizer.zero_grad()
        if zero != "no step":
            optimizer.step()
        if after:
            after(model)
        return give(loss, model, x, y)

    return train_step


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (answered(zero="never"), "right after step 1 and wrong after step 2"),
        (answered(zero="between"), "did not change in step 1"),
        (answered(zero="no step"), "did not change in step 1"),
        (answered(reduction="sum"), "not those of one optimizer step with the gradients of the mean"),
        (answered(give=lambda loss, *_: loss), "still holds its graph"),
        (answered(give=lambda loss, *_: loss.item()), "return the loss as a tensor"),
        (answered(give=lambda loss, *_: loss.detach().cpu()), "is fetched from the device"),
        (answered(give=lambda loss, *_: loss.detach().repeat(2)), "the loss has dimensions"),
        (answered(give=lambda loss, m, *_: torch.zeros((), device=loss.device)), "the loss of step 1"),
        (answered(give=lambda loss, m, x, y: loss.detach() * len(x)), "the loss of step 1"),
        (answered(give=lambda loss, m, x, y: cross_entropy(m(x), y).detach()), "the loss of step 1"),
        (answered(give=lambda loss, *_: loss.item() if loss.device.type == "cpu" else loss.detach()), "as a tensor"),
        (answered(after=lambda model: model.eval()), "in another mode"),
        (answered(after=lambda model: model.train()), "in another mode"),
        (answered(device=lambda model, x: model.to(x.device)[0].weight.device), "The model was moved"),
        (answered(device=lambda model, x: x.device), "It raised RuntimeError"),
    ],
)
def test_train_step_wrong(answer, says):
    verdict = judge("train_step", answer, says)
    assert verdict.expected != verdict.got or verdict.line


def test_train_step_untouched_or_raising():
    assert check.train_step(lambda model, optimizer, x, y: ...).state == "not yet"
    assert check.train_step(answered(give=lambda *_: None)).state == "not yet"

    def train_step(model, optimizer, x, y):
        raise ValueError("my own mistake")

    verdict = check.train_step(train_step)
    assert verdict.text == "It raised ValueError: my own mistake"
    assert "line" in verdict.line


def to_the_model(path, model, optimizer, shuffle):
    state = torch.load(path, map_location=next(model.parameters()).device, weights_only=True)
    for part, name in ((model, "model"), (optimizer, "optimizer")):
        part.load_state_dict(state[name])
    shuffle.set_state(state["shuffle"].cpu())
    return 1 + state["epoch"]


def unpacked(path, model, optimizer, shuffle):
    weights, moments, order, epoch = torch.load(str(path), map_location=torch.device("cpu")).values()
    model.load_state_dict(weights, strict=True)
    optimizer.load_state_dict(moments)
    shuffle.set_state(order)
    epoch += 1
    return epoch


def from_an_open_file(path, model, optimizer, shuffle):
    with open(path, "rb") as file:
        state = torch.load(file, map_location=lambda storage, place: storage)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.copy_(state["model"][name])
    optimizer.load_state_dict(state.pop("optimizer"))
    shuffle.set_state(state.get("shuffle"))
    return int(state["epoch"]) + 1


def mapped(path, model, optimizer, shuffle):
    state = torch.load(path, map_location={f"cuda:{i}": "cpu" for i in range(8)}, weights_only=False)
    shuffle.set_state(state["shuffle"])
    optimizer.load_state_dict(state["optimizer"])
    model.load_state_dict(state["model"])
    return state["epoch"] + 1


@pytest.mark.parametrize("answer", [to_the_model, unpacked, from_an_open_file, mapped])
def test_resume_in_other_styles(answer):
    assert check.resume(answer), str(check.resume(answer))


def load(path, model, optimizer, shuffle, *, where="cpu", parts=("model", "optimizer", "shuffle"), give=None):
    state = torch.load(path, map_location=where)
    if "model" in parts:
        model.load_state_dict(state["model"])
    if "optimizer" in parts:
        optimizer.load_state_dict(state["optimizer"])
    if "shuffle" in parts:
        shuffle.set_state(state["shuffle"])
    return give(state) if give else state["epoch"] + 1


def resumed(**how):
    return lambda path, model, optimizer, shuffle: load(path, model, optimizer, shuffle, **how)


def rebinds(path, model, optimizer, shuffle):
    state = torch.load(path, map_location="cpu")
    model, optimizer, shuffle = state["model"], state["optimizer"], state["shuffle"]  # noqa: F841
    return state["epoch"] + 1


def seeds_anew(path, model, optimizer, shuffle):
    shuffle.manual_seed(11)
    return load(path, model, optimizer, shuffle, parts=("model", "optimizer"))


def writes(path, model, optimizer, shuffle):
    first = load(path, model, optimizer, shuffle)
    path.write_bytes(b"")
    return first


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (resumed(parts=("optimizer", "shuffle")), "does not hold the weights of the file"),
        (resumed(parts=("model", "shuffle")), "does not hold the velocities of the file"),
        (resumed(parts=("model", "optimizer")), "is not in the state of the file"),
        (seeds_anew, "is not in the state of the file"),
        (rebinds, "The model that was given does not hold"),
        (writes, "a checkpoint is only read"),
        (resumed(give=lambda state: state["epoch"]), "Return the number of the next epoch"),
        (resumed(give=lambda state: 3), "after epoch 4 was finished"),
        (resumed(give=lambda state: state["epoch"] + 1.0), "3.0 (float)"),
        (resumed(give=lambda state: str(state["epoch"] + 1)), "'3' (str)"),
        (resumed(give=lambda state: state["epoch"] + 2), "Return the number of the next epoch"),
    ],
)
def test_resume_wrong(answer, says):
    judge("resume", answer, says)


@pytest.mark.skipif(torch.cuda.device_count() > 7, reason="this machine has a cuda:7 to read the file to")
def test_resume_that_wants_the_device_of_the_file():
    verdict = check.resume(resumed(where=None))
    assert "CUDA" in verdict.text
    assert "torch.load(path, map_location=where)" in verdict.line


def test_resume_that_returns_nothing():
    assert check.resume(resumed(give=lambda state: None)).state == "not yet"
    assert check.resume(lambda path, model, optimizer, shuffle: None).state == "not yet"
