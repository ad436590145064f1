"""One step of a pipeline on real ranks: the instructions of a schedule, done one by one; backwards cut into halves."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear
from torch.overrides import TorchFunctionMode

from ..errors import CourseError
from ..ranks.spans import span
from ..schedules import Instruction, Schedule
from .models import GPT

if TYPE_CHECKING:
    from torch.distributed.pipelining import PipelineStage


def split(model: GPT, parts: int) -> list[nn.Sequential]:
    """The model in `parts` parts of equally many blocks, one after the other the whole; they share its weights."""
    if len(model.blocks) % parts:
        raise CourseError(f"split(model, {parts}): the number of parts is to divide the model's {len(model.blocks)} "
                          "blocks.")
    each = len(model.blocks) // parts
    lists = [[*model.blocks[i : i + each]] for i in range(0, len(model.blocks), each)]
    lists[0].insert(0, model.embed)
    lists[-1] += [model.norm, model.head]
    return [nn.Sequential(*modules) for modules in lists]


class InputFirst(torch.autograd.Function):
    """A linear layer that goes back in halves: the input's gradient at once, the weights' when `later` does it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, later: list[Tensor]) -> Tensor:
        """The layer's output; its backward puts a handle on what it leaves undone into `later`."""
        ctx.save_for_backward(x, weight, bias)
        ctx.later = later
        return linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """B: one multiplication, and no more."""
        x, weight, bias = ctx.saved_tensors
        with torch.enable_grad():  # what is still to do is a node of autograd, and keeps x and gradient until then
            ctx.later.append(_WeightsLater.apply(weight, bias, x.detach(), gradient))
        return gradient @ weight, None, None, None


class _WeightsLater(torch.autograd.Function):
    """The other half: `.backward()` on its output, which is only a handle, adds the weights' gradients."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, bias: Tensor | None, x: Tensor, gradient: Tensor) -> Tensor:
        ctx.save_for_backward(x, gradient)
        return weight.new_zeros(())

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor | None, ...]:
        x, gradient = (tensor.flatten(0, -2) for tensor in ctx.saved_tensors)
        for_bias = gradient.sum(0) if ctx.needs_input_grad[1] else None
        return gradient.T @ x, for_bias, None, None


class Halves(TorchFunctionMode):
    """`with Halves() as halves: …` makes each linear layer inside an `InputFirst`; `halves.take()`: what is due."""

    def __init__(self) -> None:
        super().__init__()
        self.later: list[Tensor] = []

    def __torch_function__(self, function: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if function is linear:
            return InputFirst.apply(*args, self.later)
        return function(*args, **kwargs or {})

    def take(self) -> list[Tensor]:
        """The weights' halves of the backwards since the last call."""
        due = [handle for handle in self.later if handle.requires_grad]  # not of frozen layers
        self.later.clear()
        return due


def execute(
    schedule: Schedule, parts: dict[int, nn.Module], x: Tensor, y: Tensor, *, width: int, pace: tuple[float, float]
) -> list[Tensor]:
    """Do this rank's instructions; gradients add up in the parts' parameters, as after one backward of the mean loss.

    Args:
        parts: the parts of the model that are this rank's, by number; x and y are on their device.
        x, y: the whole batch, (B, T) int64 each; the first part reads x, the last one y.
        width: the activations between parts are (B / micro-batches, T, width).
        pace: seconds that a forward and a backward through one part take at the least (half of it for a half of a
            backward); the rest is slept.

    Returns:
        The loss of each micro-batch on the rank of the last part; else an empty list.
    """
    count, last = schedule.micro_batches, schedule.stages - 1
    if len(x) % count:
        raise CourseError(f"A batch of {len(x)} cannot be cut into {count} equal micro-batches.")
    xs, ys = x.chunk(count), y.chunk(count)
    inputs, outputs, coming, going, due, losses = {}, {}, {}, {}, {}, []
    halves = Halves()
    for step in schedule[dist.get_rank()]:
        key = step.stage, step.micro
        if step.name == "receive":
            message = torch.empty(*xs[0].shape, width, device=x.device)
            coming[step.what, *key] = dist.irecv(message, step.peer), message
        elif step.name == "send":
            message = outputs[key].detach() if step.what == "activations" else inputs.pop(key).grad
            going[step.what, *key] = dist.isend(message, step.peer), message
        elif step.name == "forward":
            inputs[key] = xs[step.micro] if step.stage == 0 else _here(coming, "activations", *key).requires_grad_()
            with paced(step.label, pace[0], x.device), halves if schedule.split else nullcontext():
                outputs[key] = parts[step.stage](inputs[key])
                if step.stage == last:
                    loss = cross_entropy(outputs[key].flatten(0, 1), ys[step.micro].flatten())
                    losses.append(loss.detach())
                    outputs[key] = loss / count
        elif step.name == "backward-weight":
            with paced(step.label, pace[1] / 2, x.device):
                torch.autograd.backward(due.pop(key))
        else:
            gradient = None if step.stage == last else _here(coming, "gradients", *key)
            with paced(step.label, pace[1] / (1 + schedule.split), x.device):
                outputs.pop(key).backward(gradient)
            due[key] = halves.take()
            if gradient is not None:
                _here(going, "activations", *key)  # its gradient is back, so it has arrived, and may be forgotten
    for message in [*going]:
        _here(going, *message)
    return losses


def _here(messages: dict[tuple, tuple[dist.Work, Tensor]], *which: str | int) -> Tensor:
    """A message, once it has come or gone; until then its memory must stay as it is."""
    work, message = messages.pop(which)
    work.wait()
    return message


def trace_stage(stage: PipelineStage, *, pace: tuple[float, float]) -> None:
    """Give torch's own stage the spans and the pace of `execute` around each forward, backward and half of one."""

    def timed(name: str, seconds: float) -> Callable[..., Any]:
        real = getattr(stage, f"{name}_one_chunk")

        def run(*args: Any, **kwargs: Any) -> Any:
            half = not kwargs.get("full_backward", True)
            what = "backward-input" if half else name.replace("_", "-")
            micro = args[0] if args else kwargs["bwd_chunk_id"]
            with paced(Instruction(what, stage.stage_index, micro).label, seconds / (1 + half), stage.device):
                return real(*args, **kwargs)

        return run

    for name, seconds in {"forward": pace[0], "backward": pace[1], "backward_weight": pace[1] / 2}.items():
        setattr(stage, f"{name}_one_chunk", timed(name, seconds))


@contextmanager
def paced(name: str, seconds: float, device: torch.device) -> Iterator[None]:
    """A span that lasts `seconds` at the least: too few cores cannot show several ranks computing at once."""
    with span(name):
        # Of an accelerator only this stream is waited for: on others there are messages that come much later.
        stream = torch.accelerator.current_stream(device) if seconds and device.type != "cpu" else None
        if stream:
            stream.synchronize()
        end = time.perf_counter() + seconds
        yield
        if stream:
            stream.synchronize()
        time.sleep(max(0.0, end - time.perf_counter()))
