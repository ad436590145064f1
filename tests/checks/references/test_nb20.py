"""The mended functions of notebook 20 do what the plain loop does; what it shows to be mended is what was sick."""

import inspect
import json
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

from course_utils import launch
from course_utils.checks import nb20_capstone as nb20
from course_utils.checks.probes import batch, weights
from course_utils.lessons import cases
from course_utils.lessons.models import mlp

NOTEBOOK = Path(__file__).parents[3] / "notebooks" / "20_capstone.ipynb"


def plain(batches):
    model = mlp()
    for x, y in batches:
        gradients = torch.autograd.grad(cross_entropy(model(x), y), list(model.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter -= 0.1 * gradient
    return weights(model)


def test_one_step_of_a_large_batch():
    model = mlp()
    nb20.train_large(model, torch.optim.SGD(model.parameters(), lr=0.1), *batch(0, 9), 4)
    torch.testing.assert_close(weights(model), plain([batch(0, 9)]))


def test_a_broken_batch_is_left_out_everywhere():
    def run():
        batches = [batch(step) for step in range(4)]  # alike on both ranks, so that their mean is each one's
        if torch.distributed.get_rank():
            batches[2][0][0] = torch.nan
        return weights(nb20.train_noisy(batches))

    for end in launch(run, ranks=2, device="cpu", show=False).results:
        torch.testing.assert_close(end, plain(batch(step) for step in (0, 1, 3)))


def test_every_wrong_name_has_a_sentence_that_does_not_give_the_right_one_away():
    for letter, name in (nb20.name_abc() | nb20.name_def()).items():
        assert nb20.AGAINST[letter].keys() == nb20.FAULTS.keys() - {name}
        assert not any(name in why for why in nb20.AGAINST[letter].values())


def test_the_notebook_shows_the_functions_that_are_sick():
    cells = ["".join(cell["source"]) for cell in json.loads(NOTEBOOK.read_text())["cells"]]
    for sick in (cases.case_b, cases.cut_layers, cases.train_large, cases.train_noisy):
        _, _, body = inspect.getsource(sick).partition('"""\n')
        assert any(body.rstrip() in cell.replace("cases.", "") for cell in cells), sick.__name__
