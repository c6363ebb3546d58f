"""What Ctrl-C does around a command: before it begins and after it ended there is nothing to take back.

So no exception has to find its way through imports and exit handlers.
"""

import os
import signal
import sys
from types import FrameType

INTERRUPTED_STATUS = 130
NOT_BEGUN = "interrupted: the command had not begun: nothing was changed\n"


class Interrupts:
    """Without `take_over` it leaves Ctrl-C as it is, for commands that run inside another program."""

    def __init__(self) -> None:
        self._taken = False

    def take_over(self) -> None:
        """The command has not begun. Jobs in the background may be deaf to Ctrl-C, and stay so."""
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._taken = True
            signal.signal(signal.SIGINT, leave_unbegun)

    def begin(self) -> None:
        """The command runs: whoever has something to take back or to tell gets the exception."""
        if self._taken:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def end(self, status: int) -> None:
        """The command is over, and told its outcome; only what runs beside it is still awaited."""

        def leave(number: int, frame: FrameType | None) -> None:
            del number, frame
            os._exit(status)

        if self._taken:
            signal.signal(signal.SIGINT, leave)


def leave_unbegun(number: int = 0, frame: FrameType | None = None) -> None:
    """End the process before it has done anything."""
    del number, frame
    os.write(sys.__stderr__.fileno() if sys.__stderr__ is not None else 2, NOT_BEGUN.encode())
    os._exit(INTERRUPTED_STATUS)
