"""Answers to the exercises of notebook 18; `port_the_loop` needs Lightning."""

import copy

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, DistributedSampler

from course_utils.checks.nb18_lightning import port_the_loop, steps_per_epoch


def by_range(samples, batch, devices, drop_last):
    share = range(0, samples + -samples % devices, devices)
    sizes = [len(share[i : i + batch]) for i in range(0, len(share), batch)]
    return sum(size == batch or not drop_last for size in sizes)


def by_loader(samples, batch, devices, drop_last):
    sampler = DistributedSampler(range(samples), devices, devices - 1)
    return len(DataLoader(range(samples), batch, sampler=sampler, drop_last=drop_last))


def nearly_rounded_up(samples, batch, devices, drop_last):
    each = int(samples / devices + 0.999)
    return each // batch if drop_last else int(each / batch + 0.999)


def keeps_the_last_of_one_device(samples, batch, devices, drop_last):
    return steps_per_epoch(samples, batch, devices, drop_last and devices > 1)


def changed(**methods):
    """The solution with other methods."""

    def answer(model, lr, steps):
        module = port_the_loop(model, lr, steps)
        module.__class__ = type("Changed", (type(module),), methods)
        return module

    return answer


def start_counting(self):
    self.count = torch.zeros(2)  # right answers, and images


def count(self, batch, index):
    x, y = batch
    self.count += torch.tensor([(self.model(x).argmax(1) == y).sum(), float(len(x))])


def log_what_all_counted(self):
    dist.all_reduce(self.count)
    self.log("accuracy", self.count[0] / self.count[1])


def log_the_best(self):
    dist.all_reduce(self.count)
    self.best = max(getattr(self, "best", 0.0), (self.count[0] / self.count[1]).item())
    self.log("accuracy", self.best)


counting = {"on_validation_epoch_start": start_counting, "validation_step": count}
own_accuracy = changed(**counting, on_validation_epoch_end=log_what_all_counted)


def by_hand(model, lr, steps):
    import lightning as L

    class Module(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.network, self.automatic_optimization = model, False

        def training_step(self, batch, index):
            loss = cross_entropy(self.network(batch[0]), batch[1])
            self.log_dict({"loss": loss})
            self.optimizers().zero_grad()
            self.manual_backward(loss)
            self.optimizers().step()
            self.lr_schedulers().step()

        def validation_step(self, batch, index):
            self.log(
                "accuracy",
                (self.network(batch[0]).argmax(1) == batch[1]).float().mean(),
                sync_dist=True,
            )

        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=lr, momentum=0.9)
            return [optimizer], [
                LambdaLR(optimizer, lambda step: 1 - 0.9 * min(step, steps) / steps)
            ]

    return Module()


def not_returned(self, batch, index):
    super(type(self), self).training_step(batch, index)


def on_before_optimizer_step(self, optimizer):
    torch.nn.utils.clip_grad_norm_(self.parameters(), 0.5)


def logs_nothing(self, batch, index):
    return cross_entropy(self.model(batch[0]), batch[1])


RIGHT = {
    "steps_per_epoch": [by_range, by_loader],
    "port_the_loop": [own_accuracy, by_hand],
}
WRONG = {
    "steps_per_epoch": [
        lambda samples, batch, devices, drop_last: -(-samples // devices) // batch,
        lambda *given: max(1, steps_per_epoch(*given)),
        lambda samples, *given: steps_per_epoch(samples, *given) if samples >= given[1] else 0,
        lambda samples, *given: steps_per_epoch(samples, *given) if samples >= given[0] else 0,
        nearly_rounded_up,
        keeps_the_last_of_one_device,
    ],
    "port_the_loop": [
        changed(training_step=not_returned),
        changed(**counting, on_validation_epoch_end=log_the_best),
        changed(training_step=logs_nothing),
        changed(on_before_optimizer_step=on_before_optimizer_step),
        lambda model, lr, steps: model,
        lambda model, lr, steps: port_the_loop(copy.deepcopy(model), lr, steps),
    ],
}
NEEDS_XLA = {"port_the_loop"}
