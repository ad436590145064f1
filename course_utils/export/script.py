"""The parts of a function, its arguments and the script's own few functions, written down as one file."""

from __future__ import annotations

import ast
import sys
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from ..ground.errors import CourseError
from .call import Argument
from .collect import Collector, Part
from .literal import WIDTH
from .templates import ALONE, MAIN, PICK, REPORT, SPAN

MARK = "Exported from a notebook"
RESERVED = ("main", "args", "device", "backend", "result", "arguments", "metrics_file", "ALONE", "RUNS", "STEPS")
TALL = ("def ", "class ", "@", "if ")  # begins a block that stands between two empty lines


@dataclass(frozen=True)
class Plan:
    """What the script does around the function."""

    about: str  # its docstring
    arguments: list[Argument]  # what the command line can change
    group: str  # the lines that join the other ranks; "" where the function does so itself
    device: str | None  # the kind of device; None: the accelerators where each rank has one


def script(collector: Collector, call: Part, plan: Plan) -> str:
    """The text of the script whose main makes this call."""
    result = any(isinstance(node, ast.Return) and node.value for node in ast.walk(call.uses[0][1].names_in.tree))
    own = _own(collector, plan, result)
    _name_all(collector, call)
    future = any(space.future_annotations for space in collector.spaces.values())
    body = [_text(part) for part in collector.parts]
    main = [_arguments(plan.arguments)] if plan.arguments else []
    main += [_main(call, plan, result), END]
    return _spaced([f'"""{plan.about}"""', _imports(collector.imports, future), *own, *body, *main])


def _own(collector: Collector, plan: Plan, result: bool) -> list[str]:
    """The script's stand-ins for the course's functions that it uses, with what they import."""
    imports, own = [("os", None, "os")], [ALONE]
    imports += [("json", None, "json")] if result else []
    imports += [("argparse", None, "argparse")] if plan.arguments else []
    if plan.group:
        imports += [("torch.distributed", None, "dist")]
        imports += [("datetime", "timedelta", "timedelta")] if "timedelta" in plan.group else []
        imports += [("torch.distributed.elastic.multiprocessing.errors", "record", "record")]
    if plan.group and plan.device != "cpu":
        collector.helper("pick")
    if "pick" in collector.helpers:
        imports += [("torch", None, "torch")]
        own += [PICK.get(plan.device, PICK["other"]).replace("KIND", str(plan.device))]
    if "report" in collector.helpers:
        counted = not all(one.args or "step" in {k.arg for k in one.keywords} for one in _calls(collector, "report"))
        imports += [(name, None, name) for name in ("json", "time", *["itertools"] * counted)]
        imports += [("functools", "cache", "cache"), ("pathlib", "Path", "Path"), ("typing", "TextIO", "TextIO")]
        own += [REPORT["counted" if counted else "given"]]
    if "span" in collector.helpers:
        imports += [("torch.profiler", "record_function", "record_function"), ("typing", "Self", "Self")]
        own += [SPAN]
    for one in _calls(collector, "pick"):
        if one.args or one.keywords:
            raise CourseError(
                f"{ast.unparse(one)} cannot be exported: the script knows pick() alone, this rank's device. "
                'What to do: write pick(), or torch.device("cpu") for the CPU.'
            )
    for each in imports:
        collector.imported(*each)
    return own


def _calls(collector: Collector, helper: str) -> Iterable[ast.Call]:
    found = collector.helpers.get(helper)
    for part in collector.parts:
        for node in (node for node, used, _ in part.uses if used is found):
            parent = part.names_in.parents[node]
            if isinstance(parent, ast.Call) and parent.func is node:
                yield parent


def _name_all(collector: Collector, call: Part) -> None:
    """Give each part names of its own in the script, none of which a local variable of its users hides."""
    taken: dict[str, Part] = dict.fromkeys(RESERVED, call)
    helpers = [*collector.helpers.values()]
    parts = [*helpers, *collector.imports.values(), *collector.parts]
    home = call.home
    users: dict[tuple[Part, str], list[tuple[ast.AST, Part]]] = {}
    for part in [*parts, call]:
        for node, used, name in part.uses:
            users.setdefault((used, name), []).append((node, part))
    for part in sorted(parts, key=lambda part: (part.home != home, not part.import_of, part not in helpers)):
        for name in part.names:
            prefix = part.home.rpartition(".")[2].strip("_")
            second = f"{prefix}_{name.strip('_')}"
            for choice in [name] if part.import_of or part in helpers else [name, second, f"{second}_"]:
                hidden = [u for node, u in users.get((part, name), []) if _differs(node, choice) and choice in u.locals]
                if not hidden and taken.setdefault(choice, part) is part:
                    part.names[name] = choice
                    break
            else:
                raise CourseError(
                    f"{name} cannot be exported: the script has another {name}, or a function that uses it has a "
                    "variable of that name. What to do: give one of the two another name."
                )


