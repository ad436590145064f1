"""What other people's objects cannot stop: each is handled under a guard, and named if it fails."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

_told: set[str] = set()


class LeftOut(list[str]):
    """What was left out, and why, a line each."""

    @contextmanager
    def unless(self, what: str) -> Iterator[None]:
        """Handle `what` in this block, or leave it out."""
        try:
            yield
        except Exception as error:  # code of anybody's classes runs there
            why = traceback.format_exception_only(error)[-1].splitlines()[0]
            self.append(f"{what} ({why})")

    def tell(self) -> None:
        """Print each line, once in the life of this process."""
        for line in self:
            if line not in _told:
                print(f"Ranks do without {line}.")
                _told.add(line)
