"""Nothing but our own lines on the terminal: every byte of a good and of a refused load, on Spark and without."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from graphs import make_graph

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

COMMAND = Path(sys.executable).with_name("omnigraph")
SCHEMA = "node Person { name: String @key  age: I32 }\nedge Knows: Person -> Person"
GOOD = """{"type":"Person","data":{"name":"ada","age":1}}
{"type":"Person","data":{"name":"bob","age":2}}
{"edge":"Knows","from":"ada","to":"bob"}
"""
BAD = """{"type":"Person","data":{"name":"ada","age":1}}
{"type":"Person","data":{"name":"cyd"}}
{"edge":"Knows","from":"ada","to":"nobody"}
{"edge":"Knows","from":"nobody","to":"ada"}
"""
TARGET = "load -> g (direct, local store; engine {})\n"
REFUSED = """\
bad.jsonl:1: node type 'Person' already has an entity with id 'ada' (key_conflict)
bad.jsonl:2: Person.age must have a value (required)
bad.jsonl:3: Knows: no Person with id 'nobody' (target) (endpoint)
bad.jsonl:4: Knows: no Person with id 'nobody' (source) (endpoint)
"""


def load(place: Path, engine: str, source: str) -> tuple[int, bytes, bytes]:
    environment = os.environ | {"OMNIGRAPH_DURABILITY": "os", "TMPDIR": str(place)}
    words = ["--data", source, "--mode", "append", "--engine", engine, "--store", "g"]
    done = subprocess.run(
        [COMMAND, "load", *words], cwd=place, capture_output=True, env=environment, check=False
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("engine", ["local", "spark"])
def test_every_byte_is_ours(tmp_path: Path, engine: str) -> None:
    (tmp_path / "good.jsonl").write_text(GOOD)
    (tmp_path / "bad.jsonl").write_text(BAD)
    make_graph(tmp_path / "g", SCHEMA).close()
    status, output, errors = load(tmp_path, engine, "good.jsonl")
    assert (status, errors) == (0, TARGET.format(engine).encode())
    commit = re.search(rb"commit ([0-9A-Z]{26})", output)
    assert commit is not None
    assert output.replace(commit[1], b"ID").decode() == (
        "           2  Person (2 new)\n"
        "           1  Knows (1 new)\n"
        f"loaded 3 entities: append on main ({engine}); commit ID\n"
    )
    status, output, errors = load(tmp_path, engine, "bad.jsonl")
    assert (status, output) == (1, b"")
    headline = errors.decode().removeprefix(TARGET.format(engine) + REFUSED)
    assert headline.startswith("error: ")
    assert headline.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.jsonl", "g", "good.jsonl"]
