"""The steps of a split product agree with torch's product, and say what each rank holds."""

import pytest
import torch

from course_utils import CourseError, pictures
from course_utils.theory import matmul

WHOLE = (torch.tensor(matmul.X) @ torch.tensor(matmul.A)).tolist()


def filled(matrix):
    return torch.tensor([[0 if n is None else n for n in row] for row in matrix])


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("split", ["column", "row"])
def test_steps_agree_with_torch(split, ranks):
    start, computed, whole = matmul.steps(split, ranks)
    pieces = [filled(y) for _, _, y in computed.held]
    assert sum(pieces).tolist() == WHOLE
    for (x, a, y), mine in zip(computed.held, pieces, strict=True):
        assert (filled(x) @ filled(a)).tolist() == mine.tolist()
        finished = [n for row in y for n in row if n is not None]
        assert len(finished) == (8 // ranks if split == "column" else 8)
    assert all(filled(y).tolist() == WHOLE for _, _, y in whole.held)
    assert not any(n is not None for _, _, y in start.held for row in y for n in row)


def test_every_number_of_the_matrix_lies_on_one_rank():
    for split in ("column", "row"):
        held = [a for _, a, _ in matmul.steps(split, 4)[0].held]
        for i in range(4):
            for j in range(4):
                assert sum(a[i][j] is not None for a in held) == 1


def test_it_draws_itself():
    picture = pictures.matmul("row", 2)
    assert "A row split over 2 ranks" in repr(picture)
    assert "An all-reduce adds them up" in picture._repr_html_()


UNKNOWN = [(("diagonal",), '"column" and "row"'), (("row", 3), "1, 2 or 4 ranks")]


@pytest.mark.parametrize(("arguments", "words"), UNKNOWN)
def test_what_it_cannot_draw_is_said(arguments, words):
    with pytest.raises(CourseError, match=words):
        matmul.steps(*arguments)
