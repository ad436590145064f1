"""What travels between the notebook and its ranks: once, and as it was."""

from contextlib import ExitStack
from unittest import mock

import numpy as np
import psutil
import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import nn
from torch.utils._pytree import tree_map

from course_utils import CourseError, RankError, launch, report
from course_utils.limits import usable_memory
from course_utils.ranks import pickler, tensors, values
from course_utils.ranks.values import LARGE, pack, unpack

BIG = LARGE  # numbers of 4 bytes each


def travel(value):
    return unpack(*pack(value, "no", {"value": value}))


ARRAYS = hnp.arrays(
    st.sampled_from(["float32", "int64", "uint8", "bool"]), hnp.array_shapes(min_side=0)
)
SMALL = st.none() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()


@st.composite
def parts(draw):
    """Of an array, a tensor or a parameter."""
    array = draw(ARRAYS)
    kind = draw(st.sampled_from(["array", "tensor", "parameter"]))
    whole = array if kind == "array" else torch.from_numpy(array)
    part = whole[draw(st.integers(0, len(array))) :].swapaxes(0, draw(st.integers(-1, 0)))
    if kind == "parameter":
        return nn.Parameter(part, requires_grad=part.is_floating_point() and draw(st.booleans()))
    return part


VALUES = st.recursive(
    SMALL | parts(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
)


def plain(value):
    """The value, of tensors and arrays what makes two of them equal."""

    def about(leaf):
        if isinstance(leaf, torch.Tensor):
            return type(leaf), leaf.requires_grad, about(leaf.detach().numpy())
        if isinstance(leaf, np.ndarray):
            return leaf.dtype, leaf.shape, leaf.tobytes()
        return type(leaf), leaf

    return tree_map(about, value)


@given(VALUES, st.sampled_from([LARGE, 16]))
def test_what_travels_arrives_equal(value, large):
    """Also where nearly all lies in a file, and small parts are copied."""
    with ExitStack() as patched:
        for module in (values, pickler, tensors):
            patched.enter_context(mock.patch.object(module, "LARGE", large))
        assert plain(travel(value)) == plain(value)


@pytest.mark.parametrize("count", [10, BIG])
def test_tensors_that_share_memory_go_on_sharing_it(count):
    whole = torch.arange(float(count))
    tied = nn.Linear(1, 1)
    tied.other = tied.weight
    first, again, view, module = travel([whole, whole, whole[: count // 2], tied])
    assert first is again
    first[3] = 7
    assert view[:5].tolist() == [0, 1, 2, 7, 4]
    assert module.other is module.weight
    assert whole[3] == 3


@pytest.mark.parametrize(
    ("views", "most"),  # bytes
    [
        (lambda x: [x[0, :5]], 64),
        (lambda x: [x[0, :5], x[-1, -5:]], 128),  # far from each other
        (lambda x: [x[:, 1]], 4 * 1024),  # a column: a number of each row
    ],
)
def test_a_small_view_travels_as_what_it_covers(views, most):
    before = views(torch.arange(1024.0 * 2048).view(1024, 2048))
    after = travel(before)
    assert all(map(torch.equal, after, before))
    storages = {x.untyped_storage()._cdata: x.untyped_storage().nbytes() for x in after}
    assert sum(storages.values()) <= most


def test_a_small_tensor_can_be_resized_and_attributes_stay():
    tensor = torch.ones(3)
    vars(tensor)["role"] = "bias"
    after = travel(tensor)
    assert after.resize_(5).shape == (5,)
    assert after.role == "bias"
    assert tensor.resize_(5).shape == (5,), "packing left the notebook's own as it was"


def test_attributes_of_a_tensor_may_lead_back_to_it():
    weight = nn.Parameter(torch.ones(2))
    vars(weight)["owner"] = [weight]
    optimizer = torch.optim.SGD([weight])
    first, second = travel((weight, optimizer))
    assert first.owner[0] is first is second.param_groups[0]["params"][0]


def test_many_tensors_of_less_than_a_megabyte_are_copied_once():
    tensors = [torch.ones(LARGE // 5) for _ in range(20)]
    parcel, file = pack(tensors, "no")
    [pickled, *_] = parcel.parts
    assert pickled[1] < 10_000
    assert sum(end - begin for begin, end in parcel.parts[1:]) == 20 * 4 * (LARGE // 5)
    assert [tensor.resize_(1).item() for tensor in unpack(parcel, file)] == [1] * 20


def test_hooks_of_a_module_travel():
    model = nn.Linear(2, 1)
    told = []
    model.register_forward_hook(lambda *_: told.append("first"))

    def step(model):
        model.register_forward_hook(lambda *_: told.append("second"))
        model(torch.ones(1, 2))
        return told

    assert launch(step, model, ranks=1, device="cpu").results == [["first", "second"]]


def test_large_arrays_can_be_written():
    assert travel(np.arange(BIG)).flags.writeable


def test_what_a_rank_writes_stays_in_it():
    data = torch.zeros(BIG)

    def write(x):
        x += 1
        return x[:3].tolist()

    assert launch(write, data, ranks=2).results == [[1, 1, 1]] * 2
    assert data.sum() == 0


def test_ranks_map_an_argument_and_the_notebook_maps_results():
    """Of 64 MB, a copy in each rank would be private to it."""

    def private(x):
        before = psutil.Process().memory_full_info().uss
        total = x.sum().item()
        dist.barrier()  # what only one rank has looked at, or still maps, counts as private
        more = psutil.Process().memory_full_info().uss - before
        dist.barrier()
        return total, more

    [(total, more), _] = launch(private, torch.ones(16 << 20), ranks=2, device="cpu").results
    assert total == 16 << 20
    assert more < 16 << 20

    run = launch(lambda: torch.ones(16 << 20), ranks=2)
    run.results[0] += 1
    assert run.results[0].sum() == 2 * run.results[1].sum() == 32 << 20


def test_what_is_too_large_is_refused_before_it_is_written(monkeypatch):
    monkeypatch.setattr(values, "usable_memory", lambda: (1 << 30, 1 << 20))
    assert usable_memory()[1] > 1 << 20
    with pytest.raises(CourseError, match=r"it takes 4.2 MB, and 1.05 MB of memory is free"):
        launch(lambda x: 0, torch.ones(BIG), ranks=2)


class OfRanks:
    def __getstate__(self):
        return {"made": "in a rank"}

    def __setstate__(self, state):
        raise ValueError("not here")


def test_a_result_that_cannot_be_opened_costs_nothing_else():
    def train():
        report(loss=1.0)
        dist.barrier()
        return OfRanks() if dist.get_rank() else torch.ones(BIG)

    words = (
        "rank 1 of 2 returned a OfRanks, which cannot be opened in the notebook: ValueError: not"
    )
    with pytest.raises(RankError, match=words) as caught:
        launch(train, ranks=2, device="cpu")
    assert caught.value.run.column("loss", rank=1) == [1.0]
