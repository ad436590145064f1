"""Exercises of notebook 01: mend three device bugs, move a nested batch."""

from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from .compare import kinds
from .exercise import SETTINGS, exercise


def scores(x, device):
    """The score of each row of x (..., 4), computed on `device`: (...)."""

    class Centre(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("middle", torch.tensor([1.0, 2.0, 3.0, 4.0]))

        def forward(self, x):
            return x - self.middle

    x = x.to(device)
    weights = torch.linspace(0, 1, 4, device=device)
    return Centre().to(device)(x) @ weights


class Arithmetic(TorchDispatchMode):
    """The devices on which more than a constant's four numbers are computed with at once."""

    COUNTED = (
        *("mv", "mm", "bmm", "addmv", "addmm", "baddbmm", "matmul", "linear"),
        *("add", "sub", "rsub", "neg", "mul", "div", "sum"),
    )

    def __init__(self) -> None:
        super().__init__()
        self.places: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__.rstrip("_")
        if name in self.COUNTED and isinstance(result, torch.Tensor) and result.numel() > 4:
            self.places.add(result.device.type)
        return result


def on_the_cpu(x, device):
    return scores(x, "cpu")


@exercise(
    scores,
    tol=1e-4,
    mistakes={
        "it is computed on the CPU; `x.to(device)` returns a new tensor and leaves x where it "
        "is": on_the_cpu,
    },
)
def _(answer):
    torch.manual_seed(6)
    fractions = 9 * torch.randn(7, 4)
    whole_numbers = torch.arange(20).reshape(5, 4) - 9
    others = whole_numbers.byte(), torch.randn(1, 4, requires_grad=True), torch.randn(2, 3, 4, 5).mT
    torch.set_default_device("cpu:0")  # which is the CPU, too, and not what is set back by name
    for device in ("cpu", "meta"):
        # what is computed elsewhere, by whatever means, has no numbers from there
        there = fractions.to(device)
        for x in (fractions, whole_numbers, *others, there):
            call = f'scores(x, "{device}") for x of shape {tuple(x.shape)}, {x.dtype}, {x.device}'
            given = x.clone()
            with Arithmetic() as arithmetic:
                found = answer(given, device)
            yield call, found.detach() if isinstance(found, torch.Tensor) else found
            places = sorted(arithmetic.places) or [device]  # none where it goes row by row
            yield f"{call}: the devices of the arithmetic on its rows", places
            settings = {name: str(tell()) for name, (tell, _) in SETTINGS.items()}
            settings["precision of products"] = torch.get_float32_matmul_precision()
            yield f"{call}: torch's settings afterwards", settings
            yield f"{call}: x afterwards", given
        yield f'scores(x, "{device}") for x = [1, 1, 1, 1]', answer(torch.ones(4), device).detach()
    yield "", "It runs on any device: the input, the constant and the buffer move together."


def move(batch, device):
    """A batch with every tensor in it on `device`; containers keep their shape, the rest stays."""
    if isinstance(batch, torch.Tensor):
        return batch.to(device)
    if isinstance(batch, dict):
        return {key: move(value, device) for key, value in batch.items()}
    # a namedtuple takes its values one by one
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(move(value, device) for value in batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)(move(value, device) for value in batch)
    return batch


def first_level(batch, device):
    return {
        key: value.to(device) if torch.is_tensor(value) else value for key, value in batch.items()
    }


@exercise(
    move,
    tol=0,
    mistakes={"a container inside a container has to be taken apart, too": first_level},
)
def _(answer):
    for device in ("meta", "cpu"):
        x = torch.tensor([[[0.5], [-2.25], [-3.1], [1.0]]])
        y = torch.tensor([1, 0])
        types = [torch.float64, torch.float16, torch.int32, torch.bool]
        nested = {
            "name": "digits",
            "x": x,
            "pair": (x, (y, x)),
            "dicts": {"of": {"dicts": [({"x": x},)]}},
            "more": [{3: "three", "y": y}, "cat", 7, None, [[x], (0, y)], [0.5, 2]],
            "scale": y[0],
            "the same x": x,
            "other numbers": x + 1,
            "no rows": x[:0],
            "on": True,
        }
        empty = {
            "zero": 0,
            "no": False,
            "text": "",
            "dict": {},
            "list": [],
            "tuple": (),
            "none": None,
            "none again": None,
            "weight": nn.Parameter(x, False),
            "array": np.ones(2),
            "set": {1},
            "range": range(2),
        }
        for words, batch in (
            ("a nested dict", nested),
            ("(x, [y])", (x, [y])),
            ("[x in four other types]", [x.to(dtype) for dtype in types]),
            ("x", x),
            ("a dict of what is empty, and of other things", empty),
            ("0", 0),
        ):
            call = f'move({words}, "{device}")'
            found = answer(batch, device)
            yield f"{call}: the batch afterwards", batch
            yield call, found
            yield f"{call}: what it consists of", kinds(found)
    yield "", "Tensors move, the shape of the batch stays."
