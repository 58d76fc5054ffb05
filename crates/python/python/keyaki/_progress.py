"""Progress of long statements: on the standard error of a terminal, in the output of a notebook, or for a callback.

The extension module calls `show` of a reporter every 250 ms while a call runs, and `clear` when the call ends.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
from html import escape
from typing import Any, Callable, NamedTuple, Protocol

from ._exceptions import ProgrammingError

_DISPLAY_AFTER_SECONDS = 2.0
_CALLBACK_AFTER_SECONDS = 0.25
_BAR_WIDTH = 20
_COLUMNS = 80

# At most one connection of the process shows progress on the terminal.
_line = threading.Lock()


class Progress(NamedTuple):
    """The progress of a call."""

    #: The phase of the statement, as "indexing orders"; None for statements without phases.
    phase: str | None
    #: Number of rows processed in the phase.
    rows: int
    #: Estimated number of rows of the phase; None if it is unknown.
    total: int | None
    #: Seconds since the start of the call.
    seconds: float
    #: Estimated seconds until the end of the phase; None if they are unknown.
    remaining: float | None
    #: Number of pages that the statement has read from the device.
    pages_read: int
    #: Number of reads in flight.
    reads_in_flight: int

    @property
    def fraction(self) -> float | None:
        """The part of the phase that is done, from 0 to 1; None if it is unknown."""
        return min(self.rows / self.total, 1.0) if self.total else None

    def __str__(self) -> str:
        """One line, without a bar."""
        if self.phase is None:
            return f"{self.seconds:.1f} s, {self.pages_read:,} pages read, {self.reads_in_flight} reads in flight"
        fraction = self.fraction
        if fraction is None:
            return f"{self.phase}: {self.rows:,} rows, {self.seconds:.1f} s"
        left = "" if self.remaining is None else f", {self.remaining:.0f} s left"
        return f"{self.phase}: {fraction:.0%}, {self.rows:,} of {self.total:,} rows, {self.seconds:.1f} s{left}"


class Reporter(Protocol):
    """What the extension module calls."""

    #: Seconds from the start of a call to its first report.
    after: float

    def show(self, *values: Any) -> None: ...
    def clear(self) -> None: ...


class _Callback:
    """Calls a function of the program. Its exceptions cancel the statement."""

    after = _CALLBACK_AFTER_SECONDS

    def __init__(self, function: Callable[[Progress], object]) -> None:
        self.function = function

    def show(self, *values: Any) -> None:
        self.function(Progress(*values))

    def clear(self) -> None:
        pass


class _Display:
    """Shows progress in a notebook or on a terminal. Errors of the output end the display, not the statement."""

    after = _DISPLAY_AFTER_SECONDS

    def __init__(self, is_forced: bool) -> None:
        # Show it also if the standard error is no interactive terminal.
        self._is_forced = is_forced
        self._is_broken = False
        self._output: _Notebook | _Terminal | None = None

    def show(self, *values: Any) -> None:
        if self._is_broken:
            return
        try:
            if self._output is None:
                self._output = _Notebook.current() or _Terminal.current(self._is_forced)
            if self._output is not None:
                self._output.write(Progress(*values))
        except Exception:
            self._is_broken = True

    def clear(self) -> None:
        output, self._output = self._output, None
        try:
            if output is not None:
                output.erase()
        except Exception:
            self._is_broken = True


class _Terminal:
    """The last line of the standard error."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._width = 0
        self._has_line = False

    @classmethod
    def current(cls, is_forced: bool) -> _Terminal | None:
        return cls(sys.stderr) if sys.stderr is not None and (is_forced or _is_interactive(sys.stderr)) else None

    def write(self, progress: Progress) -> None:
        if not self._has_line:
            self._has_line = _line.acquire(blocking=False)
            if not self._has_line:
                return
        text = str(progress)
        if progress.fraction is not None:
            done = round(progress.fraction * _BAR_WIDTH)
            text = f"{'█' * done}{'░' * (_BAR_WIDTH - done)} {text}"
        # A terminal would wrap a line of its whole width.
        text = "".join(letter if letter.isprintable() else "?" for letter in text)[: self._columns() - 1]
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        text = text.encode(encoding, "replace").decode(encoding)
        self._stream.write("\r" + text.ljust(self._width))
        self._stream.flush()
        self._width = len(text)

    def erase(self) -> None:
        if not self._has_line:
            return
        try:
            self._stream.write("\r" + " " * self._width + "\r")
            self._stream.flush()
        finally:
            self._has_line = False
            _line.release()

    def _columns(self) -> int:
        try:
            return os.get_terminal_size(self._stream.fileno()).columns or _COLUMNS
        except (AttributeError, OSError, ValueError):
            return shutil.get_terminal_size((_COLUMNS, 1)).columns


def _is_interactive(stream: Any) -> bool:
    """True for a terminal whose foreground process this is."""
    try:
        if not stream.isatty() or os.environ.get("TERM") == "dumb":
            return False
        descriptor = stream.fileno()
    except (AttributeError, OSError, ValueError):
        return False
    try:
        return os.tcgetpgrp(descriptor) == os.getpgrp()
    except OSError:
        # It is not the controlling terminal.
        return True


class _Notebook:
    """An output of the current cell. Later statements of the cell use the same output."""

    _last: tuple[int, Any] | None = None

    def __init__(self, cell: int) -> None:
        self._cell = cell

    @classmethod
    def current(cls) -> _Notebook | None:
        ipython = sys.modules.get("IPython")
        shell: Any = None if ipython is None else ipython.get_ipython()
        # The shell of a terminal has no kernel.
        return None if getattr(shell, "kernel", None) is None else cls(shell.execution_count)

    def write(self, progress: Progress) -> None:
        self._put(_Html(str(progress), progress.fraction))

    def erase(self) -> None:
        self._put(_Html("", None))

    def _put(self, shown: _Html) -> None:
        import IPython.display

        display: Any = IPython.display.display
        last = _Notebook._last
        if last is not None and last[0] == self._cell:
            last[1].update(shown)
        else:
            _Notebook._last = (self._cell, display(shown, display_id=True))


class _Html:
    def __init__(self, text: str, fraction: float | None) -> None:
        self._text = text
        self._fraction = fraction

    def __repr__(self) -> str:
        return self._text

    def _repr_html_(self) -> str:
        bar = "" if self._fraction is None else f'<progress value="{self._fraction:.3f}" max="1"></progress> '
        return f"<div>{bar}{escape(self._text)}</div>" if self._text else "<div></div>"


def reporter(progress: Any) -> Reporter | None:
    """The reporter for the option `progress`; None for no reports."""
    if progress is False:
        return None
    if progress is None or progress is True:
        return _Display(progress is True)
    if callable(progress):
        return _Callback(progress)
    raise ProgrammingError(f"progress={progress!r} is not None, True, False or a function")
