"""The errors tkc raises. `tkc.Error` is their root; each message is one sentence with a way out."""

from __future__ import annotations

from dataclasses import dataclass, field


class Error(Exception):
    """Root of everything tkc raises on purpose."""


@dataclass(frozen=True)
class Location:
    """A place in a user's source: 1-based line, 0-based column; `calls` is the chain of calls
    inside the kernel, outermost first.
    """

    file: str
    line: int
    column: int = 0
    end_column: int | None = None
    function: str = ""
    calls: tuple[Location, ...] = field(default=())

    def __str__(self):
        return f"{self.file}:{self.line}:{self.column + 1}"


class CompileError(Error):
    """A kernel that cannot be compiled; `location` says where. str() shows the source line with a
    caret and the call chain.
    """

    def __init__(self, message: str, location: Location | None = None):
        self.message, self.location = message, location
        super().__init__(message)

    def __str__(self):
        if self.location is None:
            return self.message
        parts = [f"{self.location}: {self.message}"]
        for place in (*self.location.calls, self.location):
            parts.append(_excerpt(place))
        return "\n".join(parts)


class RoomError(CompileError):
    """A kernel whose plan left what the passes behind it need no room in shared memory: so many
    bytes too many.
    """

    def __init__(self, message: str, location: Location | None = None, excess: int = 0):
        super().__init__(message, location)
        self.excess = excess


def _excerpt(place: Location) -> str:
    """The source line and a caret under the expression; wide characters count two columns."""
    import linecache
    import unicodedata

    line = linecache.getline(place.file, place.line).rstrip("\n").expandtabs(1)

    def width(text):
        return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)

    head = f'  File "{place.file}", line {place.line}' + (
        f", in {place.function}" if place.function else ""
    )
    if not line:
        return head
    indent = len(line) - len(line.lstrip())
    start = max(place.column, indent)
    end = min(
        place.end_column if place.end_column and place.end_column > start else start + 1,
        max(len(line), start + 1),
    )
    return (
        f"{head}\n    {line.lstrip()}\n   "
        f" {' ' * width(line[indent:start])}{'^' * max(1, width(line[start:end]))}"
    )


class VerifyError(Error):
    """IR that breaks a rule of its level. After one of our passes this is a bug of tkc; in a user's
    IR file, of the file.
    """


class LaunchError(Error):
    """A launch refused before the driver was called: arguments, grid or device do not fit the
    kernel.
    """


class MapError(LaunchError):
    """An array that no tensor map can describe; a kernel without tensor maps can take it."""


class DeviceError(Error):
    """The driver or the device reported a failure."""


class TrapError(DeviceError):
    """A check in a kernel found something wrong and ended it: an assertion on the CPU, anything
    that TKC_DEBUG=1 looks at. str() shows the source line, as CompileError does.

    kernel: its name; message: what was wrong; location: where in the kernel's source (None for
    waits that the compiler made); block, thread: who found it; on the CPU a program, and no thread.
    """

    def __init__(
        self,
        kernel: str,
        message: str,
        location: Location | None,
        block: tuple[int, int, int],
        thread: int | None,
    ):
        self.kernel, self.message, self.location, self.block, self.thread = (
            kernel,
            message,
            location,
            block,
            thread,
        )
        super().__init__(message)

    def __str__(self):
        who = (
            f"program {self.block}"
            if self.thread is None
            else f"block {self.block}, thread {self.thread}"
        )
        said = (
            f"{f'{self.location}: ' if self.location else ''}in {self.kernel}, {who}:"
            f" {self.message}"
        )
        return said if self.location is None else f"{said}\n{_excerpt(self.location)}"


class PeerError(DeviceError):
    """A rank waits for another one that has died, or that has not come within the time given."""


class TuningError(Error):
    """A choice among configurations that cannot be made: none fits, none runs, or a table or an
    assembly is for something else.
    """


class CacheError(Error):
    """The cache directory cannot be used (compilation goes on without it)."""


class ExportError(Error):
    """An ahead-of-time export that cannot be written."""
