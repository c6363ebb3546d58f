"""What a process that ends takes away."""

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import os, sys, threading
from pathlib import Path
from omnigraph.pipeline.spark.leftovers import LEFTOVERS

here = Path(sys.argv[1])

def start():
    directory = LEFTOVERS.add(here / "directory")
    directory.mkdir()
    (directory / "file").write_text("x")
    LEFTOVERS.add(here / "log").write_text("x")
    LEFTOVERS.add(here / "told").write_text("x")
    LEFTOVERS.keep(here / "told")
    LEFTOVERS.add(here / "never made")
    ready.set()
    threading.Event().wait()

ready = threading.Event()
threading.Thread(target=start, daemon=True).start()
ready.wait()
if os.fork() == 0:
    sys.exit(0)
os.wait()
assert (here / "log").exists(), "a forked child took away the files of its parent"
raise KeyboardInterrupt
"""


def test_files_of_a_thread_that_never_ends_go_with_the_process(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, tmp_path],
        env=os.environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "KeyboardInterrupt" in done.stderr.splitlines()[-1]
    assert [path.name for path in tmp_path.iterdir()] == ["told"]
