"""Files of an export, whole or not at all."""

from pathlib import Path

from ..errors import CourseError

MARK = "Exported from a notebook"  # in each file, which may be written again
Files = dict[str, str | bytes]  # by paths


def write(folder: Path, files: Files) -> None:
    """Write all of them, or none where one would replace something else than an earlier export, or
    the disk is full.
    """
    new = {}
    for name, text in files.items():
        file = folder / name
        data = text if isinstance(text, bytes) else text.encode()
        kept = file.read_bytes() if file.exists() else MARK.encode()
        if f"# {MARK}.\n".encode() + kept == data:  # the module itself, which lies there
            continue
        if MARK.encode() not in kept:
            raise CourseError(
                f"{file} is there already, and is no export: take another folder, or remove it."
            )
        new[file] = data
    parts = {file: file.with_name(f"{file.name}.part") for file in new}
    try:
        for file, data in new.items():
            file.parent.mkdir(parents=True, exist_ok=True)
            parts[file].write_bytes(data)
        for file, part in parts.items():
            part.replace(file)
    finally:
        for part in parts.values():
            part.unlink(missing_ok=True)
