"""Staged schema files: every combination of what can be observed, and what the reconcile does on disk."""

import json
from itertools import product

import pytest

from omnigraph.catalog.build import compile_schema
from omnigraph.catalog.ir import schema_hash, to_json
from omnigraph.core.errors import SchemaDrift
from omnigraph.core.ids import OperationId, TableKey
from omnigraph.recovery.schema_state import (
    SCHEMA_FILES,
    SchemaAction,
    SchemaFacts,
    decide_schema_state,
    reconcile_schema_state,
    settle_schema_files,
)
from omnigraph.storage.layout import SCHEMA_IR, SCHEMA_SOURCE, SCHEMA_STATE, STAGING_SUFFIX
from recovery_graph import SCHEMA, RawGraph

A, AB, C = (frozenset(map(TableKey, keys)) for keys in (["node:A"], ["node:A", "node:B"], ["node:C"]))


def expected(facts: SchemaFacts) -> SchemaAction:
    """The table of decisions, row by row."""
    rows = [
        (not facts.staged, SchemaAction.NOOP),
        (SCHEMA_SOURCE not in facts.staged and facts.source_is_staged_one, SchemaAction.COMPLETE_RENAME),
        (SCHEMA_SOURCE not in facts.staged, SchemaAction.REFUSE_MISMATCH),
        (facts.hashes_equal, SchemaAction.CLEAN),
        (facts.published is True, SchemaAction.COMPLETE_RENAME),
        (facts.published is False, SchemaAction.CLEAN),
        (facts.staged_tables == facts.live_tables, SchemaAction.REFUSE_AMBIGUOUS),
        (facts.manifest_tables == facts.live_tables, SchemaAction.CLEAN),
        (facts.manifest_tables == facts.staged_tables, SchemaAction.COMPLETE_RENAME),
        (True, SchemaAction.REFUSE_UNKNOWN),
    ]
    return next(action for holds, action in rows if holds)


def test_every_observation_has_the_action_of_the_specification():
    subsets = [
        frozenset(n for n, keep in zip(SCHEMA_FILES, kept, strict=True) if keep)
        for kept in product((0, 1), repeat=3)
    ]
    seen = set()
    for staged, same_source, equal, published in product(
        subsets, (False, True), (False, True), (None, False, True)
    ):
        for live, new, shown in product((A, AB), (A, AB), (A, AB, C)):
            facts = SchemaFacts(staged, same_source, equal, live, new, shown, published)
            assert decide_schema_state(facts) is expected(facts), facts
            seen.add(decide_schema_state(facts))
    assert seen == set(SchemaAction)


WIDER = SCHEMA + "\nnode City { name: String @key }\n"
RICHER = SCHEMA.replace("age: I32?", "age: I32?  nick: String?")


def stage(graph, text, names=SCHEMA_FILES, *, operation_id=None):
    """What a schema apply leaves between its staging step and its renames."""
    catalog = compile_schema(text)
    state = {"format": 1, "schema_hash": schema_hash(catalog), "source_hash": catalog.source_hash}
    if operation_id is not None:
        state["operation_id"] = operation_id
    contents = {SCHEMA_SOURCE: text, SCHEMA_IR: to_json(catalog), SCHEMA_STATE: json.dumps(state)}
    for name in names:
        graph.session.adapter.write_text(name + STAGING_SUFFIX, contents[name])
    return contents


@pytest.fixture
def graph(tmp_path):
    return RawGraph.create(tmp_path / "graph")


def staged_files(graph):
    return [name for name in SCHEMA_FILES if graph.session.adapter.exists(name + STAGING_SUFFIX)]


def test_nothing_staged_is_nothing_to_do(graph):
    assert reconcile_schema_state(graph.context) is SchemaAction.NOOP


def test_the_files_of_a_settled_operation_are_put_in_place_only_when_main_follows_them(graph):
    contents = stage(graph, WIDER, operation_id="01X")
    before = {name: graph.session.adapter.read_text(name) for name in SCHEMA_FILES}
    settle_schema_files(graph.context, OperationId("01X"))
    assert staged_files(graph) == []
    assert {name: graph.session.adapter.read_text(name) for name in SCHEMA_FILES} == before
    contents = stage(graph, SCHEMA + "// the same schema\n", operation_id="01X")
    settle_schema_files(graph.context, OperationId("01X"))
    assert staged_files(graph) == []
    for name, text in contents.items():
        assert graph.session.adapter.read_text(name) == text


def test_the_staged_files_of_another_operation_are_removed(graph):
    stage(graph, SCHEMA + "// the same schema\n", operation_id="01X")
    settle_schema_files(graph.context, OperationId("01Y"))
    assert staged_files(graph) == []
    assert graph.session.adapter.read_text(SCHEMA_SOURCE) == SCHEMA


def test_unpublished_new_tables_are_cleaned(graph):
    stage(graph, WIDER)
    assert reconcile_schema_state(graph.context) is SchemaAction.CLEAN
    assert staged_files(graph) == []
    assert graph.session.adapter.read_text(SCHEMA_SOURCE) == SCHEMA


def test_a_change_of_properties_alone_is_decided_by_its_record(graph):
    stage(graph, RICHER, operation_id="01X")
    assert reconcile_schema_state(graph.context) is SchemaAction.CLEAN


def test_a_change_of_properties_alone_without_a_record_is_refused(graph):
    stage(graph, RICHER)
    with pytest.raises(SchemaDrift):
        reconcile_schema_state(graph.context)
    assert len(staged_files(graph)) == 3


def test_renames_that_began_are_finished(graph):
    contents = stage(graph, WIDER)
    graph.session.adapter.rename_text(SCHEMA_SOURCE + STAGING_SUFFIX, SCHEMA_SOURCE)
    assert reconcile_schema_state(graph.context) is SchemaAction.COMPLETE_RENAME
    for name, text in contents.items():
        assert graph.session.adapter.read_text(name) == text


def test_renames_that_began_with_another_source_are_refused(graph):
    stage(graph, WIDER, (SCHEMA_IR, SCHEMA_STATE))
    with pytest.raises(SchemaDrift):
        reconcile_schema_state(graph.context)
