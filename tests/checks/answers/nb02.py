"""Answers to the exercises of notebook 02."""

import torch
from torch.nn.functional import cross_entropy, log_softmax, nll_loss


def with_closure(model, optimizer, x, y):
    weight = next(iter(model.parameters()))
    x, y = x.to(weight.device), y.to(weight.device)

    def closure():
        optimizer.zero_grad(set_to_none=False)
        loss = cross_entropy(model(x), y)
        loss.backward()
        return loss

    return optimizer.step(closure).detach()


def by_autograd(model, optimizer, x, y):
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    loss = nll_loss(log_softmax(model(x.to(weights[-1].device)), 1), y.to(weights[-1].device))
    for weight, gradient in zip(weights, torch.autograd.grad(loss, weights), strict=True):
        weight.grad = gradient
    optimizer.step()
    return loss.data


def step(model, optimizer, x, y, update=torch.optim.SGD.step):
    device = next(model.parameters()).device
    loss = cross_entropy(model(x.to(device)), y.to(device))
    optimizer.zero_grad()
    loss.backward()
    update(optimizer)
    return loss.detach()


def by_hand(optimizer):
    for weight in optimizer.param_groups[0]["params"]:
        weight.data -= optimizer.param_groups[0]["lr"] * weight.grad


def clipped(optimizer):
    torch.nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], 5.0)
    optimizer.step()


def changed(change):
    def train_step(model, optimizer, x, y):
        return step(model, optimizer, change(x), y)

    return train_step


def labels_from_0(model, optimizer, x, y):
    y -= y.min()
    return step(model, optimizer, x, y)


def other_mode(model, optimizer, x, y):
    was = model.training
    model.train()
    loss = step(model, optimizer, x, y)
    model.train(was)
    return loss


def thawed(model, *given):
    loss = step(model, *given)
    model.requires_grad_(True)
    return loss


def restored(where="cpu", shuffled=True, after=lambda model: None, number=lambda epoch: epoch + 1):
    def resume(path, model, optimizer, shuffle):
        state = torch.load(path, map_location=where)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        if shuffled:
            shuffle.set_state(state["shuffle"].cpu())
        after(model)
        return number(state["epoch"])

    return resume


def from_an_open_file(path, model, optimizer, shuffle):
    with open(path, "rb") as file:
        state = torch.load(file, map_location=lambda storage, place: storage)
    with torch.no_grad():
        for name, value in model.state_dict().items():
            value.copy_(state["model"][name])
    optimizer.load_state_dict(state.pop("optimizer"))
    shuffle.set_state(state.get("shuffle"))
    return int(state["epoch"]) + 1


def keeps_a_rate(path, model, optimizer, shuffle):
    lr = optimizer.param_groups[1]["lr"]
    epoch = restored()(path, model, optimizer, shuffle)
    optimizer.param_groups[1]["lr"] = lr
    return epoch


def by_setstate(path, model, optimizer, shuffle):
    """The groups hold numbers afterwards, no parameters."""
    epoch = restored()(path, model, optimizer, shuffle)
    optimizer.__setstate__(torch.load(path, map_location="cpu")["optimizer"])
    return epoch


RIGHT = {
    "train_step": [with_closure, by_autograd],
    "resume": [from_an_open_file, restored(where=torch.device("cpu"))],
}
WRONG = {
    "train_step": [
        lambda *given: step(*given).item(),
        other_mode,
        labels_from_0,
        lambda *given: step(*given, update=by_hand),
        lambda *given: step(*given, update=clipped),
        changed(lambda x: x.float()),
        changed(torch.squeeze),
        thawed,
    ],
    "resume": [
        restored(shuffled=False),
        keeps_a_rate,
        by_setstate,
        restored(number=lambda epoch: epoch + 1 if epoch else 0),
        restored(after=lambda model: model.zero_grad()),
        restored(where={"cuda:7": "cpu"}),
        restored(after=lambda model: model.train()),
        restored(after=lambda model: model.requires_grad_(True)),
    ],
}
