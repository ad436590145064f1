"""Answers to the exercises of notebook 06."""

import torch
import torch.distributed as dist


def reduced(tensor):
    dist.all_reduce(tensor)
    return tensor


def trained(model):
    return [p for p in model.parameters() if p.requires_grad]


def averaged(parameters, *, ranks=dist.get_world_size):
    bucket = reduced(torch.cat([p.grad.flatten() for p in parameters])) / ranks()
    for p, mean in zip(parameters, bucket.split([p.numel() for p in parameters]), strict=True):
        p.grad = mean.view_as(p)  # all gradients are views of one bucket


def a_message_each(parameters):
    for p in parameters:
        averaged([p])


def hooked(
    *,
    which=trained,
    send=averaged,
    start=lambda model: [*model.parameters(), *model.buffers()],
    is_last=None,
):
    """A hand_ddp that calls `send` once as many gradients are ready as there are parameters."""

    def hand_ddp(model):
        for tensor in start(model):
            dist.broadcast(tensor.detach(), src=0)
        mine, ready = which(model), []

        def hook(parameter):
            ready.append(parameter)
            if is_last(mine) if is_last else len(ready) == len(mine):
                ready.clear()
                send(mine)

        for parameter in mine:
            parameter.register_post_accumulate_grad_hook(hook)

    return hand_ddp


def at_the_end_of_backward(model):
    later = torch.autograd.Variable._execution_engine.queue_callback
    hooked(
        which=lambda model: trained(model)[:1],
        send=lambda _: later(lambda: averaged(trained(model))),
    )(model)


def clipped(parameters):
    averaged(parameters)
    torch.nn.utils.clip_grad_norm_(parameters, 10.0)


def buffers_before_each_forward(model):
    """As DDP does."""
    hooked()(model)

    def send(module, _):
        for buffer in module.buffers():
            dist.broadcast(buffer, src=0)

    model.register_forward_pre_hook(send)


def with_new_buffers(model):
    hooked()(model)
    for part in model.modules():
        for name, buffer in part.named_buffers(recurse=False):
            setattr(part, name, buffer.clone())


def of_each_child(model):
    return [tensor for child in model.children() for tensor in child.parameters(recurse=False)]


RIGHT = {
    "hand_ddp": [at_the_end_of_backward, buffers_before_each_forward],
}
WRONG = {
    "hand_ddp": [
        hooked(start=lambda model: model.parameters()),
        hooked(start=lambda model: model.state_dict().values()),  # not all buffers
        with_new_buffers,
        hooked(send=a_message_each),
        hooked(send=clipped),
        hooked(start=lambda model: [*of_each_child(model), *model.buffers()]),
        hooked(send=lambda parameters: averaged(parameters, ranks=lambda: 1)),
        hooked(is_last=lambda mine: all(p.grad is not None for p in mine)),
    ],
}
