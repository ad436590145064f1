"""One step of a pipeline on real ranks: the instructions of a schedule, done one by one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ..ground.errors import CourseError
from ..ranks.spans import span
from ..theory.schedules import Instruction, Schedule
from ..theory.simulate import label
from .models import GPT

if TYPE_CHECKING:
    from torch.distributed.pipelining import PipelineStage



def split(model: GPT, parts: int) -> list[nn.Sequential]:
    """The model in `parts` parts of equally many blocks, one after the other the whole; they share its weights."""
    if isinstance(parts, bool) or not isinstance(parts, int) or parts < 1 or len(model.blocks) % parts:
        raise CourseError(f"split(model, {parts!r}): the number of parts is to divide the model's {len(model.blocks)} "
                          "blocks.")  # fmt: skip
    each = len(model.blocks) // parts
    lists = [[*model.blocks[i : i + each]] for i in range(0, len(model.blocks), each)]
    lists[0].insert(0, model.embed)
    lists[-1] += [model.norm, model.head]
    return [nn.Sequential(*modules) for modules in lists]


def execute(
    schedule: Schedule, parts: dict[int, nn.Module], x: Tensor, y: Tensor, *, width: int, pace: tuple[float, float]
) -> list[Tensor]:
    """Do this rank's instructions; gradients add up in the parts' parameters, as after one backward of the mean loss.

    Args:
        parts: the parts of the model that are this rank's, by number.
        x, y: the whole batch, (B, T) int64 each; the first part reads x, the last one y.
        width: the activations between parts are (B / micro-batches, T, width).
        pace: seconds that a forward and a backward through one part take at the least; the rest is slept.

    Returns:
        The loss of each micro-batch on the rank of the last part; else an empty list.
    """
    count, last = schedule.micro_batches, schedule.stages - 1
    if len(x) % count:
        raise CourseError(f"A batch of {len(x)} cannot be cut into {count} equal micro-batches.")
    xs, ys = x.chunk(count), y.chunk(count)
    inputs, outputs, arrived, sent, losses = {}, {}, {}, {}, []
    for step in schedule[dist.get_rank()]:
        key = step.stage, step.micro
        tag = 2 * (step.edge * count + step.micro) + (step.what == "gradients")
        if step.name == "receive":
            arrived[key] = torch.empty(*xs[0].shape, width, device=x.device)
            with span(f"wait for {step.what} {step.micro}"):
                dist.recv(arrived[key], step.peer, tag=tag)
        elif step.name == "send" and step.what == "activations":
            sent[step.message] = _send(outputs[key].detach(), step, tag)
        elif step.name == "send":
            sent[step.message] = _send(inputs.pop(key).grad, step, tag)
        elif step.name == "forward":
            with span(label(*step[:3])), paced(pace[0]):
                if step.stage > 0:
                    inputs[key] = arrived.pop(key).requires_grad_()
                out = parts[step.stage](inputs.get(key, xs[step.micro]))
                if step.stage == last:
                    out = cross_entropy(out.flatten(0, 1), ys[step.micro].flatten())
                    losses.append(out.detach())
                outputs[key] = out
        else:
            with span(label(*step[:3])), paced(pace[1]):
                if step.stage == last:
                    (outputs.pop(key) / count).backward()
                else:
                    outputs.pop(key).backward(arrived.pop(key))
                    sent.pop(("activations", *key))[0].wait()  # its gradient is back: it has arrived
    for work, _message in sent.values():  # kept as it is until it has left
        work.wait()
    return losses


def _send(message: Tensor, step: Instruction, tag: int) -> tuple[dist.Work, Tensor]:
    with span(f"send {step.what} {step.micro}", lane="communication"):
        return dist.isend(message, step.peer, tag=tag), message


def watch(stage: PipelineStage, *, pace: tuple[float, float]) -> PipelineStage:
    """torch's own stage, with the spans and the pace of `execute` around each forward and backward."""
    for name, seconds in zip(("forward", "backward"), pace, strict=True):
        real = getattr(stage, f"{name}_one_chunk")
        setattr(stage, f"{name}_one_chunk", partial(_timed, real, name, stage.stage_index, seconds))
    return stage


def _timed(real: Callable, name: str, stage: int, seconds: float, *args: Any, **kwargs: Any) -> Any:
    micro = args[0] if args else kwargs["bwd_chunk_id"]
    with span(label(name, stage, micro)), paced(seconds):
        return real(*args, **kwargs)


@contextmanager
def paced(seconds: float) -> Iterator[None]:
    """Let what is inside last `seconds` at the least: too few cores cannot show several ranks computing at once."""
    end = time.perf_counter() + seconds
    yield
    while (left := end - time.perf_counter()) > 0:
        time.sleep(left)
