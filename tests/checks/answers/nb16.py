"""Answers to the exercise of notebook 16; they need torch_xla."""

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler, Subset

from course_utils.lessons import models


def mean(optimizer):
    import torch_xla.core.xla_model as xm

    xm.optimizer_step(optimizer)


def summed(optimizer, scale=1.0):
    import torch_xla
    import torch_xla.core.xla_model as xm

    xm.all_reduce(xm.REDUCE_SUM, [p.grad for p in optimizer.param_groups[0]["params"]], scale=scale)
    optimizer.step()
    torch_xla.sync()


def by_hand(optimizer):
    import torch_xla.runtime as xr

    summed(optimizer, 1 / xr.world_size())


def dealt(dataset, world, core):
    return DataLoader(dataset, 8, sampler=DistributedSampler(dataset, world, core, shuffle=False))


def strided(dataset, world, core):
    """The batches are made once and used in every epoch."""
    return list(DataLoader(Subset(dataset, range(core, len(dataset), world)), 8))


def replica(step=mean, batches=dealt, core=None, back=lambda model: model, most=99, stop=0.0):
    """A `train_replica` in another style, or with a fault."""

    def train_replica(dataset, epochs):
        import torch_xla
        import torch_xla.runtime as xr
        from torch_xla.distributed.parallel_loader import MpDeviceLoader

        device = torch_xla.device()
        model = models.mlp().to(device)
        loader = batches(dataset, xr.world_size(), xr.global_ordinal() if core is None else core)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(min(epochs, most)):
            for x, y in loader if isinstance(loader, list) else MpDeviceLoader(loader, device):
                optimizer.zero_grad()
                loss = cross_entropy(model(x.to(device)), y.to(device))
                loss.backward()
                step(optimizer)
            if stop and loss.item() < stop:
                break
        return back(model)

    return train_replica


RIGHT = {"train_replica": [replica(by_hand, strided), replica(back=lambda model: model.cpu())]}
WRONG = {
    "train_replica": [
        replica(core=0),
        replica(most=3),
        replica(stop=2.0),
        replica(stop=0.5),
        replica(summed),
        replica(back=lambda model: model.state_dict()),
    ]
}
NEEDS_XLA = {*RIGHT}
