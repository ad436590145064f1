"""What `import course_utils` costs, beside the peers: alone, and on top of `import torch`; a fresh Python each."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

from bench import machine, median, options, show, table, targets

MODULES = ("course_utils", "accelerate", "lightning")
CODE = """
import sys, time
{before}
began = time.perf_counter()
import {module}
print(time.perf_counter() - began, 'torch' in sys.modules)
"""


def seconds(module: str, before: str = "") -> tuple[float, bool]:
    """How long one import took in a fresh interpreter, and whether torch is imported now."""
    code = CODE.format(module=module, before=before)
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=300).stdout
    took, has_torch = out.split()[-2:]
    return float(took), has_torch == "True"


def main() -> None:
    args = options(__doc__, repeat=9)
    there = [module for module in MODULES if importlib.util.find_spec(module)][: 1 if args.quick else None]
    about = machine()
    found: dict[tuple[str, str], list[tuple[float, bool]]] = {}
    for module in there:
        seconds(module)  # fills the caches
    for _ in range(args.repeat):
        for before in ("", "import torch"):
            for module in there:
                found.setdefault((module, before), []).append(seconds(module, before))
        found.setdefault(("torch", ""), []).append(seconds("torch"))
    middle = {key: median(took for took, _ in rows) for key, rows in found.items()}
    rows = [("`torch`", f"{1000 * middle['torch', '']:.0f}", "-", "yes")]
    for module in MODULES:
        if module not in there:
            rows.append((f"`{module}`", *["not measured" if args.quick else "not installed"] * 3))
            continue
        alone, after = (f"{1000 * middle[module, before]:.0f}" for before in ("", "import torch"))
        rows.append((f"`{module}`", alone, after, "yes" if found[module, ""][0][1] else "no"))
    show(
        f"Medians of {args.repeat} interleaved runs. {about}.",
        table(["`import`", "alone, ms", "after `import torch`, ms", "alone imports torch"], rows),
        targets(
            ("`import course_utils` after `import torch`", 1000 * middle["course_utils", "import torch"], 50, "ms"),
            ("torch imported by `import course_utils`", float(found["course_utils", ""][0][1]), 0, "times"),
        ),
    )


if __name__ == "__main__":
    main()