def _differs(node: ast.AST, name: str) -> bool:
    return ast.unparse(node) != name


def _text(part: Part) -> str:
    changes = [(node, used.names[name]) for node, used, name in part.uses if _differs(node, used.names[name])]
    for node, to in changes:
        first = next(inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name))
        if first in part.locals:
            raise CourseError(
                f"{ast.unparse(node)}, which is {to} in the script, stands beside a variable {first} of the same "
                "function. What to do: give the variable another name."
            )
    own = [node for node in part.names_in.tree.body if part.names.get(getattr(node, "name", None), None)]
    changes += [(node, part.names[node.name]) for node in own if part.names[node.name] != node.name]
    return part.names_in.replaced(changes)


def _main(call: Part, plan: Plan, result: bool) -> str:
    lines = ["args = arguments()"] if plan.arguments else []
    lines += ["os.environ.update(ALONE | os.environ)"]
    if plan.group:
        if plan.device != "cpu":
            lines += ["device = pick()"]
            lines += ['if device.type != "cpu":', "    torch.accelerator.set_device_index(device.index)"]
        lines += plan.group.splitlines()
    lines += _wrapped(("result = " if result else "") + _text(call)).splitlines()
    if result:
        lines += ['if os.environ["RANK"] == "0":', '    print(json.dumps({"result": result}, default=str))']
    lines += ["dist.destroy_process_group()"] if plan.group else []
    main = MAIN.replace("    BODY", textwrap.indent("\n".join(lines), "    "))
    return main if plan.group else main.replace("@record\n", "")


END = 'if __name__ == "__main__":\n    main()'


def _arguments(arguments: list[Argument]) -> str:
    lines = ['def arguments() -> argparse.Namespace:', '    """What the command line says."""',
             "    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])"]  # fmt: skip
    lines += [f"    parser.add_argument({argument.declared})" for argument in arguments]
    return "\n".join([*lines, "    return parser.parse_args()"])


def _wrapped(call: str) -> str:
    """A call over several lines where one is too long, as ruff would write it."""
    if len(call) <= WIDTH - 4:
        return call
    node = ast.parse(call).body[0].value
    result = call[: node.col_offset]
    inside = [ast.get_source_segment(call, part) for part in node.args]
    inside += [f"{k.arg}={ast.get_source_segment(call, k.value)}" for k in node.keywords]
    head, one_line = ast.get_source_segment(call, node.func), ", ".join(inside)
    rows = [one_line] if len(one_line) <= WIDTH - 8 else [f"{each}," for each in inside]
    return f"{result}{head}(\n" + textwrap.indent("\n".join(rows), "    ") + "\n)"


def _imports(found: Iterable[tuple[str, str | None, str]], future: bool) -> str:
    """The imports, sorted as isort does: the future, Python's own, others; `import x` before `from x import y`."""
    sections = ["from __future__ import annotations"] if future else []
    for standard in (True, False):
        plain, named = set(), {}
        for module, attribute, name in found:
            if (module.partition(".")[0] in sys.stdlib_module_names) != standard:
                continue
            if attribute is None:
                plain.add((module, f"import {module}" + (f" as {name}" if name != module.partition(".")[0] else "")))
            else:
                renamed = attribute if name != attribute else ""  # which stands on a line of its own
                named.setdefault((module, renamed, name if renamed else ""), []).append(attribute)
        lines = [line for _, line in sorted(plain)]
        for (module, renamed, name), attributes in sorted(named.items()):
            names = [f"{renamed} as {name}"] if renamed else sorted({*attributes}, key=_member)
            line = f"from {module} import {', '.join(names)}"
            rows = "".join(f"    {name},\n" for name in names)
            lines.append(line if len(line) <= WIDTH else f"from {module} import (\n{rows})")
        sections += ["\n".join(lines)] if lines else []
    return "\n\n".join(sections)


def _member(name: str) -> tuple[int, str]:
    """Constants, classes, then the rest."""
    return (0 if name.isupper() and len(name) > 1 else 1 if name[:1].isupper() else 2), name


def _spaced(blocks: list[str]) -> str:
    """Two empty lines around functions and classes, one after the imports, none between short constants."""
    text = f"{blocks[0]}\n\n{blocks[1]}\n\n"
    for before, block in pairwise(["", *blocks[2:]]):
        first = next(line for line in block.splitlines() if not line.startswith("#"))
        apart = first.startswith(TALL) or any(line.startswith(TALL) for line in before.splitlines())
        loose = "\n" in before or "\n" in block
        text += ("\n\n\n" if apart else "" if not before else "\n\n" if loose else "\n") + block
    return text + "\n"
