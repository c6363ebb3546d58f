"""The state that follows from changes."""

import pytest

from omnigraph.core.errors import ExpectedVersionMismatch, InternalError
from omnigraph.core.ids import BranchName, TableKey
from omnigraph.manifest.changes import (
    RegisterTable,
    Tombstone,
    check_expectations,
    genesis_snapshot,
    next_snapshot,
)
from omnigraph.manifest.state import Snapshot
from unit.manifest.ground import CITY, PERSON, entry, genesis, intent, update


def base() -> Snapshot:
    return genesis_snapshot([entry(PERSON, 5, rows=2), entry(CITY, 3)], genesis())


def after(state: Snapshot, *changes) -> Snapshot:
    return next_snapshot(state, changes, intent(), time_us=1)


def test_an_update_replaces_one_entry_and_leaves_the_others() -> None:
    state = after(base(), update(PERSON, 6, rows=9))
    assert (state.pin(PERSON), state.entries[PERSON].row_count, state.pin(CITY)) == (6, 9, 3)
    assert state.entries[PERSON].location == base().entries[PERSON].location
    assert state.manifest_version == base().manifest_version + 1


def test_a_tombstone_hides_and_a_later_version_shows_again() -> None:
    hidden = after(base(), Tombstone(PERSON, 5))
    assert (hidden.pin(PERSON), hidden.latest_version(PERSON), PERSON in hidden.registrations) == (0, 5, True)
    with pytest.raises(InternalError, match="hidden"):
        after(hidden, update(PERSON, 5))
    with pytest.raises(InternalError, match="already"):
        after(hidden, Tombstone(PERSON, 6))
    shown = after(hidden, update(PERSON, 6))
    assert (shown.pin(PERSON), dict(shown.tombstones)) == (6, {})


def test_a_tombstone_below_the_shown_version_is_refused() -> None:
    with pytest.raises(InternalError, match="would not hide"):
        after(base(), Tombstone(PERSON, 4))


def test_a_dropped_name_declared_again_is_a_new_table() -> None:
    hidden = after(base(), Tombstone(PERSON, 5))
    again = after(hidden, RegisterTable(PERSON, "nodes/second"), update(PERSON, 1))
    assert (again.pin(PERSON), again.entries[PERSON].location) == (1, "nodes/second")
    assert dict(again.tombstones) == {}


def test_registering_again_at_the_same_place_changes_nothing() -> None:
    again = after(base(), RegisterTable(PERSON, base().registrations[PERSON]))
    assert again.entries == base().entries


def test_registration_counts_wherever_it_stands_in_the_list() -> None:
    new = TableKey("node:New")
    assert after(base(), update(new, 1), RegisterTable(new, "nodes/n")).pin(new) == 1


def test_a_tombstone_of_an_unknown_table_is_refused() -> None:
    with pytest.raises(InternalError, match="not registered"):
        after(base(), Tombstone(TableKey("node:Nobody"), 1))


def test_a_hand_off_to_another_owner_may_keep_or_lower_the_number() -> None:
    review = BranchName("review")
    owned = after(base(), update(PERSON, 20, branch=review))
    assert after(owned, update(PERSON, 6)).entries[PERSON].branch is None
    assert after(owned, update(PERSON, 20, rows=1)).pin(PERSON) == 20


def test_expectations_compare_with_pin_tombstone_or_zero() -> None:
    hidden = after(base(), Tombstone(PERSON, 5))
    check_expectations(hidden, {PERSON: 5, CITY: 3, TableKey("node:New"): 0})
    with pytest.raises(ExpectedVersionMismatch) as caught:
        check_expectations(hidden, {TableKey("node:New"): 1, PERSON: 5})
    assert caught.value.actual == 0


def test_schema_hash_is_kept_unless_the_commit_changes_it() -> None:
    kept = after(base(), update(PERSON, 6))
    assert kept.schema_hash == base().schema_hash
    changed = next_snapshot(kept, [], intent("schema_apply", schema_hash="schema-2"), time_us=2)
    assert (changed.schema_hash, changed.commit.time_us) == ("schema-2", 2)
