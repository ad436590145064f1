"""Merging two outputs: published and other right answers pass, plausible wrong ones fail in words."""

import pytest
import torch
from torch.nn.functional import logsigmoid

from course_utils import check
from tests.checks.judging import judge, solved

LEAST = torch.finfo(torch.float32).min


def test_solution():
    solved("merge_outputs", check.merge_outputs.published)


def shift_by_the_largest(out_a, lse_a, out_b, lse_b):
    m = torch.maximum(lse_a, lse_b).clamp(min=torch.finfo(lse_a.dtype).min)
    w_a, w_b = (lse_a - m).exp(), (lse_b - m).exp()
    total = w_a + w_b
    out = (out_a * w_a[..., None] + out_b * w_b[..., None]) / total.clamp(min=1e-30)[..., None]
    return out.to(out_a.dtype), m + total.log()


def as_torch_does(out_a, lse_a, out_b, lse_b):
    away = torch.where(lse_b == -torch.inf, -torch.inf, lse_b - lse_a)
    out = out_a - torch.sigmoid(away).unsqueeze(-1) * (out_a - out_b)
    gone = (lse_a == -torch.inf) & (lse_b == -torch.inf)
    lse = torch.where(gone, -torch.inf, lse_a - logsigmoid(-away))
    return out.to(out_a.dtype), torch.where(lse_a == -torch.inf, lse_b, lse)


def with_logsumexp(out_a, lse_a, out_b, lse_b):
    lse = torch.stack([lse_a, lse_b]).logsumexp(0)
    shares = [torch.where(part == -torch.inf, 0, (part - lse).exp())[..., None] for part in (lse_a, lse_b)]
    return (shares[0] * out_a + shares[1] * out_b).to(out_a.dtype), lse


def in_double(out_a, lse_a, out_b, lse_b):
    a, b = lse_a.double(), lse_b.double()
    lse = torch.logaddexp(a, b)
    share = (a - lse).exp().nan_to_num(0.5).unsqueeze(-1)
    return (out_a * share + out_b * (1 - share)).to(out_a.dtype), lse.to(lse_a.dtype)


def query_by_query(out_a, lse_a, out_b, lse_b):
    out = torch.zeros_like(out_a)
    lse = torch.logaddexp(lse_a, lse_b)
    for at in (lse > -torch.inf).nonzero().tolist():
        at = tuple(at)
        a, b = (lse_a[at] - lse[at]).exp(), (lse_b[at] - lse[at]).exp()
        out[at] = a * out_a[at] + b * out_b[at]
    return [out, lse]


def einsum(out_a, lse_a, out_b, lse_b):
    share = torch.softmax(torch.stack((lse_a, lse_b), -1), -1).nan_to_num(0).to(out_a.dtype)
    return torch.einsum("...s,...sd->...d", share, torch.stack((out_a, out_b), -2)), torch.logaddexp(lse_b, lse_a)


RIGHT = [shift_by_the_largest, as_torch_does, with_logsumexp, in_double, query_by_query, einsum]


@pytest.mark.parametrize("answer", RIGHT)
def test_right_in_other_ways(answer):
    solved("merge_outputs", answer)


def both(lse_a, lse_b):
    return torch.logaddexp(lse_a, lse_b)


def mean(out_a, lse_a, out_b, lse_b):
    return (out_a + out_b) / 2, both(lse_a, lse_b)


def added(out_a, lse_a, out_b, lse_b):
    return out_a + out_b, both(lse_a, lse_b)


def naive(out_a, lse_a, out_b, lse_b):
    a, b = lse_a.exp().unsqueeze(-1), lse_b.exp().unsqueeze(-1)
    return (out_a * a + out_b * b) / (a + b), (lse_a.exp() + lse_b.exp()).log()


def not_divided(out_a, lse_a, out_b, lse_b):
    return out_a * lse_a.exp().unsqueeze(-1) + out_b * lse_b.exp().unsqueeze(-1), both(lse_a, lse_b)


