"""Values that only a notebook's kernel had made, from the file beside an exported script."""

import functools
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

VALUES = ".values.pt"  # how the file ends, which has the script's name
COURSE = "course_utils."  # whose modules lie in the package dist_utils beside the script


def load_values(script: str, names: dict[str, Any]) -> dict[str, Any]:
    """By name, from the script's folder; train.values.pt is that of train.py.

    names: the script's own, of its functions and classes.
    """

    class Unpickler(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            if module == "__main__":
                first, *rest = name.split(".")
                return functools.reduce(getattr, rest, names[first])
            if module.startswith(COURSE):
                module = f"dist_utils.{module.removeprefix(COURSE)}"
            return super().find_class(module, name)

    how = SimpleNamespace(__name__="pickle", Unpickler=Unpickler, load=pickle.load)
    file = Path(script).with_suffix(VALUES)
    return torch.load(file, pickle_module=how, weights_only=False)
