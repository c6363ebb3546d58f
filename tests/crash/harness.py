"""Starting, cutting and judging the children of the crash tests."""

import atexit
import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from crash.people import Model, Writer

CHILD = Path(__file__).with_name("child.py")
EXIT_AT_WINDOW = 86
CUT = -signal.SIGKILL
CHILD_S_MAX = 120


def run_child(command, *, failpoints=None, durability="os"):
    """Run one command in a process that ends with it; returns its exit status and what it printed as errors.

    `failpoints` is what OMNIGRAPH_FAILPOINTS says in that process.
    """
    with tempfile.NamedTemporaryFile("r") as errors:
        told = {"failpoints": failpoints or "", "durability": durability, "errors": errors.name}
        status = _server().run(**command, **told)
        return status, errors.read()


@functools.cache
def _server():
    """One server for all tests of this process."""
    server = Children().__enter__()
    atexit.register(server.__exit__)
    return server


def popen_child(command, *, durability="os"):
    """As `run_child`, left running with pipes."""
    return subprocess.Popen(
        [sys.executable, str(CHILD), json.dumps(command)],
        env={**os.environ, "OMNIGRAPH_FAILPOINTS": "", "OMNIGRAPH_DURABILITY": durability},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


class Children:
    """A server whose forked children run the commands. Use as a context manager."""

    def __init__(self, durability="full"):
        self._durability = durability

    def __enter__(self):
        self._process = subprocess.Popen(
            [sys.executable, str(CHILD), "serve"],
            env={**os.environ, "OMNIGRAPH_DURABILITY": self._durability, "OMNIGRAPH_FAILPOINTS": ""},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout.readline() == "ready\n"
        return self

    def __exit__(self, *_):
        self._process.stdin.close()
        self._process.wait(CHILD_S_MAX)
        self._process.stdout.close()

    def run(self, command, **more):
        """The exit status of one command."""
        self._process.stdin.write(json.dumps({"command": command, **more}) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())


class Bench:
    """One graph on which writers are cut again and again; the model follows."""

    def __init__(self, children: Children, directory: Path) -> None:
        self.children = children
        self.path = directory / "graph"
        self._returned = directory / "returned"
        self._before = directory / "before.jsonl"
        self._result = directory / "result.json"
        self._tags = 0
        assert children.run("create", path=str(self.path)) == 0

    def recover(self, **more):
        """A read-write open in a fresh process, and what it finds."""
        assert self.children.run("recover", path=str(self.path), result=str(self._result), **more) == 0
        return json.loads(self._result.read_text())

    def model(self, found, branch):
        return Model.read(found["exports"][branch])

    def cut(self, writer: Writer, *, without=None, **how):
        """Run the writer until it is cut as told; returns (was it cut, the violations of the promise).

        `without` switches off a part of the protocol, in the writer and in the recovery after it.
        """
        self._tags += 1
        tag = f"{self._tags}"
        self._returned.unlink(missing_ok=True)
        status = self.children.run(
            "write",
            path=str(self.path),
            writer=writer.name,
            tag=tag,
            before=str(self._before),
            returned=str(self._returned),
            without=without,
            **how,
        )
        assert status in {0, CUT, EXIT_AT_WINDOW}, status
        return status != 0, self._judge(writer, tag, without)

    def _judge(self, writer: Writer, tag: str, without):
        branch = f"b{tag}" if writer.on_new_branch else "main"
        before = Model.read(self._before.read_text())
        after = writer.after(before, tag)
        found = self.recover(without=without)
        now = self.model(found, branch)
        problems = list(found["violations"])
        if now not in (before, after):
            problems.append(f"neither before nor after: {now}")
        returned = self._returned.exists()
        if returned and now != after:
            problems.append("an acknowledged write is gone")
        if writer.check is not None:
            problems.extend(writer.check(found, tag, returned=returned))
        return problems
