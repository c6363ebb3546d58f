import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

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
