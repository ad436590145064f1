"""The mended functions of notebook 20 do what the plain loop does; what it shows to be mended is
what was sick.
"""

import inspect

import torch
from torch.nn.functional import cross_entropy

from course_utils.checks import nb20_capstone as nb20
from course_utils.checks.instruments import batch, weights
from course_utils.lessons import faulty_jobs
from course_utils.lessons.models import mlp
from tests.files import ROOT, cells


def test_one_step_of_a_large_batch():
    model, (x, y) = mlp(), batch(0, 9)
    gradients = torch.autograd.grad(cross_entropy(model(x), y), [*model.parameters()])
    expected = weights(model) - 0.1 * torch.cat([gradient.flatten() for gradient in gradients])
    nb20.train_large(model, torch.optim.SGD(model.parameters(), lr=0.1), x, y, 4)
    torch.testing.assert_close(weights(model), expected)


def test_every_wrong_name_has_a_sentence_that_does_not_give_the_right_one_away():
    for letter, name in (nb20.name_abc() | nb20.name_others()).items():
        assert nb20.AGAINST[letter].keys() == nb20.FAULTS.keys() - {name}
        assert not any(name in why for why in nb20.AGAINST[letter].values())


def test_the_notebook_shows_the_functions_that_are_sick():
    shown = cells(ROOT / "notebooks" / "20_capstone.ipynb", "code")
    sources = [cell.source.replace("faulty_jobs.", "") for cell in shown]
    for sick in (
        faulty_jobs.job_b,
        faulty_jobs.cut_layers,
        faulty_jobs.train_large,
        faulty_jobs.train_noisy,
    ):
        _, _, body = inspect.getsource(sick).partition('"""\n')
        assert any(body.rstrip() in source for source in sources), sick.__name__
