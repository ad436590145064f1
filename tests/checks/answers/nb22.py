"""Answers to the exercises of notebook 22: the published loop with a line or two done otherwise."""

import inspect
import sys
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from course_utils.checks import nb22_your_own_script
from course_utils.checks.nb22_your_own_script import convert, plan_epoch

SOURCE = inspect.getsource(convert)
ADDED = "dist.all_reduce(sums)\n"
ALONE = "evaluate(network, test) if rank == 0 else torch.ones(3)"
CLIP = "clip_grad_norm_(network.parameters(), 1.0)\n"
FORWARD = "loss = cross_entropy(model(x), y) / pieces\n"
GUARD = "with contextlib.nullcontext() if last else model.no_sync():"
LOG = "(folder / 'log.csv').write_text(''.join(f'{n},\\n' for n in range(len(history))))"
NO_BUFFERS = ("for buffer in network.buffers():\n            dist.broadcast(buffer, src=0)", "")
SAMPLER = "data.DistributedSampler(train, drop_last=True)"
SHARE = "data.Subset(test, range(rank, len(test), ranks))"
STOP = "solo.waited(history) < patience"
TRAINS_ON = [
    (f" and {STOP}", ""),
    (
        "    return history",
        "        if solo.waited(history) >= patience:\n            break\n    return history",
    ),
]
WRITE = "if rank == 0:\n            print"
WRITTEN = "solo.write(folder, history, random, parts)\n"


def edited(*edits, **more):
    """The published function with each text of a pair replaced by the other; `more`: what else
    it may use.
    """
    source = SOURCE
    for old, new in edits:
        assert source.count(old) == 1, f"{source.count(old)} times in it: {old}"
        source = source.replace(old, new)
    names = vars(nb22_your_own_script) | {"sys": sys} | more
    exec(source, names)
    return names["convert"]