def swapped(out_a, lse_a, out_b, lse_b):
    share_a, share_b = torch.stack([lse_b, lse_a]).softmax(0).nan_to_num().unsqueeze(-1)
    return out_a * share_a + out_b * share_b, both(lse_a, lse_b)


def larger(out_a, lse_a, out_b, lse_b):
    return torch.where((lse_a > lse_b).unsqueeze(-1), out_a, out_b), both(lse_a, lse_b)


def by_the_logarithm(out_a, lse_a, out_b, lse_b):
    return (out_a * lse_a[..., None] + out_b * lse_b[..., None]) / (lse_a + lse_b)[..., None], both(lse_a, lse_b)


def nan_where_nothing_is_seen(out_a, lse_a, out_b, lse_b):
    lse = both(lse_a, lse_b)
    return out_a * (lse_a - lse).exp()[..., None] + out_b * (lse_b - lse).exp()[..., None], lse


def sum_of_lse(out_a, lse_a, out_b, lse_b):
    return check.merge_outputs.published(out_a, lse_a, out_b, lse_b)[0], lse_a + lse_b


def larger_lse(out_a, lse_a, out_b, lse_b):
    return check.merge_outputs.published(out_a, lse_a, out_b, lse_b)[0], torch.maximum(lse_a, lse_b)


def the_sum_itself(out_a, lse_a, out_b, lse_b):
    return check.merge_outputs.published(out_a, lse_a, out_b, lse_b)[0], both(lse_a, lse_b).exp()


def least_for_nothing(out_a, lse_a, out_b, lse_b):
    out, lse = check.merge_outputs.published(out_a, lse_a, out_b, lse_b)
    return out, lse.clamp(min=LEAST)


def type_lost(out_a, lse_a, out_b, lse_b):
    share = torch.stack([lse_a, lse_b]).softmax(0).nan_to_num().unsqueeze(-1)
    return out_a * share[0] + out_b * share[1], both(lse_a, lse_b)


def only_out(out_a, lse_a, out_b, lse_b):
    return check.merge_outputs.published(out_a, lse_a, out_b, lse_b)[0]


def in_place(out_a, lse_a, out_b, lse_b):
    out, lse = check.merge_outputs.published(out_a, lse_a, out_b, lse_b)
    return out_a.copy_(out), lse_a.copy_(lse)


def another_shape(out_a, lse_a, out_b, lse_b):
    out, lse = check.merge_outputs.published(out_a, lse_a, out_b, lse_b)
    return out, lse.unsqueeze(-1)


WRONG = [
    (mean, "is the mean of both"),
    (added, "is the sum of both, but each of them is divided"),
    (naive, "e^1000 is inf"),
    (not_divided, "the sum of these weights is to be divided by"),
    (swapped, "the wrong way round"),
    (larger, "is that of the part with the larger lse"),
    (by_the_logarithm, "has lse itself as weight"),
    (nan_where_nothing_is_seen, "(-inf) - (-inf) is nan"),
    (sum_of_lse, "lse is the sum of both"),
    (larger_lse, "lse is the larger of both"),
    (the_sum_itself, "lse is the sum itself"),
    (least_for_nothing, "is to be -inf for a query that saw nothing"),
    (type_lost, "has another type than what was given"),
    (only_out, "is to give back two things"),
    (in_place, "changed out_a"),
    (another_shape, "shape (2, 3, 4) was expected"),
]


@pytest.mark.parametrize(("answer", "words"), WRONG, ids=lambda value: getattr(value, "__name__", ""))
def test_wrong(answer, words):
    verdict = judge("merge_outputs", answer, words)
    assert verdict.expected
    assert verdict.got


def test_a_stub_is_not_yet():
    def merge_outputs(out_a, lse_a, out_b, lse_b):
        """Not written."""

    assert check.merge_outputs(merge_outputs).state == "not yet"
