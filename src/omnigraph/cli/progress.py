"""What long work says on stderr while it runs."""

import sys
import time
from typing import Final

from omnigraph.cli import output
from omnigraph.core.events import Event, Progress, Warned

REDRAW_SECONDS_MIN: Final = 0.1


class TerminalListener:
    """Shows warnings always, and progress as one line that is redrawn when stderr is a terminal."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._draws = sys.stderr.isatty() and not quiet
        self._drawn = 0
        self._last = 0.0

    def __call__(self, event: Event) -> None:
        """Hear one event."""
        match event:
            case Warned():
                self.clear()
                detail = f": {event.detail}" if event.detail else ""
                output.note(f"warning: {event.message}{detail}")
            case Progress() if self._draws:
                self._draw(event)
            case _:
                return

    def _draw(self, event: Progress) -> None:
        now = time.monotonic()
        finished = event.total is not None and event.done >= event.total
        if now - self._last < REDRAW_SECONDS_MIN and not finished:
            return
        self._last = now
        amount = f"{event.done:,}" if event.total is None else f"{event.done:,}/{event.total:,}"
        text = f"{event.operation}: {event.stage} {amount} {event.unit}"
        sys.stderr.write(f"\r{text.ljust(self._drawn)}")
        sys.stderr.flush()
        self._drawn = len(text)

    def clear(self) -> None:
        """Take the progress line away."""
        if self._drawn:
            sys.stderr.write(f"\r{' ' * self._drawn}\r")
            sys.stderr.flush()
            self._drawn = 0
