"""What a command that only reads does not load: each of these modules costs time at every start."""

import subprocess
import sys
from pathlib import Path

import pytest

import omnigraph as og
from omnigraph.core.settings import Settings

NEVER_FOR_A_READ = (
    "omnigraph.branching",
    "omnigraph.engine.write.commit",
    "omnigraph.engine.read.explain",
    "omnigraph.engine.write.mutate",
    "omnigraph.maintenance",
    "omnigraph.pipeline",
    "pandas",
    "pyspark",
    "rich",
)


@pytest.mark.slow
def test_a_query_loads_nothing_that_writes_merges_or_maintains(tmp_path: Path) -> None:
    with og.init(
        tmp_path / "g.omni", schema="node Ship { imo: String @key }\n", settings=Settings(durability="os")
    ):
        pass
    program = (
        "import sys\n"
        "from omnigraph.cli.running import run\n"
        "from omnigraph.cli.startup import spare\n"
        "spare()\n"
        f"status = run(['query', '-e', 'query q() {{ match {{ $s: Ship }} return {{ $s.imo }} }}', '--store', {str(tmp_path / 'g.omni')!r}])\n"
        f"found = [name for name in sys.modules if name.startswith({NEVER_FOR_A_READ!r})]\n"
        "sys.exit(f'{status} {found}' if status or found else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
