"""What ranks print, as a terminal would show it: whole lines as they end, and below the cell the
lines that have not ended, such as a progress bar, in their newest state.
"""

import re
import time
from collections import Counter, defaultdict
from math import inf

from ..pictures.display import Display, shell
from ..style import size

MOST_BYTES = 64 << 20  # kept of what a rank prints
MOST_LINES = 2_000  # printed lines a launch shows; a notebook that is sent more becomes unusable
LAST_LINES = 20  # of each rank that are shown all the same, when it has ended
MOST_CHARACTERS = 1_000  # of a line that is shown
MOST_ROWS = 8  # of a rank that have not ended; as deep as anybody nests progress bars
FRAME_SECONDS = 0.25  # between two states of unfinished lines; more and more, see `Status`
# How a line of C++'s logs begins, before the name of its file.
LOG = rb"^(?:\[rank\d+\]:)?(?:\[?[A-Z]\d{4} |\d{4}-\d\d-\d\d )[\d:.]+[^\]]*"
HIDDEN = re.compile(
    rb"^\[Gloo\] Rank \d+ is connected"  # torch 2.9 of every process group
    rb"|^WARNING: All log messages b"  # TorchTPU of itself
    rb"|^\S+: \w+: <TorchTpu/(ApiStage|Performance)/|"
    + LOG
    + rb"(rendezvous\.cc:\d+\]"  # XLA's CPU client of a core that is late
    rb"|\] Warning: (<TorchTpu/(ApiStage|Performance)/"
    rb"|The \.grad attribute"  # TorchTPU of its views
    rb"|Time stats are currently only collected for CPU and CUDA))"  # DDP on other devices
)
# Of a terminal's controls those that bars use, of tqdm and of rich.
CONTROLS = re.compile(rb"(\n|\r|\x1b\[\d*[AKG]|\x1b\[\?25[hl])")
COMMAND = re.compile(rb"\x1b\][^\x07\x1b\n]*(?:\x07|\x1b\\)")  # of a terminal: a link, a title
INCOMPLETE = re.compile(rb"\x1b(\[[\d?]*|\][^\x07\x1b\n]*\x1b?)?$")


class Screen:
    """The rows of one rank that may still change.

    A row that ends is a line. A carriage return begins it again, and one that a program has begun
    again is not over at its end: it may be a bar above another bar. While a program hides the
    cursor, none is.
    """

    def __init__(self) -> None:
        self.rows = [bytearray()]
        self.cut = 0  # bytes, of the begin of rows
        self._at = 0  # the row of the cursor
        self._begins = True  # the cursor is at the begin of its row
        self._fresh = True  # nothing has been written since the cursor came to this row
        self._hidden = False  # the cursor
        self._rest = b""  # the beginning of a control

    def add(self, data: bytes) -> list[bytes]:
        """Take more of what is printed; the lines that it ends."""
        data = self._rest + data
        incomplete = INCOMPLETE.search(data)
        end = incomplete.start() if incomplete else len(data)
        self._rest = data[end:]

        lines: list[bytes] = []
        for part in CONTROLS.split(COMMAND.sub(b"", data[:end])):
            row = self.rows[self._at]
            if part.startswith(b"\x1b[") and CONTROLS.fullmatch(part):  # a colour is text
                lines += self._obey(part[2:-1], part[-1:])
            elif part == b"\n" and b"\r" not in row and not self._hidden:
                lines += self._take(self._at + 1)
                self._fresh = self._begins = True
            elif part == b"\n":
                self._at += 1
                self._fresh = self._begins = True
                if self._at == len(self.rows):
                    self.rows.append(bytearray())
                if self._at == MOST_ROWS:
                    lines += self._take(1)
            elif part:
                if self._fresh and part != b"\r":
                    if not self._hidden:  # text: the rows above are over
                        lines += self._take(self._at)
                    row.clear()
                self._fresh = False
                self._begins = part == b"\r"
                row += part
                self.cut += max(0, len(row) - MOST_BYTES)
                del row[:-MOST_BYTES]
        return lines

    def _obey(self, number: bytes, control: bytes) -> list[bytes]:
        """Move up, erase the row or what follows, go to its begin, or hide and show the cursor."""
        if control == b"A":
            self._at = max(0, self._at - int(number or 1))
            self._fresh = False
        elif control == b"K":
            if self._begins or number in (b"1", b"2"):  # else nothing follows the cursor
                self.rows[self._at][:] = b"\r"
        elif control == b"G":
            self._begins = True
            self.rows[self._at] += b"\r"
        else:
            self._hidden = control == b"l"
            if not self._hidden:
                return self._take(self._at)
        return []

    def _take(self, count: int) -> list[bytes]:
        """The first rows, which are over."""
        ended = [bytes(row) for row in self.rows[:count]]
        # A bar that is taken away at its end leaves an empty row.
        lines = [row for row in ended if b"\r" not in row or state(row).strip()]
        self.rows = self.rows[count:] or [bytearray()]
        self._at = max(0, self._at - count)
        return lines

    def rest(self) -> list[bytes]:
        """All rows that are left."""
        return [row for row in self._take(len(self.rows)) if row]

    def states(self) -> list[str]:
        """What these rows show now."""
        return [text for row in self.rows if (text := state(row)).strip()]


