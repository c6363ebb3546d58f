"""The entry point of the `omnigraph` command.

It imports next to nothing, because the rest takes long enough to be interrupted.
"""

import gc
import os
import sys

OBJECTS_BEFORE_COLLECTING = 200_000
"""Loading modules makes only objects that stay; the collector would look through them again and again for
nothing.
"""


def main() -> None:
    """Run the command line of this process."""
    try:
        from omnigraph.cli.interrupts import Interrupts

        interrupts = Interrupts()
        interrupts.take_over()
        gc.set_threshold(OBJECTS_BEFORE_COLLECTING)
        # The workers of linear algebra wait for work by spinning, from the first import on. They shall sleep.
        os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")
        from omnigraph.cli.startup import spare

        spare()  # before the modules it is about
        from omnigraph.cli.running import run_process
    except KeyboardInterrupt:
        sys.stderr.write("interrupted: the command had not begun: nothing was changed\n")
        sys.exit(130)
    run_process(interrupts)
