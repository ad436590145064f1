"""Count the calls and bytes that a rank hands to the process group, from Python or from C++.

DDP, FSDP, DTensor and pipelines call the same operators of `c10d` as `dist.all_reduce` does. While
a `Traffic` is open, a kernel in front of each of these operators reads the sizes of the tensors and
passes the call on.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Self

from ..style import plural

OPERATORS = {  # of c10d, by the collective each one is
    "all-reduce": ("allreduce_", "allreduce_coalesced_"),
    "all-gather": (
        "allgather_",
        "_allgather_base_",
        "allgather_coalesced_",
        "allgather_into_tensor_coalesced_",
    ),
    "reduce-scatter": (
        "reduce_scatter_",
        "_reduce_scatter_base_",
        "reduce_scatter_tensor_coalesced_",
    ),
    "all-to-all": ("alltoall_", "alltoall_base_"),
    "broadcast": ("broadcast_",),
    "reduce": ("reduce_",),
    "scatter": ("scatter_",),
    "gather": ("gather_",),
    "send": ("send",),
    "recv": ("recv_", "recv_any_source_"),
    "barrier": ("barrier", "monitored_barrier_"),
}

COUNTED = {  # of its arguments, those whose name begins so; of the others "tensors"
    "all-gather": "output",
    "scatter": "output",
    "reduce-scatter": "input",
    "all-to-all": "input",
    "gather": "input",
}


@dataclass(eq=False)
class Traffic:
    """`with Traffic() as traffic: …` counts this rank's collectives, sends and receives.

    A function of a rank can return it.

    Attributes:
        calls: how many, by name: "all-reduce", "all-gather", "reduce-scatter", "send", "recv", …
        bytes: of the whole tensor that a collective is about. For n ranks with a shard of S bytes
            each, an all-gather or reduce-scatter counts n S; an all-reduce, a broadcast or a send
            counts the tensor itself.
        order: (name, bytes) of each, in the order of the calls.
        sent: bytes that each of the n ranks of the group must send for it: for an all-reduce, as a
            ring does it, 2 (n-1)/n of `bytes`; for all-gather, reduce-scatter and all-to-all
            (n-1)/n; for a send all of it; for recv and barrier nothing. Broadcast and reduce count
            as (n-1)/n on every rank, because who forwards them is the backend's choice.
    """

    calls: Counter[str] = field(default_factory=Counter)
    bytes: Counter[str] = field(default_factory=Counter)
    sent: Counter[str] = field(default_factory=Counter)
    order: list[tuple[str, int]] = field(default_factory=list)

    def __repr__(self) -> str:
        each = [f"{plural(n, name)}, {self.bytes[name]:,} bytes" for name, n in self.calls.items()]
        return f"Traffic({'; '.join(each) or 'nothing'})"

    @property
    def bytes_sent(self) -> int:
        """All that this rank sends, in bytes."""
        return sum(self.sent.values())

    def __enter__(self) -> Self:
        if not _open:
            _put_in_front()
        _open.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        _open.remove(self)
        if not _open:
            _library.pop()._destroy()


_open: list[Traffic] = []
_library: list[Any] = []  # what is in front of c10d's operators, while something is open


def _put_in_front() -> None:
    import torch

    library = torch.library.Library("c10d", "IMPL")
    # Below autograd, above every backend, and never switched off.
    key = torch._C.DispatchKey.BackendSelect
    below = torch._C._dispatch_keyset_full_after(key)
    for name, operators in OPERATORS.items():
        for operator in operators:
            packet = getattr(torch.ops.c10d, operator, None)
            if packet is not None:
                counting = _counting(packet.default, name, below)
                library.impl(packet.default, counting, key.name, with_keyset=True)
    _library.append(library)


def _counting(operator: Any, name: str, below: Any) -> Any:
    from torch._C._distributed_c10d import ProcessGroup

    index = {argument.name: i for i, argument in enumerate(operator._schema.arguments)}

    def counting(keys: Any, *args: Any, **kwargs: Any) -> Any:
        group = ProcessGroup.unbox(args[index["process_group"]])
        payload, sent = _sizes(name, args, index, group.size(), group.rank())
        for traffic in _open:
            traffic.calls[name] += 1
            traffic.bytes[name] += payload
            traffic.sent[name] += sent
            traffic.order.append((name, payload))
        return operator.redispatch(keys & below, *args, **kwargs)

    return counting


def _sizes(name: str, args: tuple, index: dict[str, int], ranks: int, rank: int) -> tuple[int, int]:
    """(bytes of the whole tensor, bytes that this rank sends)."""
    if name == "barrier":
        return 0, 0
    counted = COUNTED.get(name, "tensors")
    here = _bytes(next(args[i] for key, i in index.items() if key.startswith(counted)))
    if name in ("send", "recv"):
        return here, here if name == "send" else 0

    if name in ("scatter", "gather"):  # what is here is a shard
        root = rank == args[index["root_rank"]]
        if name == "scatter":
            return ranks * here, (ranks - 1) * here if root else 0
        return ranks * here, 0 if root else here

    turns = 2 if name == "all-reduce" else 1
    return here, turns * (ranks - 1) * here // ranks


def _bytes(tensors: Any) -> int:
    """Of a tensor, or of lists of them."""
    if isinstance(tensors, (list, tuple)):
        return sum(map(_bytes, tensors))
    return tensors.numel() * tensors.element_size()
