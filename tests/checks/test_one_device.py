import pytest
import torch
from torch.nn.functional import cross_entropy

from course_utils import check


@pytest.mark.parametrize("name", ["train_step", "resume"])
def test_the_published_solution_passes(name):
    exercise = getattr(check, name)
    assert exercise(exercise.published), str(exercise(exercise.published))


def step(model, optimizer, x, y, *, move=True, zero="before", give="detached"):
    if move:
        device = next(model.parameters()).device
        x, y = x.to(device), y.to(device)
    loss = cross_entropy(model(x), y)
    if zero == "before":
        optimizer.zero_grad()
    loss.backward()
    if zero == "between":
        optimizer.zero_grad()
    optimizer.step()
    value = loss.detach()
    if give == "fetched":
        return value.item()
    if give == "moved":
        return value.cpu()
    return {"detached": value, "graph": loss, "number": 0.5, "none": None, "long": value.repeat(2)}[give]


def answered(**how):
    return check.train_step(lambda model, optimizer, x, y: step(model, optimizer, x, y, **how))


def test_train_step_that_never_zeroes():
    verdict = answered(zero="never")
    assert not verdict
    assert verdict.text.startswith("the weights after step 2 on the CPU: off by")
    assert verdict.expected.startswith("tensor of shape (3, 6)")


def test_train_step_that_zeroes_too_late():
    assert answered(zero="between").text.startswith("the weights after step 1 on the CPU: off by")


def test_train_step_that_leaves_the_batch_where_it_is():
    verdict = answered(move=False)
    assert verdict.state == "wrong"
    assert "meta" in verdict.text
    assert "loss = cross_entropy(model(x), y)" in verdict.line
    assert "course_utils" not in str(verdict)


def test_train_step_that_returns_something_else():
    for give in ("number", "fetched", "moved"):
        assert "make the device wait" in answered(give=give).text
    assert answered(give="number").got == "0.5"
    assert "still holds its graph" in answered(give="graph").text
    assert answered(give="long").text.startswith("the shape of the loss")
    assert not answered(give="none")


def test_train_step_untouched_or_raising():
    assert check.train_step(lambda model, optimizer, x, y: ...).state == "not yet"

    def train_step(model, optimizer, x, y):
        raise ValueError("my own mistake")

    verdict = check.train_step(train_step)
    assert verdict.text == "It raised ValueError: my own mistake"
    assert "line" in verdict.line


def load(path, model, optimizer, shuffle, *, where="cpu", parts=("model", "optimizer", "shuffle"), more=1):
    state = torch.load(path, map_location=where)
    if "model" in parts:
        model.load_state_dict(state["model"])
    if "optimizer" in parts:
        optimizer.load_state_dict(state["optimizer"])
    if "shuffle" in parts:
        shuffle.set_state(state["shuffle"])
    return state["epoch"] + more


def resumed(**how):
    return check.resume(lambda path, model, optimizer, shuffle: load(path, model, optimizer, shuffle, **how))


@pytest.mark.parametrize("missing", ["model", "optimizer", "shuffle"])
def test_resume_that_forgets_a_part(missing):
    verdict = resumed(parts={"model", "optimizer", "shuffle"} - {missing})
    assert verdict.state == "wrong"
    assert verdict.text.startswith("the losses of epochs 3, 4 and 5")
    assert verdict.expected != verdict.got


def test_resume_that_repeats_an_epoch():
    verdict = resumed(more=0)
    assert "Return the number of the next epoch" in verdict.text
    assert (verdict.expected, verdict.got) == ("3", "2")


@pytest.mark.skipif(torch.cuda.device_count() > 7, reason="this machine has a cuda:7 to read the file to")
def test_resume_that_wants_the_device_of_the_file():
    verdict = resumed(where=None)
    assert "CUDA" in verdict.text
    assert "torch.load(path, map_location=where)" in verdict.line


def test_resume_that_returns_nothing():
    def resume(path, model, optimizer, shuffle):
        load(path, model, optimizer, shuffle)

    assert check.resume(resume).state == "not yet"
    assert check.resume(lambda path, model, optimizer, shuffle: None).state == "not yet"
    assert not check.resume(lambda path, model, optimizer, shuffle: "3")
