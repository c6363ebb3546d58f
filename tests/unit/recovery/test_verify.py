"""`verify` finds each broken invariant, and nothing in a healthy graph."""

import shutil
from dataclasses import replace

import pytest

import omnigraph
from omnigraph.core.events import DurableOperation, listen
from omnigraph.core.ids import CommitId, OperationId, new_ulid
from omnigraph.manifest.changes import CommitIntent, SubTableUpdate
from omnigraph.manifest.recoveries import RecoveryKind, RecoveryRecord
from omnigraph.recovery.verify import Rule, verify
from recovery_graph import FAST, KNOWS, PERSON, RawGraph


@pytest.fixture
def path(tmp_path):
    return tmp_path / "graph"


@pytest.fixture
def graph(path):
    made = RawGraph.create(path)
    made.write(PERSON, ["ada", "bob"])
    made.write(KNOWS, ["k1"])
    made.session.close()
    return RawGraph.attach(path)


def found(path):
    with omnigraph.open_read_only(path, settings=FAST) as reader:
        return {each.rule for each in reader.verify().violations}


def publish(graph, update: SubTableUpdate):
    expected = {update.table_key: graph.pins()[update.table_key]}
    graph.session.publisher.publish(None, [update], expected, CommitIntent(CommitId(new_ulid()), "mutation"))


def update_to(graph, handle) -> SubTableUpdate:
    made_by = graph.session.storage.transaction_of(handle.location, None, handle.version)
    return SubTableUpdate(handle.table_key, handle.version, None, handle.row_count, made_by.uuid)


def test_a_healthy_graph_has_no_findings_and_nothing_is_written(graph, path):
    durable = []
    hear = listen(lambda event: durable.append(event) if isinstance(event, DurableOperation) else None)
    with hear, omnigraph.open_read_only(path, settings=FAST) as reader:
        report = reader.verify()
    assert report.ok
    assert (report.branches, report.tables, report.rows, report.commits) == (1, 3, 3, 3)
    assert durable == []


def test_a_pending_note_is_reported_and_left(graph, path):
    note = graph.note(PERSON)
    with omnigraph.open_read_only(path, settings=FAST) as reader:
        report = reader.verify()
    assert {each.rule for each in report.violations} == {Rule.NOTHING_PENDING}
    assert report.pending == (note.operation_id,)
    assert graph.sidecars() == (note.name,)


def test_staged_schema_files_are_reported(graph, path):
    shutil.copy(path / "_schema.pg", path / "_schema.pg.staging")
    assert found(path) == {Rule.NOTHING_PENDING}


def test_drift(graph, path):
    graph.commit(PERSON, ["foreign"])
    assert found(path) == {Rule.PIN_IS_HEAD}


def test_a_missing_version(graph, path):
    entry = graph.session.manifest.current(None).entries[PERSON]
    (path / entry.location / "_versions" / f"{2**64 - 1 - entry.version:020d}.manifest").unlink()
    assert Rule.PIN_EXISTS in found(path)


@pytest.mark.parametrize("key", [PERSON, KNOWS])
def test_a_missing_data_file(graph, path, key):
    entry = graph.session.manifest.current(None).entries[key]
    for file in (path / entry.location / "data").iterdir():
        file.unlink()
    assert found(path) == {Rule.PIN_EXISTS}


def test_a_wrong_row_count(graph, path):
    handle = graph.commit(PERSON, ["eve"])
    publish(graph, replace(update_to(graph, handle), row_count=99))
    assert found(path) == {Rule.ROW_COUNT}


def test_a_version_of_another_commit(graph, path):
    handle = graph.commit(PERSON, ["eve"])
    publish(graph, replace(update_to(graph, handle), transaction_uuid="somebody else's"))
    assert found(path) == {Rule.PIN_IDENTITY}


def test_an_id_that_occurs_twice(graph, path):
    graph.write(PERSON, ["ada"])
    assert found(path) == {Rule.ID_UNIQUE}


def test_an_id_that_is_not_the_key(graph, path):
    graph.publish([graph.commit(PERSON, ["eve"], name="adam")])
    assert found(path) == {Rule.ID_IS_KEY}


def test_a_unique_value_that_two_rows_have(path):
    omnigraph.init(path, schema="node Person { name: String @key  mail: String? @unique }").close()
    graph = RawGraph.attach(path)
    graph.publish([graph.commit(PERSON, ["ada", "bob"])])
    assert found(path) == set(), "nothing is held by nobody"
    graph.publish([graph.commit(PERSON, ["cat", "dot"], mail="m@x")])
    assert found(path) == {Rule.VALUES_UNIQUE}


def test_an_edge_without_its_node(path):
    graph = RawGraph.create(path)
    graph.write(KNOWS, ["k1"])  # from ada to ada, and there is no ada
    assert found(path) == {Rule.ENDPOINT_PRESENT}


def test_a_history_with_a_hole(graph, path):
    shutil.rmtree(path / "_graph_commits.lance")
    newest = graph.session.manifest.current(None).manifest_version
    (path / "__manifest/_versions" / f"{2**64 - 1 - (newest - 1):020d}.manifest").unlink()
    assert Rule.COMMITS_CHAINED in found(path)


@pytest.mark.parametrize("link", ["parents", "merged_parent"])
def test_a_commit_without_one_of_its_parents(graph, path, link):
    newest = graph.context.commits.list(None)[0]
    gone = CommitId(new_ulid())
    parents = (gone,) if link == "parents" else (newest.parents[0], gone)
    graph.context.commits._write({gone: replace(newest, id=CommitId(new_ulid()), parents=parents)})
    assert found(path) == {Rule.PROJECTION_COMPLETE}


def test_an_audit_row_of_nothing(graph, path):
    graph.context.recoveries.append_once(
        RecoveryRecord(
            CommitId(new_ulid()), RecoveryKind.ROLLED_BACK, None, OperationId(new_ulid()), "Mutation", (), 1
        )
    )
    assert found(path) == {Rule.AUDIT_MATCHES}


def test_an_audit_row_of_another_commit(graph, path):
    head = graph.session.manifest.current(None).head
    graph.context.recoveries.append_once(
        RecoveryRecord(head, RecoveryKind.ROLLED_BACK, None, OperationId(new_ulid()), "Mutation", (), 1)
    )
    assert found(path) == {Rule.AUDIT_MATCHES}


@pytest.mark.slow
def test_a_branch_is_verified_too(graph, path):
    graph.session.manifest.create_branch("b", None)
    entry = graph.session.manifest.current("b").entries[PERSON]
    graph.session.storage.create_branch(PERSON, entry.location, "b", None, entry.version)
    handle = graph.commit(PERSON, ["eve"], branch="b", table_branch="b")
    graph.publish([handle], branch="b")
    assert verify(graph.context, graph.session.catalog_of).ok
    graph.commit(PERSON, ["foreign"], branch="b", table_branch="b")
    report = verify(graph.context, graph.session.catalog_of)
    assert [(each.rule, each.where) for each in report.violations] == [(Rule.PIN_IS_HEAD, "node:Person on b")]
