"""The page of strategies says what the planner says; `strategies` measures what it is given."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from course_utils import launch, planner
from course_utils.lessons import data, models, published_runs, strategies, strategy_map
from course_utils.lessons.published_runs import A100
from course_utils.planner import plans
from tests.tables import rows

SIZES = {"layers": 2, "width": 32, "heads": 2, "context": 64}


FAMILIES = """
plan                       family
Plan()                     one device
Plan(dp=8)                 replicas (ZeRO 0, 1)
Plan(dp=8, zero=1)         replicas (ZeRO 0, 1)
Plan(dp=8, zero=2)         sharded (ZeRO 2, 3)
Plan(dp=2, tp=4, zero=3)   with tensor parts
Plan(pp=2)                 with stages
Plan(dp=2, tp=2, pp=2)     with both
"""


@pytest.mark.parametrize(("plan", "family"), rows(FAMILIES))
def test_family(plan, family):
    assert strategy_map.family(eval(plan, vars(planner))) == family
    assert family in strategy_map.FAMILIES


def test_the_page_says_the_best_plans():
    chosen = {name: published_runs.MODELS[name] for name in ("1.7 B", "39 B")}
    drawn = strategy_map.page(chosen, (1, 32), A100, batch=64, peak=312e12, title="A title")
    best = next(found for found in plans(chosen["39 B"], A100, devices=32, batch=64) if found.fits)
    assert drawn.alt.startswith(
        "A title. Fastest plans that fit. 1.7 B: on 1 dp 1, tp 1, pp 1, ZeRO 0, "
    )
    assert f"39 B: on 1 does not fit; on 32 {best.plan} in " in drawn.alt
    assert drawn._repr_png_()[1]["width"] == 760


def test_the_page_marks_what_changes_if_nothing_hides():
    """39 B on 64: ZeRO 3 gathers its weights behind arithmetic, stages do not need to."""
    chosen = {name: published_runs.MODELS[name] for name in ("1.7 B", "39 B")}
    drawn = strategy_map.page(chosen, (64,), A100, batch=2048, peak=312e12, title="A title")
    small, large = drawn.alt.removesuffix(".").split(". 39 B: ")
    assert small.endswith(", sharded (ZeRO 2, 3) within 18%")
    assert large.endswith(", with stages if nothing hides")


def whole(model: models.GPT):
    def step(x, y):
        loss = cross_entropy(model(x).flatten(0, 1), y.flatten())
        loss.backward()
        return loss.item()

    return model, step, {"place": 7}


def test_what_is_measured():
    text = data.text()
    run = launch(
        strategies.measure,
        whole,
        text,
        sizes=SIZES,
        batch=4,
        steps=5,
        optimizer=torch.optim.Adam,
        ranks=1,
        show=False,
    )
    (found,) = run.results
    start = dict(models.GPT(len(text.vocabulary), **SIZES).named_parameters())
    size = 4 * sum(p.numel() for p in start.values())
    assert found["memory"]["parameters"] == found["memory"]["gradients"] == size
    assert found["memory"]["optimizer states"] == 2 * size
    assert found["memory"]["activations"] > 0
    assert found["traffic"].bytes_sent == 0

    assert found["place"] == 7
    assert len(found["losses"]) == 5
    assert found["weights"].keys() == start.keys()
    assert any((found["weights"][name] - start[name]).abs().max() > 0 for name in start)
