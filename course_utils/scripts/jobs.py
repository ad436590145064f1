"""What a cluster asks for beside a script."""

import re
import shlex
import textwrap
from pathlib import Path

from ..errors import CourseError
from .files import Files

SUFFIXES = {"slurm": ".sbatch", "kubernetes": ".yaml"}
MOST_BYTES = 128 * 1024  # of an argument of a command, in Linux


def job(kind: str, path: Path, files: Files, each: int, nodes: int, device: str) -> str:
    """For `kind`, one of `SUFFIXES`.

    It names the device, so that a node with a broken driver fails. A TrainJob has the files in its
    command, as Kubeflow's own SDK sends a function.
    """
    on_cpu = device == "cpu"
    template = Path(__file__).with_name(f"{kind}.txt").read_text("utf-8")
    return template.format(
        stem=path.stem,
        # Kubernetes takes lower-case letters, digits and hyphens, a letter first.
        job=re.sub("[^a-z0-9]+", "-", path.stem.lower()).lstrip("-0123456789").rstrip("-") or "job",
        nodes=nodes,
        each=each,
        device=device,
        script=shlex.quote(path.name),
        cpus=each if on_cpu else 4 * each,  # some for the workers of a DataLoader
        off="#" if on_cpu else "",
        files=_written(files) if kind == "kubernetes" else "",
    )


def _written(files: Files) -> str:
    """The lines of a shell that write them."""
    lines = ""
    for name, text in files.items():
        if "/" in name:
            lines += f"mkdir -p {shlex.quote(str(Path(name).parent))}\n"
        # A last line without an end would hide END_OF_FILE.
        whole = str(text).rstrip()
        lines += f"cat > {shlex.quote(name)} <<'END_OF_FILE'\n{whole}\nEND_OF_FILE\n"
    binary = [name for name, text in files.items() if isinstance(text, bytes)]
    if binary or len(lines.encode()) > MOST_BYTES:
        raise CourseError(
            f"a TrainJob has the files in its command, which takes text of up to {MOST_BYTES:,} "
            f"bytes, and not {', '.join(binary) or f'{len(lines.encode()):,}'}: leave "
            '"kubernetes" out of jobs=, and give the job a volume with the files.'
        )
    return textwrap.indent(lines, " " * 8).rstrip()
