"""Real data that needs no download: handwritten digits from scikit-learn, and English text from
Python itself.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.data import TensorDataset


class Digits(NamedTuple):
    """Two datasets of (x, y): x (64,) float32 in [0, 1], an 8 by 8 image row by row; y the digit,
    int64.
    """

    train: TensorDataset
    test: TensorDataset


def digits() -> Digits:
    """1,437 digits to train on and 360 to test, the same ones each time; each digit has the same
    share in both.
    """
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    x, y = load_digits(return_X_y=True)
    parts = train_test_split(
        (x / 16).astype("float32"), y, test_size=0.2, random_state=0, stratify=y
    )
    x_train, x_test, y_train, y_test = (torch.from_numpy(part) for part in parts)
    return Digits(TensorDataset(x_train, y_train.long()), TensorDataset(x_test, y_test.long()))


# The newline and all that ASCII prints, so that models have the same sizes on every Python; the few
# other characters of its manual, which change with its version, are left out.
VOCABULARY = "\n" + "".join(map(chr, range(32, 127)))


class Text(NamedTuple):
    """One long text as character ids: train (N,) and test (M,) int64; `vocabulary[i]` is the
    character of id i.
    """

    train: Tensor
    test: Tensor
    vocabulary: str

    def batch(self, step: int, *, size: int = 16, context: int = 64) -> tuple[Tensor, Tensor]:
        """x, y (size, context) int64 from train, y one character ahead of x; the same ones for the
        same step.
        """
        generator = torch.Generator().manual_seed(step)
        starts = torch.randint(len(self.train) - context, (size, 1), generator=generator)
        positions = starts + torch.arange(context)
        # contiguous, as torch 2.11's pipelines insist on
        return self.train[positions], self.train[positions + 1]


def text() -> Text:
    """The manual of the Python you run: half a million characters, a tenth of them to test."""
    from pydoc_data.topics import topics

    everything = "\n".join(topics[name] for name in sorted(topics))
    codes = torch.tensor(list(everything.encode("ascii", "ignore")))
    ids = (codes - 31).clamp(min=0)  # a space is 32, and its id 1; the newline is 10
    cut = round(len(ids) * 0.9)
    return Text(ids[:cut], ids[cut:], VOCABULARY)
