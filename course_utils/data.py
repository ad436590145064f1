"""Real data that needs no download: 1,797 handwritten digits that ship with scikit-learn."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from .errors import CourseError

if TYPE_CHECKING:
    from torch.utils.data import TensorDataset


class Digits(NamedTuple):
    """Two datasets of (x, y): x (64,) float32 in [0, 1], an 8 by 8 image row by row; y the digit, int64."""

    train: TensorDataset
    test: TensorDataset


def digits(*, test: float = 0.2, seed: int = 0) -> Digits:
    """The digits, split so that every digit has the same share in both parts; the same split for the same seed.

    test: share of the images kept for testing, between 0 and 1. With 0.2: train.tensors are (1437, 64) and (1437,).
    """
    if isinstance(test, bool) or not isinstance(test, (int, float)) or not 0.01 <= test <= 0.99:
        raise CourseError(f"digits(test={test!r}): test is the share kept for testing, from 0.01 to 0.99, e.g. 0.2.")
    try:
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split
    except ModuleNotFoundError as error:
        raise CourseError("data.digits needs scikit-learn, which is not installed: pip install scikit-learn") from error
    import torch
    from torch.utils.data import TensorDataset

    x, y = load_digits(return_X_y=True)
    parts = train_test_split((x / 16).astype("float32"), y, test_size=float(test), random_state=seed, stratify=y)
    x_train, x_test, y_train, y_test = (torch.from_numpy(part) for part in parts)
    return Digits(TensorDataset(x_train, y_train.long()), TensorDataset(x_test, y_test.long()))
