"""Answers to the exercises of notebook 12."""

from course_utils.checks.nb12_pipeline_parallel import forwards_first, write_1f1b, write_zero_bubble


def by_what_it_holds(rank, ranks, micro_batches):
    done, order = {"F": 0, "B": 0}, []
    while done["B"] < micro_batches:
        what = "F" if done["F"] < micro_batches and done["F"] - done["B"] < ranks - rank else "B"
        order.append(f"{what}{done[what]}")
        done[what] += 1
    return "  ".join(order) + "\n"


def last_micro_batch_first(rank, ranks, micro_batches):
    when = {f"F{micro_batches - 1 - k}": 2 * (k - ranks + rank) + 1 for k in range(micro_batches)}
    when |= {f"B{micro_batches - 1 - k}": 2 * k for k in range(micro_batches)}
    return " ".join(sorted(when, key=when.get))


def with_too_many(rank, ranks, micro_batches):
    forwards = [f"F{k}" for k in range(ranks - rank)]
    return " ".join(forwards + [f"B{k}" for k in range(micro_batches)])


def unless_equal(rank, ranks, micro_batches):
    return (forwards_first if ranks == micro_batches else write_1f1b)(rank, ranks, micro_batches)


def unless_few(rank, ranks, micro_batches):
    if micro_batches > 3:
        return write_1f1b(rank, ranks, micro_batches)
    return " ".join(f"F{k} B{k}" for k in range(micro_batches))


def never_ends(rank, ranks, micro_batches):
    words = []
    while len(words) >= 0:
        words = ["F0"]


def when_there_is_no_room(rank, ranks, micro_batches):
    f = b = w = 0
    words = []
    while w < micro_batches:
        if f < micro_batches and f - b < ranks - rank and f - w < ranks:
            words.append(f"F{f}")
            f += 1
        elif b < f and b - w <= rank:
            words.append(f"B{b}")
            b += 1
        else:
            words.append(f"W{w}")
            w += 1
    return " ".join(words)


def late_by(late, tail=iter):
    """1F1B in which W comes so many micro-batches after B; the last W in the order of `tail`."""

    def write_zero_bubble(rank, ranks, micro_batches):
        words = []
        after = late(rank, ranks)
        for word in write_1f1b(rank, ranks, micro_batches).split():
            words.append(word)
            k = int(word[1:]) - after
            if word[0] == "B" and k >= 0:
                words.append(f"W{k}")
        last = range(max(0, micro_batches - after), micro_batches)
        return " ".join(words + [f"W{k}" for k in tail(last)])

    return write_zero_bubble


RIGHT = {
    "write_1f1b": [by_what_it_holds, last_micro_batch_first],
    "write_zero_bubble": [when_there_is_no_room, late_by(lambda rank, ranks: rank, tail=reversed)],
}
WRONG = {
    "write_1f1b": [
        unless_equal,
        unless_few,
        with_too_many,
        lambda *given: write_1f1b(*given).split(),
        never_ends,
    ],
    "write_zero_bubble": [
        write_1f1b,
        late_by(lambda rank, ranks: ranks - 1 - rank),
        lambda *given: write_zero_bubble(*given).replace("B0 W0", "W0 B0"),
    ],
}
HANGS = {never_ends}
