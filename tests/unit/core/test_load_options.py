"""The options of a load: read from words once, kept by the journal, compared when a load is resumed."""

from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from omnigraph.core.errors import BadRequest
from omnigraph.core.ids import BranchName
from omnigraph.core.load_options import LoadMode, LoadOptions

FULL = LoadOptions.of(
    mode="overwrite",
    branch=BranchName("review"),
    base="main",
    actor="import",
    if_commit="01JD8W3V4Z6N7R5T9K2M1Q0XYA",
    replace_types=["Person"],
    rejects=Path.cwd() / "set-aside",
)


@pytest.mark.parametrize("options", [FULL, LoadOptions.of(mode="append")], ids=["all", "few"])
def test_the_journal_gives_back_what_the_caller_said(options: LoadOptions) -> None:
    assert LoadOptions.from_members(orjson.loads(orjson.dumps(options.members()))) == options


def test_a_relative_directory_of_refused_records_is_kept_by_its_full_name() -> None:
    options = LoadOptions.of(mode="append", rejects="set-aside")
    assert options.members()["rejects"] == str(Path.cwd() / "set-aside")
    assert options.differences(LoadOptions.from_members(options.members())) == []


def test_what_is_left_at_its_default_is_as_it_was() -> None:
    assert LoadOptions().differences(FULL) == []


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"mode": LoadMode.APPEND}, "mode is 'append', was 'overwrite'"),
        ({"branch": BranchName("other")}, "branch is 'other', was 'review'"),
        ({"base": "other"}, "base is 'other', was 'main'"),
        ({"actor": "ann"}, "actor is 'ann', was 'import'"),
        ({"replace_types": ("Knows",)}, "replace_types is '('Knows',)', was '('Person',)'"),
        ({"rejects": Path("/elsewhere")}, f"rejects is '/elsewhere', was '{Path.cwd()}/set-aside'"),
    ],
)
def test_every_other_word_is_named(changed: dict[str, object], said: str) -> None:
    assert replace(FULL, **changed).differences(FULL) == [said]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"mode": "upsert"}, "unknown mode 'upsert'"),
        ({"mode": ""}, "a load needs a mode"),
        ({"mode": "merge", "replace_types": ["Person"]}, "only an overwrite load"),
    ],
)
def test_words_that_make_no_load_are_refused(words: dict[str, object], message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        LoadOptions.of(**words).chosen_mode()
