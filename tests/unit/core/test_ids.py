import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ulid import ULID

from omnigraph.core.errors import BadRequest
from omnigraph.core.ids import (
    UlidSource,
    edge_table_key,
    encode_ulid,
    fnv1a64,
    new_ulid,
    node_table_key,
    normalize_branch,
    show_branch,
)


@given(st.integers(min_value=0, max_value=(1 << 128) - 1))
def test_encoding_agrees_with_the_reference_library(value: int) -> None:
    assert encode_ulid(value) == str(ULID.from_int(value))


def test_an_id_carries_the_moment_it_was_drawn() -> None:
    before = datetime.now(UTC).timestamp()
    drawn = ULID.from_str(new_ulid()).timestamp
    assert before - 0.001 <= drawn <= datetime.now(UTC).timestamp()


@pytest.mark.slow
def test_ids_grow_and_never_repeat_across_threads() -> None:
    def draw(_: int) -> list[str]:
        return [new_ulid() for _ in range(2_000)]

    with ThreadPoolExecutor(8) as pool:
        batches = list(pool.map(draw, range(8)))
    assert all(batch == sorted(batch) for batch in batches)
    assert len({one for batch in batches for one in batch}) == 16_000


def test_ids_grow_although_the_clock_steps_back() -> None:
    source = UlidSource()
    with patch("time.time_ns", side_effect=[2_000_000_000_000, 1_000_000_000_000, 2_000_000_000_000]):
        first, second, third = source(), source(), source()
    assert first < second < third


FORKED = """
import os
from omnigraph.core.ids import new_ulid

new_ulid()
reader, writer = os.pipe()
child = os.fork()
if child == 0:
    os.write(writer, new_ulid().encode())
    os._exit(0)
os.close(writer)
drawn = os.fdopen(reader).read()
assert os.waitpid(child, 0)[1] == 0
assert len(drawn) == 26
assert drawn not in {new_ulid() for _ in range(100)}
"""


def test_a_forked_child_does_not_continue_the_sequence() -> None:
    # A process of its own: another test may have loaded what must not be forked.
    subprocess.run([sys.executable, "-c", FORKED], check=True)


@pytest.mark.parametrize(
    ("text", "branch"),
    [("main", None), (" main ", None), (None, None), ("review", "review"), (" a/b\n", "a/b")],
)
def test_branch_names_are_trimmed_and_main_is_none(text: str | None, branch: str | None) -> None:
    assert normalize_branch(text) == branch


@pytest.mark.parametrize("text", ["", "  ", "\n"])
def test_an_empty_branch_name_is_refused(text: str) -> None:
    with pytest.raises(BadRequest):
        normalize_branch(text)


def test_main_is_spelled_out_for_people() -> None:
    assert show_branch(None) == "main"
    assert show_branch(normalize_branch("review")) == "review"


def test_table_keys_keep_the_case() -> None:
    assert node_table_key("Person") == "node:Person"
    assert edge_table_key("worksAt") == "edge:worksAt"


@pytest.mark.parametrize(
    ("text", "value"), [("", 0xCBF29CE484222325), ("a", 0xAF63DC4C8601EC8C), ("foobar", 0x85944171F73967E8)]
)
def test_hash_vectors(text: str, value: int) -> None:
    assert fnv1a64(text) == value
