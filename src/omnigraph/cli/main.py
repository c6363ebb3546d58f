"""The entry point of the `omnigraph` command.

It imports next to nothing, because the rest takes long enough to be interrupted.
"""

import sys


def main() -> None:
    """Run the command line of this process."""
    try:
        from omnigraph.cli.running import run_process
    except KeyboardInterrupt:
        sys.stderr.write("interrupted: the command had not begun: nothing was changed\n")
        sys.exit(130)
    run_process()