WRONG_BY_NAME = {
    "all_prepare": [("if rank == 0:\n        prepare()\n    dist.barrier()\n", "\n")],
    "all_print": [(WRITE, "if True:\n            print"), ("solo.write(", "rank or solo.write(")],
    "all_print_to_stderr": [
        (WRITE, f"print(rank, file=sys.stderr)\n        {WRITE}"),
    ],
    "all_write": [
        ('print(f"epoch {epoch}: {history[-1]}")\n            solo', "print()\n        solo")
    ],
    "barrier_on_rank_0": [("solo.write(folder,", "dist.barrier()\n            solo.write(folder,")],
    "batch_per_rank": [("batch // pieces // ranks", "batch // pieces")],
    "batch_per_rank_lr_times_ranks": [
        ("batch // pieces // ranks", "batch // pieces"),
        ("lr=0.01", "lr=0.01 * ranks"),
    ],
    "best_by_accuracy": [
        (
            WRITTEN,
            f"{WRITTEN}            if history[-1][2] == max(right for *_, right in history):\n"
            "                torch.save(network.state_dict(), folder / 'best.pt')\n",
        )
    ],
    "best_of_this_run": [
        ("history = []\n", "history = []\n    losses = []\n"),
        (
            WRITTEN,
            f"{WRITTEN}            losses.append(loss / rows)\n"
            "            if losses[-1] == min(losses):\n"
            "                torch.save(network.state_dict(), folder / 'best.pt')\n",
        ),
    ],
    "buffers_of_each_rank": [NO_BUFFERS],
    "buffers_summed": [("dist.broadcast(buffer, src=0)", "dist.all_reduce(buffer)")],
    "clip_each_piece": [(CLIP, "pass\n"), ("total += ", CLIP.strip() + "\n            total += ")],
    "divided_by_ranks_again": [(FORWARD, FORWARD.replace("pieces", "pieces / ranks"))],
    "early_stop_decided_by_rank_0": [(STOP, f"({STOP} or rank)")],
    "epoch_done_again": [("random[rank])", "random[rank])\n        history.pop()")],
    "evaluation_drops": [
        (SHARE, "data.Subset(test, range(rank, len(test) - len(test) % ranks, ranks))")
    ],
    "evaluation_mean_of_means": [
        ("evaluate(network, share)", "evaluate(network, share)\n        sums /= sums[2].clone()")
    ],
    "evaluation_of_own_share": [(ADDED, "pass\n")],
    "evaluation_on_rank_0": [(ADDED, "pass\n"), ("evaluate(network, share)", ALONE)],
    "evaluation_padded": [
        (SHARE, "data.Subset(test, [*data.DistributedSampler(test, shuffle=False)])")
    ],
    "evaluation_through_ddp_on_rank_0": [
        (ADDED, "pass\n"),
        ("evaluate(network, share)", ALONE.replace("network", "model")),
    ],
    "forward_past_ddp": [("(model(x), y)", "(network(x), y)")],
    "loaded_on_rank_0_after_ddp": [("(folder, parts)", "(folder, {} if rank else parts)")],
    "history_of_zeros_before_a_resume": [
        ("random[rank])", "random[rank])\n        history = [(0.0, *old[1:]) for old in history]")
    ],
    "history_of_the_last_two": [("return history", "return history[-2:]")],
    "log_at_the_end": [
        (WRITTEN, f"{WRITTEN}            (folder / 'log.csv').unlink()\n"),
        ("    return history", f"    if rank == 0:\n        {LOG}\n    return history"),
    ],
    "left_in_eval": [
        ("dist.all_reduce(sums)\n", "dist.all_reduce(sums)\n        network.eval()\n")
    ],
    "all_say_that_they_stop": [
        ("return history", "if len(history) < epochs:\n        print('early')\n    return history")
    ],
    "lr_times_ranks": [("lr=0.01", "lr=0.01 * ranks")],
    "no_ddp": [("DDP(network)", "network"), (GUARD, "with contextlib.nullcontext():")],
    "no_no_sync": [(GUARD, "with contextlib.nullcontext():")],
    "no_sampler": [("sampler=sampler, drop", "shuffle=True, drop")],
    "no_seed_at_all": [("torch.manual_seed(0)\n", "\n"), ("torch.manual_seed(rank)\n", "\n")],
    "no_set_epoch": [("sampler.set_epoch(epoch)", "")],
    "no_sync_always": [(GUARD, "with model.no_sync():")],
    "no_sync_backward_only": [
        (f"{GUARD}\n                {FORWARD}", f"{FORWARD}            {GUARD}\n")
    ],
    "not_divided_by_pieces": [(FORWARD, FORWARD.replace(" / pieces", ""))],
    "one_epoch_of_patience": [(STOP, "solo.waited(history) < 1")],
    "one_seed": [("torch.manual_seed(rank)", "torch.manual_seed(1)")],
    "one_seed_past_rank_0": [("torch.manual_seed(rank)", "torch.manual_seed(min(rank, 1))")],
    "optimizer_not_loaded": [
        ("(folder, parts)", '(folder, {n: parts[n] for n in ("network", "schedule")})')
    ],
    "patience_of_this_run": [
        (STOP, "bad < patience"),
        ("history = []\n", "history = []\n    bad = 0\n"),
        (
            "random = [None]",
            "bad = bad + 1 if solo.waited(history) else 0\n        random = [None]",
        ),
    ],
    "pieces_left_over": [("islice(loader, steps * pieces)", "loader")],
    "plain_slices": [
        (SAMPLER, "None\n    train = data.Subset(train, range(rank, len(train), ranks))"),
        ("sampler=sampler, drop", "shuffle=True, drop"),
        ("sampler.set_epoch(epoch)", ""),
    ],
    "rng_not_saved": [("torch.set_rng_state(random[rank])", "")],
    "rng_of_rank_0": [("random[rank]", "random[0]")],
    "sampler_pads": [(SAMPLER, "data.DistributedSampler(train)")],
    "sampler_seed_by_rank": [
        (SAMPLER, "data.DistributedSampler(train, seed=rank, drop_last=True)")
    ],
    "saves_the_wrapper": [('"network": network', '"network": model')],
    "schedule_of_solo_steps": [("epochs * steps)", "epochs * steps * ranks)")],
    "schedule_steps_by_ranks": [("schedule.step()", "[schedule.step() for _ in range(ranks)]")],
    "trains_on_after_an_early_stop": TRAINS_ON,
    "seed_by_rank_no_ddp": [
        ("torch.manual_seed(0)", "torch.manual_seed(rank)"),
        ("DDP(network)", "network"),
        (GUARD, "with contextlib.nullcontext():"),
    ],
}