def state(line: bytes | bytearray) -> str:
    """What a terminal shows of a line: what follows its last carriage return, cut in the middle."""
    end = len(line)
    while end and line[end - 1] == ord("\r"):
        end -= 1
    begin = line.rfind(b"\r", 0, end) + 1
    most = 4 * MOST_CHARACTERS  # bytes of so many characters
    if end - begin <= most:
        text = line[begin:end].decode(errors="replace")
    else:
        first, last = line[begin : begin + most], line[end - most : end]
        text = first.decode(errors="replace") + last.decode(errors="replace")
    if len(text) <= MOST_CHARACTERS:
        return text
    half = MOST_CHARACTERS // 2
    return f"{text[:half]} … {text[-half:]}"


class Output:
    """What the ranks of one launch print, kept by rank; with `show` the cell prints it, too."""

    def __init__(self, unit: str, *, show: bool) -> None:
        self.unit = unit
        self.show = show
        self.room = MOST_LINES
        self.printed: defaultdict[int | None, bytearray] = defaultdict(bytearray)
        self.dropped: Counter[int | None] = Counter()  # bytes
        self.screens: defaultdict[int | None, Screen] = defaultdict(Screen)
        self.unseen: defaultdict[int | None, list[bytes]] = defaultdict(list)

    def add(self, rank: int | None, data: bytes) -> None:
        """Take what a rank printed; None: cores that share a process, which tells not who."""
        self._add_lines(rank, self.screens[rank].add(data))

    def _add_lines(self, rank: int | None, lines: list[bytes]) -> None:
        lines = [line for line in lines if not HIDDEN.search(line, 0, MOST_CHARACTERS)]
        text = b"".join(line + b"\n" for line in lines)
        if len(self.printed[rank]) < MOST_BYTES:
            self.printed[rank] += text
        else:
            self.dropped[rank] += len(text)
        if not self.show:
            return

        seen, unseen = lines[: self.room], lines[self.room :]
        self._print(rank, seen)
        self.room -= len(seen)
        if unseen and not self.unseen:
            print(f"… more than {MOST_LINES} lines: only the last of each {self.unit} follow.")
        if unseen:
            self.unseen[rank] = [*self.unseen[rank], *unseen][-LAST_LINES:]

    def _print(self, rank: int | None, lines: list[bytes]) -> None:
        if lines:
            label = self._label(rank)
            print("\n".join(label + state(line) for line in lines))

    def unfinished(self) -> list[str]:
        """The lines that have not ended, as they are now, if they are to be shown."""
        if not self.show:
            return []
        return [
            self._label(rank) + text
            for rank, screen in sorted(self.screens.items(), key=lambda item: item[0] or 0)
            for text in screen.states()
        ]

    def _label(self, rank: int | None) -> str:
        if self.unit == "program":
            return ""
        return f"[{self.unit}s] " if rank is None else f"[{self.unit} {rank}] "

    def text(self, rank: int | None) -> str:
        """All that this rank has printed until now."""
        data = self.printed[rank] + b"\n".join(self.screens[rank].rows)
        return data.decode(errors="replace")

    def texts(self, ranks: int) -> list[str]:
        """All that each rank printed, when no more will come."""
        for rank, screen in [*self.screens.items()]:
            self._add_lines(rank, screen.rest())
        for rank, lines in sorted(self.unseen.items(), key=lambda item: item[0] or 0):
            self._print(rank, lines)
        return [self._kept(rank) for rank in range(ranks)]

    def _kept(self, rank: int) -> str:
        text = self.printed[rank].decode(errors="replace")
        if more := self.dropped[rank] + self.screens[rank].cut:
            text += f"… {size(more)} more were printed, and are not kept\n"
        return text


class Status:
    """A place below the cell's output, for what changes while the ranks run.

    Each state comes a little later than the last, so that a long run sends hundreds, not thousands.
    """

    def __init__(self) -> None:
        self._display = Display()
        self._text = self._wanted = ""  # shown, and to be shown
        self._due = -inf
        self._pause = FRAME_SECONDS

    def show(self, text: str) -> float:
        """Put this in place of what was shown, if a frame is due; seconds until the next one is."""
        now = time.monotonic()
        if text and not self._wanted:  # it may be a part of a line of which the rest is on its way
            self._due = max(self._due, now + FRAME_SECONDS)
        self._wanted = text
        if text != self._text and shell() is not None:
            if now < self._due:
                return self._due - now
            self._display.show({"text/plain": text})
            self._pause *= 1.01
            self._due = now + self._pause
        self._text = text
        return self._pause if text else inf

    def clear(self) -> None:
        """Show nothing, if there is something."""
        if self._text and shell() is not None:
            self._display.clear()
        self._text = ""
