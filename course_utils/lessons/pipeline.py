"""One step of a pipeline on real ranks: the instructions of a schedule, done one by one."""

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ..errors import CourseError
from ..ranks.spans import span
from ..schedules import Instruction, Schedule
from .models import GPT

Key = tuple[int, int]  # stage, micro-batch
Messages = dict[tuple, tuple[dist.Work, Tensor]]


def split(model: GPT, parts: int) -> list[nn.Sequential]:
    """The model in `parts` parts of equally many blocks, or nearly; in a row they are the whole."""
    cuts = [i * len(model.blocks) // parts for i in range(parts + 1)]
    lists = [[*model.blocks[start:end]] for start, end in itertools.pairwise(cuts)]
    lists[0].insert(0, model.embed)
    lists[-1] += [model.norm, model.head]
    return [nn.Sequential(*modules) for modules in lists]


def execute(
    schedule: Schedule,
    parts: dict[int, nn.Module],
    x: Tensor,
    y: Tensor,
    *,
    width: int,
    pace: tuple[float, float],
) -> list[Tensor]:
    """Do this rank's instructions, whole backwards only.

    Gradients add up as after one backward of the mean loss.

    Args:
        parts: the parts of the model that are this rank's, by number; x and y are on their device.
        x, y: the whole batch, (B, T) int64 each; B is a multiple of the micro-batches.
        width: the activations between parts are (B / micro-batches, T, width).
        pace: seconds that a forward and a backward through one part take at the least; the rest is
            slept.

    Returns:
        The loss of each micro-batch on the rank of the last part; else an empty list.
    """
    if schedule.ranks != (ranks := dist.get_world_size()):
        raise CourseError(f"{schedule.name} is a schedule for {schedule.ranks} ranks, not {ranks}.")
    count = schedule.micro_batches
    last = schedule.stages - 1
    if len(x) % count:
        raise CourseError(f"{len(x)} sequences do not make {count} equal micro-batches.")
    xs, ys = x.chunk(count), y.chunk(count)
    inputs: dict[Key, Tensor] = {}
    outputs: dict[Key, Tensor] = {}
    coming: Messages = {}
    going: Messages = {}
    losses = []
    for step in schedule[dist.get_rank()]:
        key = step.stage, step.micro
        if step.name == "receive":  # begins here; who needs it waits
            message = torch.empty(*xs[0].shape, width, device=x.device)
            coming[step.what, *key] = _post(dist.irecv, message, step.peer), message

        elif step.name == "send":
            if step.what == "activations":
                message = outputs[key].detach()  # the graph ends here, and goes on there
            else:
                message = _gradient(inputs.pop(key))
            going[step.what, *key] = _post(dist.isend, message, step.peer), message

        elif step.name == "forward":
            if step.stage == 0:
                inputs[key] = xs[step.micro]
            else:
                inputs[key] = _here(coming, "activations", *key).requires_grad_()
            with paced(step.label, pace[0], x.device):
                outputs[key] = parts[step.stage](inputs[key])
                if step.stage == last:  # its output is the loss, a share of the batch's mean
                    loss = cross_entropy(outputs[key].flatten(0, 1), ys[step.micro].flatten())
                    losses.append(loss.detach())
                    outputs[key] = loss / count

        else:  # backward: from the loss, or from the gradient that has come
            gradient = None if step.stage == last else _here(coming, "gradients", *key)
            with paced(step.label, pace[1], x.device):
                outputs.pop(key).backward(gradient)
            if gradient is not None:  # so what was sent has arrived, and may be forgotten
                _here(going, "activations", *key)

    for sent in [*going]:
        _here(going, *sent)
    return losses


def _gradient(tensor: Tensor) -> Tensor:
    assert tensor.grad is not None, "its backward comes before its message"
    return tensor.grad


def _post(operation: Callable, message: Tensor, peer: int | None) -> dist.Work:
    """Begin `isend` or `irecv`, as a batch of one.

    Unbatched, nccl may give each pair of ranks a communicator of its own. Either way messages of
    one communicator wait in line, and it is the common order of all ranks that keeps them going.
    """
    [work] = dist.batch_isend_irecv([dist.P2POp(operation, message, peer)])
    return work


def _here(messages: Messages, *which: str | int) -> Tensor:
    """A message, once it has come or gone; until then its memory must stay as it is."""
    work, message = messages.pop(which)
    work.wait()
    return message


def trace_stage(stage: Any, *, pace: tuple[float, float]) -> None:
    """Give torch's `PipelineStage` the spans and the pace of `execute`."""

    def timed(name: str, seconds: float) -> Callable[..., Any]:
        real = getattr(stage, f"{name}_one_chunk")

        def run(*args: Any, **kwargs: Any) -> Any:
            what, least = name.replace("_", "-"), seconds
            if not kwargs.get("full_backward", True):
                what, least = "backward-input", seconds / 2
            micro = args[0] if args else kwargs["bwd_chunk_id"]
            label = Instruction(what, stage.stage_index, micro).label
            with paced(label, least, stage.device):
                return real(*args, **kwargs)

        return run

    forward, backward = pace
    stage.forward_one_chunk = timed("forward", forward)
    stage.backward_one_chunk = timed("backward", backward)
    stage.backward_weight_one_chunk = timed("backward_weight", backward / 2)


@contextmanager
def paced(name: str, seconds: float, device: torch.device) -> Iterator[None]:
    """A span of `seconds` at the least: few cores cannot show several ranks computing at once."""
    with span(name):
        stream = None
        if seconds and device.type != "cpu":
            # Other streams are not waited for: they have messages that come much later.
            stream = torch.accelerator.current_stream(device)
            stream.synchronize()
        end = time.perf_counter() + seconds
        yield
        if stream:
            stream.synchronize()
        time.sleep(max(0.0, end - time.perf_counter()))