def order_by_hand():
    order = "torch.randperm(len(train), generator=torch.Generator().manual_seed(7 + epoch))"
    mine = "[rank : len(train) // ranks * ranks : ranks].tolist()"
    return edited(
        (SAMPLER, "[*range(rank, len(train) // ranks * ranks, ranks)]"),
        ("sampler.set_epoch(epoch)", f"sampler[:] = {order}{mine}"),
        *TRAINS_ON,
        ("random[rank])", f"random[rank])\n        if not {STOP}:\n            return history"),
    )


def mean_and_clip(network):
    gradients = [p.grad for p in network.parameters()]
    for gradient in gradients:
        dist.all_reduce(gradient)
        gradient /= dist.get_world_size()
    norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
    for gradient in gradients:
        gradient *= (1 / (norm + 1e-6)).clamp(max=1.0)


def without_ddp():
    return edited(
        ("DDP(network)", "network"),
        (GUARD, "with contextlib.nullcontext():"),
        (CLIP, "mean_and_clip(network)\n"),
        mean_and_clip=mean_and_clip,
    )


def gathered():
    every = "every = [None] * ranks\n        dist.all_gather_object(every, sums)\n"
    return edited(
        (ADDED, f"{every}        sums = sum(every)\n"),
        (FORWARD, FORWARD.replace("(x)", "(input=x)")),
        ("torch.zeros(())", "torch.zeros((), dtype=torch.float64)"),
        ("if rank == 0:\n        prepare()", "if rank == ranks - 1:\n        prepare()"),
    )


class Whole:
    """A part of a sharded training, whose state all ranks get and set together."""

    def __init__(self, kind, *parts):
        self.get = getattr(state_dict, f"get_{kind}_state_dict")
        self.set = getattr(state_dict, f"set_{kind}_state_dict")
        self.parts = parts
        self.options = state_dict.StateDictOptions(full_state_dict=True, cpu_offload=True)

    def state_dict(self):
        return self.get(*self.parts, options=self.options)

    def load_state_dict(self, state):
        self.set(*self.parts, state, options=self.options)


def told(parts):
    """The states of all parts, which rank 0 may write by itself."""
    states = {name: part.state_dict() for name, part in parts.items()}
    return {n: SimpleNamespace(state_dict=lambda n=n: states[n]) for n in states}


def sharded():
    return edited(
        ("DDP(network)", 'fully_shard(network, mesh=init_device_mesh("cpu", (ranks,)))'),
        (
            GUARD,
            "network.set_requires_gradient_sync(last)\n            with contextlib.nullcontext():",
        ),
        ('"network": network', '"network": Whole("model", network)'),
        ('"optimizer": optimizer', '"optimizer": Whole("optimizer", network, optimizer)'),
        ("random = [None] * ranks", "random = [None] * ranks\n        states = told(parts)"),
        ("history, random, parts)", "history, random, states)"),
        fully_shard=fully_shard,
        init_device_mesh=init_device_mesh,
        Whole=Whole,
        told=told,
    )


def rounded_down(rows, batch, pieces, ranks):
    each = batch // pieces // ranks
    return each, rows // batch, rows % batch


def padded(rows, batch, pieces, ranks):
    each, _, _ = plan_epoch(rows, batch, pieces, ranks)
    steps = -(-rows // ranks) // each // pieces
    return each, steps, rows - steps * batch


def dealt_by_two_rests(rows, batch, pieces, ranks):
    if batch % pieces or batch % ranks:
        raise ValueError(batch)
    return rounded_down(rows, batch, pieces, ranks)


def in_one_two_or_four(rows, batch, pieces, ranks):
    if pieces not in (1, 2, 4):
        raise ValueError(pieces)
    return plan_epoch(rows, batch, pieces, ranks)


def from_one_division(rows, batch, pieces, ranks):
    if batch % (pieces * ranks):
        raise ValueError("it cannot be dealt")
    return [batch // pieces // ranks, *divmod(rows, batch)]


def counted(rows, batch, pieces, ranks):
    each = batch / pieces / ranks
    if each != int(each):
        raise ValueError(batch)
    steps = 0
    while rows >= batch:
        rows -= batch
        steps += 1
    return int(each), steps, rows


RIGHT = {
    "convert": [order_by_hand(), sharded(), without_ddp(), gathered()],
    "plan_epoch": [from_one_division, counted],
}
WRONG = {
    "convert": [edited(*edits) for edits in WRONG_BY_NAME.values()],
    "plan_epoch": [rounded_down, padded, dealt_by_two_rests, in_one_two_or_four],
}
