import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from omnigraph.cli import running

COMMAND = Path(sys.executable).with_name("omnigraph")


@dataclass(frozen=True)
class Ran:
    """What one run of the installed command left behind."""

    rc: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def error(self) -> Any:
        """The JSON error object: the last line of stderr."""
        return json.loads(self.err.strip().splitlines()[-1])


Run = Callable[..., Ran]


def clean_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OMNIGRAPH_")}
    return {**kept, **(extra or {})}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run the installed command in a fresh directory."""

    def go(
        *arguments: str, stdin: str | bytes = "", env: Mapping[str, str] | None = None, rc: int | None = 0
    ) -> Ran:
        data = stdin.encode() if isinstance(stdin, str) else stdin
        done = subprocess.run(
            [COMMAND, *arguments],
            cwd=tmp_path,
            env=clean_environment(env),
            input=data,
            capture_output=True,
            timeout=120,
            check=False,
        )
        ran = Ran(done.returncode, done.stdout.decode(), done.stderr.decode())
        assert "Traceback" not in ran.err
        assert rc is None or ran.rc == rc, ran
        return ran

    return go


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the same command in this process: for what does not depend on the process, at a tenth of the time."""
    for name in [name for name in os.environ if name.startswith("OMNIGRAPH_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)

    def go(*arguments: str, stdin: str = "", env: Mapping[str, str] | None = None, rc: int | None = 0) -> Ran:
        capsys.readouterr()
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
            for name, value in (env or {}).items():
                patch.setenv(name, value)
            status = running.run(arguments)
        captured = capsys.readouterr()
        ran = Ran(status, captured.out, captured.err)
        assert rc is None or ran.rc == rc, ran
        return ran

    return go
