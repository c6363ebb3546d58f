"""The `omnigraph` command: parse, run, and turn every outcome into streams and an exit status."""

import sys
from collections.abc import Sequence

import typer

from omnigraph.cli import config, output
from omnigraph.cli.addressing import given
from omnigraph.cli.app import app
from omnigraph.cli.arguments import arrange, wants_json
from omnigraph.cli.completion import COMPLETE, complete
from omnigraph.cli.failures import debugging, from_anything, from_parser, show
from omnigraph.cli.startup import spare_pandas
from omnigraph.core.errors import OmnigraphError


def main() -> None:
    """Run the command line of this process."""
    output.prepare_streams()
    spare_pandas()
    sys.exit(run(sys.argv[1:]))


def run(argv: Sequence[str]) -> int:
    """Run one command and return its exit status. Never raises, except for bugs under OMNIGRAPH_DEBUG=1."""
    config.load.cache_clear()
    if list(argv[:1]) == [COMPLETE]:
        return complete(argv[1:])
    as_json = wants_json(argv)
    try:
        try:
            status = _run_command(argv, as_json=as_json)
        finally:
            output.finish()
    except output.PipeClosed:
        output.abandon_stdout()
        return output.PIPE_CLOSED_STATUS
    except KeyboardInterrupt:
        return output.INTERRUPTED_STATUS
    return status


def _run_command(argv: Sequence[str], *, as_json: bool) -> int:
    try:
        arguments, flags = arrange(argv)
        given.set(flags)
        command = typer.main.get_command(app)
        result = command.main(args=arguments, prog_name="omnigraph", standalone_mode=False)
    except OmnigraphError as error:
        return show(error, as_json=as_json)
    except typer.TyperException as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            output.note(error.format_message())
            return error.exit_code
        return show(from_parser(error), as_json=as_json)
    except typer.Abort:
        return output.INTERRUPTED_STATUS
    except SystemExit as leaving:
        # The parser leaves this way when it prints help into a pipe nobody reads.
        if isinstance(leaving.__context__, BrokenPipeError):
            raise output.PipeClosed from leaving
        raise
    except Exception as error:  # the last line of defence: a traceback is for developers
        if debugging():
            raise
        return show(from_anything(error), as_json=as_json)
    return result if isinstance(result, int) else 0
