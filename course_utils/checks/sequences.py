"""The exercise on attention in parts: two finished outputs of kernels become one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .old import exercise, expect, wrong
from .on_ranks import same

CALL = "merge_outputs(out_a, lse_a, out_b, lse_b)"


def merge_outputs(out_a, lse_a, out_b, lse_b):
    lse = torch.stack([lse_a, lse_b])
    share_a, share_b = lse.softmax(0).nan_to_num().unsqueeze(-1)  # nan where both are -inf
    return (out_a * share_a + out_b * share_b).to(out_a.dtype), torch.logaddexp(lse_a, lse_b)


class _Case(NamedTuple):
    """What is given, and what attention over both parts at once gives, in float64."""

    name: str
    given: tuple[Tensor, Tensor, Tensor, Tensor]
    out: Tensor
    lse: Tensor
    tol: float


def _case(name: str, seed: int, *, scale: float = 1.0, shift: float = 0.0, unseen: str = "", tol: float = 1e-5,
          dtype: torch.dtype = torch.float32, lse_dtype: torch.dtype = torch.float32) -> _Case:
    """Two parts of three and five keys; `unseen` names the parts in which every second query sees nothing."""
    draw = torch.Generator().manual_seed(seed)
    s_a, s_b = (torch.randn(2, 3, 4, n, generator=draw, dtype=torch.float64) * scale + shift for n in (3, 5))
    v_a, v_b = (torch.randn(2, 3, n, 6, generator=draw, dtype=torch.float64) for n in (3, 5))
    for part, s in (("a", s_a), ("b", s_b)):
        if part in unseen:
            s[..., ::2, :] = -torch.inf
    (out_a, lse_a), (out_b, lse_b) = _attention(s_a, v_a), _attention(s_b, v_b)
    given = out_a.to(dtype), lse_a.to(lse_dtype), out_b.to(dtype), lse_b.to(lse_dtype)
    return _Case(name, given, *_attention(torch.cat([s_a, s_b], -1), torch.cat([v_a, v_b], -2)), tol)


def _attention(s: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    return s.softmax(-1).nan_to_num() @ v, s.logsumexp(-1)


def _cases() -> list[_Case]:
    small = [_case("scores around 0", seed) for seed in range(20)]
    return [
        *small,
        *(_case(f"scores around {shift:g}", 30, scale=5, shift=shift, tol=1e-3) for shift in (1000.0, -1000.0)),
        _case("scores from -300 to 300", 31, scale=100, tol=1e-3),
        _case("nothing seen in part a by some queries", 32, unseen="a"),
        _case("nothing seen in part b by some queries", 33, unseen="b"),
        _case("nothing seen in both parts by some queries", 34, unseen="ab"),
        _case("float64", 35, dtype=torch.float64, lse_dtype=torch.float64, tol=1e-10),
        _case("out in bfloat16, lse in float32", 36, dtype=torch.bfloat16, tol=0.05),
    ]


@exercise(
    merge_outputs,
    "A part counts by its share of the sum, e^lse_a / (e^lse_a + e^lse_b). How do you compute that without e^1000?",
    "The two shares are the softmax of lse_a and lse_b: `torch.stack([lse_a, lse_b]).softmax(0)`. Where both are -inf "
    "it gives nan, and both outputs are 0: `.nan_to_num()`.",
    "`share.unsqueeze(-1)` fits `out`. The new lse is `torch.logaddexp(lse_a, lse_b)`, and `.to(out_a.dtype)` gives "
    "the output its type back.",
)
def _merge_outputs(answer: Callable[..., Any]) -> str:
    for case in _cases():
        given = [t.clone() for t in case.given]
        got = answer(*given)
        if not isinstance(got, (tuple, list)) or len(got) != 2:
            if got is None or got is ...:
                expect(CALL, (case.out, case.lse), got)
            wrong(f"{CALL} is to give back two things: the output and the lse of both parts.",
                  expected="(out, lse)", got=got)
        _out(case, got[0])
        _lse(case, got[1])
        for name, before, after in zip(("out_a", "lse_a", "out_b", "lse_b"), case.given, given, strict=True):
            if not torch.equal(before, after):
                wrong(f"{CALL} changed {name}, which is still needed for the next part: make new tensors.",
                      expected="what was given, unchanged", got=f"another {name}")
    return f"Right for {len(_cases())} pairs of parts: with scores of ±1,000, and where queries see nothing."


def _out(case: _Case, got: Any) -> None:
    out_a, lse_a, out_b, lse_b = (t.double() for t in case.given)
    what, wanted = f"{case.name}: out", case.out.to(case.given[0].dtype)
    _fits(what, wanted, got)
    if _close(case.out, got, case.tol):
        return
    if not got.isfinite().all():
        wrong(f"{what} holds nan or inf. " + _not_finite(case), expected="finite numbers",
              got=f"{int((~got.isfinite()).sum())} of {got.numel()} are not")
    share = (lse_a - torch.logaddexp(lse_a, lse_b)).exp().nan_to_num().unsqueeze(-1)
    mistakes = {
        "is the mean of both. A part counts by its share of the sum, e^lse.": (out_a + out_b) / 2,
        "is the sum of both, but each of them is divided by its own sum already.": out_a + out_b,
        "has the shares the wrong way round: the part with the larger lse counts more.":
            out_a * (1 - share) + out_b * share,
        "is that of the part with the larger lse; the other counts, too.": torch.where(share > 0.5, out_a, out_b),
        "has lse itself as weight. It is a logarithm: the weight is e^lse.":
            (out_a * lse_a.unsqueeze(-1) + out_b * lse_b.unsqueeze(-1)) / (lse_a + lse_b).unsqueeze(-1),
    }
    for words, value in mistakes.items():
        if _close(value, got, case.tol):
            wrong(f"{what} {words}", expected=case.out[0, 0, 0], got=got[0, 0, 0])
    weighted = out_a * lse_a.exp().unsqueeze(-1) + out_b * lse_b.exp().unsqueeze(-1)
    if _close(weighted, got, 1e-3 * weighted.abs().max().nan_to_num().item()):
        wrong(f"{what}: the parts are weighted by e^lse, and the sum of these weights is to be divided by.",
              expected=case.out[0, 0, 0], got=got[0, 0, 0])
    same(what, wanted.double(), got.double(), tol=case.tol)


def _lse(case: _Case, got: Any) -> None:
    what, (_, lse_a, _, lse_b) = f"{case.name}: lse", case.given
    _fits(what, case.lse.to(lse_a.dtype), got)
    rounding = 10 * torch.finfo(lse_a.dtype).eps * case.lse.nan_to_num(neginf=0.0).abs().max().item()
    tol = max(case.tol, rounding)
    if _close(case.lse, got, tol):
        return
    if got.isnan().any() or (got.isinf() & ~case.lse.isinf()).any():
        wrong(f"{what} holds nan or inf. " + _not_finite(case), expected="the logarithm of both sums together, -inf "
              "only where nothing was seen", got=got[0, 0])
    if (case.lse.isinf() & ~got.isinf()).any():
        wrong(f"{what} is to be -inf for a query that saw nothing in both parts, as the next merge needs it.",
              expected=case.lse[0, 0], got=got[0, 0])
    for value, words in ((lse_a + lse_b, "is the sum of both. These are logarithms: it is their e^lse that add up."),
                         (torch.maximum(lse_a, lse_b), "is the larger of both; the other part's sum is missing."),
                         (case.lse.exp(), "is the sum itself, and its logarithm is wanted.")):
        if _close(value, got, tol):
            wrong(f"{what} {words}", expected=case.lse[0, 0], got=got[0, 0])
    same(what, case.lse, got.double(), tol=tol)


def _fits(what: str, wanted: Tensor, got: Any) -> None:
    """Ends the check where it is no tensor, or has another shape or type."""
    if not isinstance(got, Tensor) or got.shape != wanted.shape:
        expect(what, wanted, got)
    if got.dtype != wanted.dtype:
        wrong(f"{what} has another type than what was given.", expected=str(wanted.dtype), got=str(got.dtype))


def _close(expected: Tensor, got: Tensor, tol: float) -> bool:
    return torch.allclose(expected.double(), got.double(), rtol=0.0, atol=tol)


def _not_finite(case: _Case) -> str:
    if "nothing" in case.name:
        return "Where lse is -inf, take care: (-inf) - (-inf) is nan, and so is 0 / 0."
    return "e^1000 is inf and e^-1000 is 0: only differences of the lse may go into an exp."
