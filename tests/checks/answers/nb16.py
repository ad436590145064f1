"""Answers to the exercise of notebook 16; they need torch_xla."""

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler, Subset

from course_utils.lessons import models


def mean(optimizer):
    import torch_xla.core.xla_model as xm

    xm.optimizer_step(optimizer)


def by_hand(cores):
    """A step with the sum of the gradients over `cores`; 0: over as many as there are."""

    def step(optimizer):
        import torch_xla
        import torch_xla.core.xla_model as xm
        import torch_xla.runtime as xr

        gradients = [p.grad for p in optimizer.param_groups[0]["params"]]
        xm.all_reduce(xm.REDUCE_SUM, gradients, scale=1 / (cores or xr.world_size()))
        optimizer.step()
        torch_xla.sync()

    return step


def reduce_then_step(optimizer):
    import torch_xla.core.xla_model as xm

    xm.reduce_gradients(optimizer)
    optimizer.step()


def dealt(dataset, world, core):
    return DataLoader(dataset, 8, sampler=DistributedSampler(dataset, world, core, shuffle=False))


def strided(dataset, world, core):
    """The batches are made once and used in every epoch."""
    return list(DataLoader(Subset(dataset, range(core, len(dataset), world)), 8))


def chunks(dataset, world, core):
    return DataLoader(Subset(dataset, range(len(dataset))[core * 20 : core * 20 + 20]), 8)


def smaller(dataset, world, core):
    return DataLoader(Subset(dataset, range(core, len(dataset), world)), 4)


def replica(step=mean, batches=dealt, seed=0, core=None, cores=None, less=0, back=lambda model: model):
    """A `train_replica` in another style, or with a fault."""

    def train_replica(dataset, epochs):
        import torch_xla
        import torch_xla.runtime as xr
        from torch_xla.distributed.parallel_loader import MpDeviceLoader

        device = torch_xla.device()
        model = models.mlp(seed=seed).to(device)
        loader = batches(dataset, cores or xr.world_size(), xr.global_ordinal() if core is None else core)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(epochs - less):
            for x, y in loader if isinstance(loader, list) else MpDeviceLoader(loader, device):
                optimizer.zero_grad()
                cross_entropy(model(x.to(device)), y.to(device)).backward()
                step(optimizer)
        return back(model)

    return train_replica


def on_core_0(model):
    import torch_xla.runtime as xr

    return model if xr.global_ordinal() == 0 else None


RIGHT = {"train_replica": [
    replica(by_hand(0), strided), replica(reduce_then_step), replica(back=lambda model: model.cpu()),
]}
WRONG = {"train_replica": [
    replica(core=0), replica(by_hand(3), cores=3), replica(by_hand(1)), replica(seed=5), replica(less=1),
    replica(batches=chunks), replica(batches=smaller), replica(back=lambda model: model.state_dict()),
    replica(back=on_core_0), replica(torch.optim.SGD.step),
]}
NEEDS_XLA = {*RIGHT}
