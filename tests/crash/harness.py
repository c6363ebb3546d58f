"""Starting, cutting and judging the children of the crash tests."""

import atexit
import functools
import json
import os
import shutil
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


def run_script(text, *arguments, failpoints="", durability="os"):
    """As `run_child` for a program in Python with arguments of its own."""
    command = {"command": "script", "text": text, "arguments": [str(each) for each in arguments]}
    return run_child(command, failpoints=failpoints, durability=durability)


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


class Prepared:
    """A graph as it was prepared, put back at the same place before every cut: its files name that place."""

    def __init__(self, path: Path, name: str = "prepared") -> None:
        self._path = path
        self._kept = path.with_name(f"{path.name}-{name}")
        shutil.copytree(path, self._kept)

    def put_back(self) -> None:
        """Files that a cut writer left are removed, those it changed or removed are copied again."""
        wanted, present = _tree(self._kept), _tree(self._path)
        for name in sorted(present.keys() - wanted.keys(), reverse=True):
            left = self._path / name
            left.rmdir() if present[name] is None else left.unlink()
        for name in sorted(name for name in wanted if wanted[name] != present.get(name, "")):
            if wanted[name] is None:
                (self._path / name).mkdir()
            else:
                shutil.copy2(self._kept / name, self._path / name)


def _tree(root: Path) -> dict[str, tuple[int, int] | None]:
    """Every file below a directory with its size and time of change; None for a directory."""
    found = {}
    for path in root.rglob("*"):
        facts = None if path.is_dir() else path.stat()
        found[str(path.relative_to(root))] = facts and (facts.st_size, facts.st_mtime_ns)
    return found


class Bench:
    """One graph on which a writer is cut again and again, every time from the same state."""

    TAG = "5"

    def __init__(self, children: Children, directory: Path, writer: Writer) -> None:
        self.children = children
        self.path = directory / "graph"
        self.writer = writer
        self._returned = directory / "returned"
        self._result = directory / "result.json"
        assert children.run("create", path=str(self.path), **self._writing(), result=str(self._result)) == 0
        prepared = json.loads(self._result.read_text())
        self._branch = prepared["branch"]
        self._before = Model.read(prepared["before"])
        self._after = writer.after(self._before, self.TAG)
        self.prepared = Prepared(self.path)

    def _writing(self):
        return {"writer": self.writer.name, "tag": self.TAG}

    def write(self, **how):
        """The exit status of the writer, run in a child that ends as told."""
        self._returned.unlink(missing_ok=True)
        told = {**self._writing(), "branch": self._branch, "returned": str(self._returned)}
        return self.children.run("write", path=str(self.path), **told, **how)

    def recover(self, **how):
        """A read-write open in a fresh process, and what it finds."""
        assert self.children.run("recover", path=str(self.path), result=str(self._result), **how) == 0
        return json.loads(self._result.read_text())

    def cut(self, number, *, without=None):
        """Cut the writer at its durable event of that number; returns (was it cut, violations of the promise).

        `without` switches off a part of the protocol, in the writer and in the recovery after it.
        """
        self.prepared.put_back()
        status = self.write(cut=number, without=without)
        assert status in {0, CUT}, status
        return status == CUT, self.judge(self.recover(without=without))

    def judge(self, found):
        """What of that is neither the state before nor the state after the write."""
        now = Model.read(found["exports"][self._branch])
        problems = list(found["violations"])
        if now not in (self._before, self._after):
            problems.append(f"neither before nor after: {now}")
        returned = self._returned.exists()
        if returned and now != self._after:
            problems.append("an acknowledged write is gone")
        if self.writer.check is not None:
            problems.extend(self.writer.check(found, self.TAG, returned=returned))
        return problems
