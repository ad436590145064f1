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

from ..ranks.spans import span
from ..schedules import Instruction, Schedule
from .models import GPT


def split(model: GPT, parts: int) -> list[nn.Sequential]:
    """The model in `parts` parts of equally many blocks (or nearly), one after the other the whole."""
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
    """Do this rank's instructions, whole backwards only; gradients add up as after one backward of the mean loss.

    Args:
        parts: the parts of the model that are this rank's, by number; x and y are on their device.
        x, y: the whole batch, (B, T) int64 each; B is a multiple of the micro-batches.
        width: the activations between parts are (B / micro-batches, T, width).
        pace: seconds that a forward and a backward through one part take at the least; the rest is slept.

    Returns:
        The loss of each micro-batch on the rank of the last part; else an empty list.
    """
    count, last = schedule.micro_batches, schedule.stages - 1
    xs, ys = x.chunk(count), y.chunk(count)
    inputs, outputs, coming, going, losses = {}, {}, {}, {}, []
    for step in schedule[dist.get_rank()]:
        key = step.stage, step.micro
        if step.name == "receive":
            message = torch.empty(*xs[0].shape, width, device=x.device)
            coming[step.what, *key] = _post(dist.irecv, message, step.peer), message
        elif step.name == "send":
            message = outputs[key].detach() if step.what == "activations" else inputs.pop(key).grad
            going[step.what, *key] = _post(dist.isend, message, step.peer), message
        elif step.name == "forward":
            inputs[key] = (
                xs[step.micro]
                if step.stage == 0
                else _here(coming, "activations", *key).requires_grad_()
            )
            with paced(step.label, pace[0], x.device):
                outputs[key] = parts[step.stage](inputs[key])
                if step.stage == last:
                    loss = cross_entropy(outputs[key].flatten(0, 1), ys[step.micro].flatten())
                    losses.append(loss.detach())
                    outputs[key] = loss / count
        else:
            gradient = None if step.stage == last else _here(coming, "gradients", *key)
            with paced(step.label, pace[1], x.device):
                outputs.pop(key).backward(gradient)
            if gradient is not None:
                _here(
                    going, "activations", *key
                )  # its gradient is back, so it has arrived, and may be forgotten
    for message in [*going]:
        _here(going, *message)
    return losses


def _post(operation: Callable, message: Tensor, peer: int) -> dist.Work:
    """`isend` or `irecv`, batched: alone, nccl would do them with a communicator of their own, or in line with all."""
    [work] = dist.batch_isend_irecv([dist.P2POp(operation, message, peer)])
    return work


def _here(messages: dict[tuple, tuple[dist.Work, Tensor]], *which: str | int) -> Tensor:
    """A message, once it has come or gone; until then its memory must stay as it is."""
    work, message = messages.pop(which)
    work.wait()
    return message


def trace_stage(stage: Any, *, pace: tuple[float, float]) -> None:
    """Give torch's `PipelineStage` the spans and the pace of `execute`; each half of a backward has half the pace."""

    def timed(name: str, seconds: float) -> Callable[..., Any]:
        real = getattr(stage, f"{name}_one_chunk")

        def run(*args: Any, **kwargs: Any) -> Any:
            half = not kwargs.get("full_backward", True)
            what = "backward-input" if half else name.replace("_", "-")
            micro = args[0] if args else kwargs["bwd_chunk_id"]
            with paced(
                Instruction(what, stage.stage_index, micro).label,
                seconds / (1 + half),
                stage.device,
            ):
                return real(*args, **kwargs)

        return run

    for name, seconds in {
        "forward": pace[0],
        "backward": pace[1],
        "backward_weight": pace[1] / 2,
    }.items():
        setattr(stage, f"{name}_one_chunk", timed(name, seconds))


@contextmanager
def paced(name: str, seconds: float, device: torch.device) -> Iterator[None]:
    """A span that lasts `seconds` at the least: too few cores cannot show several ranks computing at once."""
    with span(name):
        # Of an accelerator only this stream is waited for: on others there are messages that come much later.
        stream = (
            torch.accelerator.current_stream(device) if seconds and device.type != "cpu" else None
        )
        if stream:
            stream.synchronize()
        end = time.perf_counter() + seconds
        yield
        if stream:
            stream.synchronize()
        time.sleep(max(0.0, end - time.perf_counter()))
