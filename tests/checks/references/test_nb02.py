"""The published solutions of notebook 02 against arithmetic by hand and an unbroken run."""

import torch
from torch.nn.functional import cross_entropy

from course_utils.checks.nb02_one_device import batches, resume, save, small, train, train_step


def test_train_step_is_momentum_by_hand():
    (model, optimizer), (ours, _) = small(), small()
    velocity = [0.0] * 6
    for x, y in batches(8, 5, 8):
        loss = cross_entropy(ours(x), y)
        gradients = torch.autograd.grad(loss, list(ours.parameters()))
        velocity = [0.9 * v + g for v, g in zip(velocity, gradients, strict=True)]
        with torch.no_grad():
            for weight, v in zip(ours.parameters(), velocity, strict=True):
                weight -= 0.2 * v
        torch.testing.assert_close(train_step(model, optimizer, x, y), loss.detach())
        torch.testing.assert_close(list(model.parameters()), list(ours.parameters()))


def test_resume_goes_on_like_a_run_that_never_stopped(tmp_path):
    model, optimizer, shuffle = save(tmp_path / "file.pt", 2)
    again, its_optimizer, its_shuffle = *small(seed=1, lr=0.1), torch.Generator()
    assert resume(tmp_path / "file.pt", again, its_optimizer, its_shuffle) == 3
    assert train(again, its_optimizer, its_shuffle, 2) == train(model, optimizer, shuffle, 2)
