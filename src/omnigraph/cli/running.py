"""The `omnigraph` command: parse, run, and turn every outcome into streams and an exit status."""

import atexit
import contextlib
import os
import sys
from collections.abc import Sequence
from typing import Any

from omnigraph.cli import config, output
from omnigraph.cli.addressing import given
from omnigraph.cli.app import plain_command, tree
from omnigraph.cli.arguments import arrange, command_path, wants_json
from omnigraph.cli.completion import COMPLETE, complete
from omnigraph.cli.declared import plain_call
from omnigraph.cli.failures import debugging, from_anything, from_parser, show
from omnigraph.cli.interrupts import Interrupts
from omnigraph.core.errors import OmnigraphError


def run_process(interrupts: Interrupts) -> None:
    """Run the command line of this process, and end it."""
    ending = _Ending()
    # Registered first, so it runs last: threads have ended and everybody else has cleaned up.
    atexit.register(ending)
    output.prepare_streams()
    ending.status = run(sys.argv[1:], interrupts)
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


def run(argv: Sequence[str], interrupts: Interrupts | None = None) -> int:
    """Run one command and return its exit status. Never raises, except for bugs under OMNIGRAPH_DEBUG=1."""
    around = interrupts or Interrupts()
    config.load.cache_clear()
    output.start()
    if list(argv[:1]) == [COMPLETE]:
        return complete(argv[1:])
    as_json = wants_json(argv)
    try:
        around.begin()
        status = _run_command(argv, as_json=as_json)
        output.finish()
        around.end(status)
    except output.PipeClosed:
        output.abandon_stdout()
        return output.PIPE_CLOSED_STATUS
    except KeyboardInterrupt:
        around.end(output.INTERRUPTED_STATUS)  # it is not interrupted twice
        output.tell_interrupt()
        # What is left of the result is dropped: a reader that does not read would keep the process alive.
        output.abandon_stdout()
        return output.INTERRUPTED_STATUS
    return status


def _run_command(argv: Sequence[str], *, as_json: bool) -> int:
    try:
        arguments, flags = arrange(argv)
        given.set(flags)
        path = command_path(arguments)
        command = plain_command(path)
        call = None if command is None or path is None else plain_call(command, arguments[len(path) :])
        if command is None or call is None:
            result = _parsed(path, arguments, as_json=as_json)
        else:
            result = command(**call)
    except OmnigraphError as error:
        return show(error, as_json=as_json)
    except Exception as error:  # the last line of defence: a traceback is for developers
        if debugging():
            raise
        return show(from_anything(error), as_json=as_json)
    return result if isinstance(result, int) else 0


def _parsed(path: tuple[str, ...] | None, arguments: list[str], *, as_json: bool) -> Any:
    """Run a command through the parser, which also answers for help and for mistakes."""
    import typer

    try:
        command = typer.main.get_command(tree(path))
        result = command.main(args=arguments, prog_name="omnigraph", standalone_mode=False)
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
    if result == output.INTERRUPTED_STATUS:
        # What the parser makes of Ctrl-C.
        raise KeyboardInterrupt
    return result
