"""A flipped bit in any file of a graph is found by a deep verification, or harms nobody. None is silent."""

import os

import pytest

from flips.judging import Flip, flips, judged, make_whole

pytestmark = pytest.mark.crash

STRIDED = 60
FLIPS = int(os.environ.get("OMNIGRAPH_TORTURE_FLIPS", "2000"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    place = tmp_path_factory.mktemp("whole")
    make_whole(place / "kb.omni", place / "input.jsonl")
    return place / "kb.omni"


def test_a_few_flips_in_every_kind_of_file(whole, tmp_path):
    verdicts = judged(whole, tmp_path, flips(whole, STRIDED, seed=16))
    assert verdicts.bad == []
    for kind in ("data of tables", "deletions of tables", "indexes of tables", "versions of tables"):
        assert verdicts.found[kind] > 0
        assert verdicts.harmless[kind] == 0, "every bit of such a file is covered"


def test_a_flip_at_the_end_of_the_newest_state_does_not_pass_for_a_power_cut(whole, tmp_path):
    """A version that was cut off is removed at the next opening; one that was acknowledged never is."""
    newest = min((whole / "__manifest" / "_versions").glob("*.manifest")).relative_to(whole)
    size = (whole / newest).stat().st_size
    chosen = [Flip(str(newest), size - 1, bit) for bit in range(3)]
    chosen.append(
        Flip(
            "__manifest/_refs/branches/idle.json",
            (whole / "__manifest/_refs/branches/idle.json").stat().st_size - 1,
            1,
        )
    )
    verdicts = judged(whole, tmp_path, chosen)
    assert verdicts.bad == []
    assert sum(verdicts.found.values()) == len(chosen)


def test_a_flip_in_the_name_of_a_column_is_found(whole, tmp_path):
    versions = (whole / "__manifest" / "tree" / "feat" / "_versions").glob("*.manifest")
    older = str(max(versions).relative_to(whole))
    chosen = [Flip(older, (whole / older).read_bytes().index(b"object_type"), bit) for bit in (0, 5)]
    verdicts = judged(whole, tmp_path, chosen)
    assert verdicts.bad == []
    assert sum(verdicts.found.values()) == len(chosen)


@pytest.mark.torture
@pytest.mark.timeout(7200)
def test_two_thousand_flips(whole, tmp_path, capsys):
    with capsys.disabled():
        verdicts = judged(whole, tmp_path, flips(whole, FLIPS, seed=FLIPS))
        print(f"\n{FLIPS} flips:\n{verdicts}")
    assert verdicts.bad == []
