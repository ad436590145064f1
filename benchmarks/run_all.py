"""Run every benchmark, or some: `run_all.py --only live ddp`; with `--write`, put the tables into README.md."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ALL = ("launch", "faults", "live", "ddp", "instruments", "notebooks", "imports", "cores")
XLA = HERE.parent / ".venv-xla" / "bin" / "python"  # what `cores` needs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="put the tables into benchmarks/README.md")
    parser.add_argument("--quick", action="store_true", help="a smoke test")
    parser.add_argument("--only", nargs="+", choices=ALL, default=ALL)
    args = parser.parse_args()
    failed = []
    for name in args.only:
        python = str(XLA) if name == "cores" else sys.executable
        command = [python, str(HERE / f"{name}.py"), *(["--quick"] if args.quick else [])]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        if done.returncode:  # its error is on the terminal; the others go on
            failed.append(name)
            continue
        tables = done.stdout.strip()
        print(f"## {name}\n\n{tables}\n", flush=True)
        if args.write:
            readme = HERE / "README.md"
            between = re.compile(f"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
            readme.write_text(between.sub(lambda match, new=tables: f"{match[1]}{new}\n{match[2]}", readme.read_text()))
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
