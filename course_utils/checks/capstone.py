"""The capstone: seven faults named by their pictures; the functions to mend are in `capstone_mends.py`
and `capstone_ranks.py`."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping

from .old import exercise, expect, wrong

FAULTS = {
    "straggler": ("slow rank", "slow device", "slow worker", "straggling rank"),
    "data stall": ("slow loader", "slow data", "data loading", "input stall", "slow data loader", "slow dataloader"),
    "slow link": ("slow network", "slow interconnect", "slow communication"),
    "unbalanced pipeline": ("unbalanced stages", "pipeline imbalance", "imbalanced pipeline", "unbalanced stage"),
    "recompilation": ("recompile", "recompiles", "recompilations", "recompile each step", "recompiling"),
    "wrong loss scale": ("loss scale", "accumulation without division", "wrong scale", "missing division"),
    "no set_epoch": ("set epoch", "missing set epoch", "set epoch missing", "forgotten set epoch", "same order"),
    "learning rate too high": ("learning rate", "too high a learning rate", "too high learning rate", "lr too high"),
    "silent rank": ("dead rank", "missing rank", "hang", "rank that never arrives", "rank never arrives"),
}
RIGHT = {"A": "straggler", "B": "data stall", "C": "unbalanced pipeline", "D": "wrong loss scale", "E": "no set_epoch",
         "F": "recompilation", "G": "silent rank"}

VALUES = ("wrong loss scale", "no set_epoch", "learning rate too high")
TIMES = ("straggler", "data stall", "slow link", "unbalanced pipeline", "recompilation")
SAME_TIME = "It changes the numbers, not the time they take: the bars would be those of the healthy job."
NO_STAGES = "Every rank has the whole model here: nobody waits for a neighbour's activations."
ENDED = "A rank that others wait for would keep them for ever. This run ended."
NO_TIME = "It costs time, and no axis of this picture is a time: the curves would be those of the healthy job."
ONE_DEVICE = "This job runs in one process, on one device."

# Why a wrong name is wrong: what the picture of the case would show, or cannot show.
AGAINST = {
    "A": dict.fromkeys(VALUES, SAME_TIME) | {
        "data stall": "The data bars would be long. Here they hardly show.",
        "slow link": "Every rank's all-reduce would be long. Look for one that is short each time.",
        "unbalanced pipeline": NO_STAGES,
        "recompilation": "Every rank compiles for itself: the forwards of all ranks would be long.",
        "silent rank": ENDED,
    },
    "B": dict.fromkeys(VALUES, SAME_TIME) | {
        "straggler": "The bars of one rank would be longer than those of the others. Here all ranks look alike.",
        "slow link": "The all-reduces would be what takes long. Which bars are the longest?",
        "unbalanced pipeline": NO_STAGES,
        "recompilation": "The forwards would be what takes long. Which bars are the longest?",
        "silent rank": ENDED,
    },
    "C": dict.fromkeys(VALUES, SAME_TIME) | {
        "straggler": "The same work would take longer on one rank. A bar is a layer, and bars are alike; count them.",
        "data stall": "Rank 0 alone reads the batches, and it is the first to be done.",
        "slow link": "The last rank would wait again and again for a message. Once it has begun, it has no gap.",
        "recompilation": "The forwards in which something is compiled would be longer than others. These are alike.",
        "silent rank": ENDED,
    },
    "D": dict.fromkeys(TIMES, NO_TIME) | {
        "no set_epoch": "All four runs are given the same rows in the same order.",
        "learning rate too high": "All four runs have the same one, and the first gradient does not depend on it.",
        "silent rank": ENDED,
    },
    "E": dict.fromkeys(TIMES, NO_TIME) | {
        "wrong loss scale": "A step too long makes the loss fall too fast, or rise. Look at how alike the curves are.",
        "learning rate too high": "The loss would jump about from epoch to epoch. Each curve lies just below the last.",
        "silent rank": ENDED,
    },
    "F": dict.fromkeys(VALUES, "It changes the loss. Neither of these two curves would know.") | {
        "straggler": ONE_DEVICE, "slow link": ONE_DEVICE, "unbalanced pipeline": ONE_DEVICE, "silent rank": ONE_DEVICE,
        "data stall": "It makes steps long, too, but the left curve would not rise for it.",
    },
    "G": dict.fromkeys(TIMES, "It makes a run slow, but every rank comes to the last all-reduce. Who had returned?")
    | dict.fromkeys(VALUES, "It changes the numbers; the ranks would all return."),
}


def _plain(said: str) -> str:
    words = re.sub(r"[^a-z]+", " ", said.lower()).split()
    return " ".join(word for word in words if word not in ("a", "an", "the"))


_MEANT = {_plain(way): name for name, others in FAULTS.items() for way in (name, *others)}


def _judge_names(said: object, letters: str) -> str:
    if not isinstance(said, Mapping):
        expect(f"the names of {', '.join(letters)}", dict.fromkeys(letters, "a name"), said)
    for letter in letters:
        name = said.get(letter)
        if name in (None, "", ...):
            continue
        if not isinstance(name, str):
            wrong(f"Case {letter}: a name is a text.", expected="a name from the list", got=name)
        meant = _MEANT.get(_plain(name))
        if meant is None:
            near = difflib.get_close_matches(_plain(name), _MEANT, n=1)
            hint = f"; did you mean {_MEANT[near[0]]!r}?" if near else ""
            wrong(f"Case {letter}: there is no {name!r} in the list{hint}", expected=", ".join(FAULTS), got=name)
        if meant != RIGHT[letter]:
            wrong(f"Case {letter} is no {meant!r}. {AGAINST[letter][meant]}")
    if missing := [letter for letter in letters if said.get(letter) in (None, "", ...)]:
        if len(missing) == len(letters):
            expect("the names", "names", None)
        wrong(f"Right so far. Without a name: {', '.join(missing)}.")
    return "; ".join(f"{letter}: {RIGHT[letter]}" for letter in letters) + "."


def name_abc():
    """What is wrong in A, B and C: names from the list."""
    return {"A": "straggler", "B": "data stall", "C": "unbalanced pipeline"}


@exercise(
    name_abc,
    "Compare each picture with the healthy one: which bars are longer, and on which ranks?",
    "Waiting is a symptom. The rank that never waits in an all-reduce is the one that the others wait for.",
    "In C every bar is a layer. Count the bars between two waits, rank by rank.",
)
def _name_abc(answer: Callable[[], Mapping[str, str]]) -> str:
    return _judge_names(answer(), "ABC")


def name_defg():
    """What is wrong in D, E, F and G: names from the list."""
    return {"D": "wrong loss scale", "E": "no set_epoch", "F": "recompilation", "G": "silent rank"}


@exercise(
    name_defg,
    "D: what is the first gradient norm with 1, 2, 4 and 8 pieces? E: what do the four curves have in common?",
    "F: which notebook had a curve that rose with every new batch size? G: who had returned?",
)
def _name_defg(answer: Callable[[], Mapping[str, str]]) -> str:
    return _judge_names(answer(), "DEFG")
