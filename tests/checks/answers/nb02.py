"""Answers to the exercises of notebook 02."""

import os

import torch
from torch.nn.functional import cross_entropy, log_softmax, nll_loss

# -- train_step --------------------------------------------------------------------------------------------------------


def with_closure(model, optimizer, x, y):
    weight = next(iter(model.parameters()))
    x, y = x.to(weight), y.to(weight.device)

    def closure():
        optimizer.zero_grad(set_to_none=False)
        loss = cross_entropy(model(x), y)
        loss.backward()
        return loss

    return optimizer.step(closure).detach()


def by_autograd(model, optimizer, x, y):
    weights = list(model.parameters())
    loss = nll_loss(log_softmax(model(x.to(weights[-1].device)), 1), y.to(weights[-1].device))
    for weight, gradient in zip(weights, torch.autograd.grad(loss, weights), strict=True):
        weight.grad = gradient
    optimizer.step()
    return loss.data


def step(model, optimizer, x, y, device=None, update=lambda optimizer: optimizer.step(), **loss):
    device = device or next(model.parameters()).device
    found = cross_entropy(model(x.to(device)), y.to(device), **loss)
    optimizer.zero_grad()
    found.backward()
    update(optimizer)
    return found.detach()


def by_hand(optimizer):
    for group in optimizer.param_groups:
        for weight in group["params"]:
            weight.data -= group["lr"] * weight.grad


def clipped(optimizer):
    torch.nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], 1.0)
    optimizer.step()


def other_mode(model, optimizer, x, y):
    was = model.training
    model.train()
    loss = step(model, optimizer, x, y)
    model.train(was)
    return loss


# -- resume ------------------------------------------------------------------------------------------------------------


def restore(path, model, optimizer, shuffle, where="cpu", leave="", after=lambda *_: None, give=lambda last: last + 1):
    state = torch.load(path, map_location=where)
    for name, part in (("model", model), ("optimizer", optimizer)):
        if name != leave:
            part.load_state_dict(state[name])
    if leave != "shuffle":
        shuffle.set_state(state["shuffle"].cpu())
    after(path, model, optimizer, shuffle)
    return give(state["epoch"])


def otherwise(**how):
    return lambda *given: restore(*given, **how)


def from_an_open_file(path, model, optimizer, shuffle):
    with open(path, "rb") as file:
        state = torch.load(file, map_location=lambda storage, place: storage)
    with torch.no_grad():
        for name, value in model.state_dict().items():
            value.copy_(state["model"][name])
    optimizer.load_state_dict(state.pop("optimizer"))
    shuffle.set_state(state.get("shuffle"))
    return int(state["epoch"]) + 1


def keeps_its_settings(path, model, optimizer, shuffle):
    lr = optimizer.param_groups[0]["lr"]
    return restore(path, model, optimizer, shuffle, after=lambda *_: optimizer.param_groups[0].update(lr=lr))


RIGHT = {
    "train_step": [with_closure, by_autograd],
    "resume": [from_an_open_file, otherwise(where=torch.device("cpu"), give=lambda last: int(last) + 1)],
}
WRONG = {
    "train_step": [
        lambda *given: step(*given).item(), other_mode, lambda *given: step(*given, update=by_hand),
        lambda model, optimizer, x, y: step(model, optimizer, x[:64], y[:64]),
        lambda *given: step(*given, device="cpu"), lambda *given: step(*given, update=clipped),
        lambda model, optimizer, x, y: step(model.to(x.device), optimizer, x, y),
    ],
    "resume": [
        otherwise(leave="shuffle"), keeps_its_settings, otherwise(leave="optimizer"), otherwise(leave="model"),
        otherwise(where={"cuda:7": "cpu"}), otherwise(after=lambda path, model, *_: model.eval()),
        otherwise(after=lambda path, *_: os.remove(path)), otherwise(give=lambda last: last + 1.0),
    ],
}
