"""The script as text: its imports, the parts under names of their own, and a main that makes the call."""

from __future__ import annotations

import ast
import sys
import textwrap
from collections.abc import Iterable
from itertools import pairwise

from ..errors import CourseError
from .call import Call
from .collect import Collector, Elsewhere, Part
from .literal import WIDTH

ARGUMENTS = '''\
def arguments() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
OPTIONS
    return parser.parse_args()'''
MAIN = '''\
def main() -> None:
    """Join the other ranks, run, leave."""
BODY'''
ACCELERATOR = [
    "device = pick()",
    'if device.type != "cpu":',
    "    torch.accelerator.set_device_index(device.index)",
]
RESULT = ['if os.environ["RANK"] == "0":', '    print(json.dumps({"result": result}, default=str))']
END = 'if __name__ == "__main__":\n    main()'


def script(collector: Collector, call: Call, about: str, group: list[str]) -> str:
    """The text of the script that makes this call after the lines that join the other ranks, if it has any."""
    returns = (one for one in ast.walk(call.function.snippet.tree) if isinstance(one, ast.Return))
    result = any(one.value for one in returns)
    own = []
    if call.options:
        options = "\n".join(f"    parser.add_argument({option})" for option in call.options)
        own.append(collector.part(collector.standins, ARGUMENTS.replace("OPTIONS", options), "arguments"))
    before = ["args = arguments()"] * bool(own) + ["os.environ.update(ALONE | os.environ)", *group]
    body = [*before, "result = " * result + call.text, *RESULT * result]
    body += ["dist.destroy_process_group()"] if group else []
    text = "@record\n" * bool(group) + MAIN.replace("BODY", textwrap.indent("\n".join(body), "    "))
    first = text.splitlines().index(f"    {before[-1]}") + 2
    rows = range(first, first + call.text.count("\n") + 1)
    own.append(collector.part(collector.standins, text, "main", Elsewhere(rows, call.space, call.given)))
    parts = [*collector.imports.values(), *collector.parts]
    _name_all(sorted(parts, key=lambda part: (part not in own, not part.import_of, part.home != call.space.name)))
    body = sorted(collector.parts, key=lambda part: (part in own, part.home != collector.standins.name))
    return _spaced([f'"""{about}"""', _imports(collector.imports.values()), *map(_text, body), END])


def joined(*, cpu: bool, backend: str | None, time_limit: float | None) -> list[str]:
    """The lines of main in which a rank takes its device and joins the others."""
    backend = "gloo" if cpu and backend is None else backend
    options = [f'"{backend}"' if backend else "backend"]
    options += [] if backend == "gloo" or cpu else ['device_id=None if device.type == "cpu" else device']
    options += [f"timeout=timedelta(seconds={time_limit:g})"] if time_limit else []
    # Without a backend torch takes that of the accelerator it finds, also for ranks on the CPU.
    chosen = [] if backend else ["backend = dist.get_default_backend_for_device(device)"]
    return [*([] if cpu else ACCELERATOR), *chosen, f"dist.init_process_group({', '.join(options)})"]


def _name_all(parts: list[Part]) -> None:
    """Give each part names of its own in the script, none of which a local variable of its users hides."""
    taken: dict[str, Part] = {}
    for part in parts:
        users = [(node, user, name) for user in parts for node, used, name in user.uses if used is part]
        for name in part.names:
            second = f"{part.home.rpartition('.')[2].strip('_')}_{name.strip('_')}"
            for choice in [name] if part.import_of else [name, second, f"{second}_"]:
                free = taken.setdefault(choice, part) is part
                local = {user for node, user, one in users if one == name and ast.unparse(node) != choice}
                if free and not any(choice in user.snippet.locals for user in local):
                    part.names[name] = choice
                    break
            else:
                raise CourseError(
                    f"{name} cannot be exported: the script has another {name}, or a function that uses it has a "
                    "variable of that name. What to do: give one of the two another name."
                )


def _text(part: Part) -> str:
    changes = [(node, used.names[name]) for node, used, name in part.uses if ast.unparse(node) != used.names[name]]
    for node, to in changes:
        first = next(inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name))
        if first in part.snippet.locals:
            raise CourseError(
                f"{ast.unparse(node)}, which is {to} in the script, stands beside a variable {first} of the same "
                "function. What to do: give the variable another name."
            )
    named = [node for node in part.snippet.tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
    changes += [(node, part.names[node.name]) for node in named if part.names[node.name] != node.name]
    return part.snippet.replaced(changes)


def _imports(parts: Iterable[Part]) -> str:
    """The imports, sorted as isort does: the future, Python's own, others; `import x` before `from x import y`."""
    sections = ["from __future__ import annotations"]
    found = sorted((*part.import_of, *part.names) for part in parts if part.import_of[1] is not None)
    whole = [(part.import_of[0], *part.names) for part in parts if part.import_of[1] is None]
    whole.sort(key=lambda one: (one[0], one[0].partition(".")[0] != one[1], one[1]))
    for standard in (True, False):
        here = [one for one in found if _standard(one[0]) == standard]
        lines = [
            f"import {module}" + f" as {name}" * (name != module.partition(".")[0])
            for module, name in whole
            if _standard(module) == standard
        ]
        for module in dict.fromkeys(module for module, *_ in here):
            names = {attribute for of, attribute, name in here if of == module and name == attribute}
            names = sorted(names, key=_member)
            line = f"from {module} import {', '.join(names)}"
            if len(line) > WIDTH:
                line = f"from {module} import (\n" + "".join(f"    {name},\n" for name in names) + ")"
            lines += [line] if names else []
            lines += [f"from {module} import {one} as {name}" for of, one, name in here if of == module and one != name]
        sections += ["\n".join(lines)] if lines else []
    return "\n\n".join(sections)


def _standard(module: str) -> bool:
    return module.partition(".")[0] in sys.stdlib_module_names


def _member(name: str) -> tuple[int, str]:
    """Constants, classes, then the rest."""
    return (0 if name.isupper() and len(name) > 1 else 1 if name[:1].isupper() else 2), name


def _spaced(blocks: list[str]) -> str:
    """Two empty lines between blocks; one after the imports, none between short constants, where no `def` follows."""
    text = f"{blocks[0]}\n\n{blocks[1]}"
    for before, block in pairwise(["\n", *blocks[2:]]):
        first = next(line for line in block.splitlines() if not line.startswith("#"))
        tall = first.startswith(("def ", "class ", "@", "if ")) or before.startswith(("def ", "class "))
        text += "\n\n\n" if tall else "\n\n" if before == "\n" else "\n" if "\n" not in before + block else "\n\n\n"
        text += block
    return text + "\n"
