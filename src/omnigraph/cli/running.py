"""The `omnigraph` command: parse, run, and turn every outcome into streams and an exit status."""

import atexit
import contextlib
import gc
import os
import sys
from collections.abc import Sequence
from typing import Final

import typer

from omnigraph.cli import config, output
from omnigraph.cli.addressing import given
from omnigraph.cli.app import tree
from omnigraph.cli.arguments import arrange, command_path, wants_json
from omnigraph.cli.completion import COMPLETE, complete
from omnigraph.cli.failures import debugging, from_anything, from_parser, show
from omnigraph.cli.startup import spare_pandas
from omnigraph.core.errors import OmnigraphError

OBJECTS_BEFORE_COLLECTING: Final = 50_000
"""Loading modules makes only objects that stay; the collector would look through them again and again for
nothing.
"""


def run_process() -> None:
    """Run the command line of this process, and end it."""
    gc.set_threshold(OBJECTS_BEFORE_COLLECTING)
    ending = _Ending()
    # Registered first, so it runs last: threads have ended and everybody else has cleaned up.
    atexit.register(ending)
    output.prepare_streams()
    spare_pandas()
    ending.status = run(sys.argv[1:])
    sys.exit(ending.status)


class _Ending:
    """Ends the process without taking its modules apart, which takes longer than many a command.

    Only after a success: the frames of a command that was interrupted are held by its exception, and what
    they clean up may wait until the interpreter lets go of it.
    """

    def __init__(self) -> None:
        self.status: int | None = None

    def __call__(self) -> None:
        if self.status != 0:  # None: an exception is on its way to the terminal
            return
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(self.status)


def run(argv: Sequence[str]) -> int:
    """Run one command and return its exit status. Never raises, except for bugs under OMNIGRAPH_DEBUG=1."""
    config.load.cache_clear()
    output.start()
    if list(argv[:1]) == [COMPLETE]:
        return complete(argv[1:])
    as_json = wants_json(argv)
    try:
        status = _run_command(argv, as_json=as_json)
        output.finish()
    except output.PipeClosed:
        output.abandon_stdout()
        return output.PIPE_CLOSED_STATUS
    except KeyboardInterrupt:
        output.tell_interrupt()
        # What is left of the result is dropped: a reader that does not read would keep the process alive.
        output.abandon_stdout()
        return output.INTERRUPTED_STATUS
    return status


def _run_command(argv: Sequence[str], *, as_json: bool) -> int:
    try:
        arguments, flags = arrange(argv)
        given.set(flags)
        command = typer.main.get_command(tree(command_path(arguments)))
        result = command.main(args=arguments, prog_name="omnigraph", standalone_mode=False)
    except OmnigraphError as error:
        return show(error, as_json=as_json)
    except typer.TyperException as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            output.note(error.format_message())
            return error.exit_code
        return show(from_parser(error), as_json=as_json)
    except typer.Abort as stopped:
        raise KeyboardInterrupt from stopped
    except SystemExit as leaving:
        # The parser leaves this way when it prints help into a pipe nobody reads.
        if isinstance(leaving.__context__, BrokenPipeError):
            raise output.PipeClosed from leaving
        raise
    except Exception as error:  # the last line of defence: a traceback is for developers
        if debugging():
            raise
        return show(from_anything(error), as_json=as_json)
    if result == output.INTERRUPTED_STATUS:
        # What the parser makes of Ctrl-C.
        raise KeyboardInterrupt
    return result if isinstance(result, int) else 0
