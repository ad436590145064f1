"""Real data that needs no download: handwritten digits from scikit-learn, and English text from Python itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ..errors import CourseError

if TYPE_CHECKING:
    from torch import Tensor
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


class Text(NamedTuple):
    """One long text as character ids: train (N,) and test (M,) int64; `vocabulary[i]` is the character of id i."""

    train: Tensor
    test: Tensor
    vocabulary: str

    def batch(self, step: int, *, size: int = 16, context: int = 64) -> tuple[Tensor, Tensor]:
        """x, y (size, context) int64 from train, y one character ahead of x; the same ones for the same step."""
        import torch

        generator = torch.Generator().manual_seed(step)
        starts = torch.randint(len(self.train) - context, (size, 1), generator=generator)
        places = starts + torch.arange(context)
        return self.train[places], self.train[places + 1]  # contiguous, as torch 2.11's pipelines insist on

    def decode(self, ids: Tensor) -> str:
        """The characters of ids (N,)."""
        return "".join(self.vocabulary[i] for i in ids.tolist())


def text(*, test: float = 0.1) -> Text:
    """Python's own manual, `pydoc_data.topics`: half a million characters of English and code, one after the other.

    test: share of the text, at its end, that is kept for testing, between 0 and 1. The text is that of the Python you
    run, so its length and vocabulary (about 100 characters) differ a little between versions.
    """
    if isinstance(test, bool) or not isinstance(test, (int, float)) or not 0.01 <= test <= 0.99:
        raise CourseError(f"text(test={test!r}): test is the share kept for testing, from 0.01 to 0.99, e.g. 0.1.")
    try:
        from pydoc_data.topics import topics
    except ModuleNotFoundError as error:
        raise CourseError(
            "data.text needs Python's own help texts (pydoc_data), which this Python was installed without: "
            "install the documentation package of your system's Python, or use the Python of python.org or conda."
        ) from error
    import torch

    everything = "\n".join(topics[name] for name in sorted(topics))
    codes = torch.frombuffer(bytearray(everything.encode("utf-32-le")), dtype=torch.int32)
    vocabulary, ids = torch.unique(codes, return_inverse=True)
    cut = round(len(ids) * (1 - test))
    return Text(ids[:cut], ids[cut:], "".join(map(chr, vocabulary.tolist())))
