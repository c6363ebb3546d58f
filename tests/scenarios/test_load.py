"""Section 4.2 of the testing specification, and the load parts of 4.1 and 4.3, on both engines."""

import gzip
import io
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

import watched_staging
from graphs import FAST, FIXTURE_M, hear, make_graph, reopen, rows_of, run, state_of, unchanged
from omnigraph.api.graph import Graph
from omnigraph.core.cancel import Cancellation
from omnigraph.core.errors import (
    BadRequest,
    BranchNotFound,
    Cancelled,
    ConstraintViolation,
    ExpectedVersionMismatch,
    IoFailure,
    KeyConflict,
    LoadFormatError,
    OmnigraphError,
    RecoveryRequired,
    ResourceLimit,
)
from omnigraph.core.events import Progress, TableCommitted, Warned
from omnigraph.core.failpoints import Callback, Raise, Sequence, Window, activate
from omnigraph.core.failpoints import Pass as PassBy
from omnigraph.core.ids import TableKey
from omnigraph.manifest.recoveries import RecoveryKind
from omnigraph.pipeline.checks import verify
from omnigraph.pipeline.checks.passes import check_ids
from omnigraph.pipeline.input.records import RECORD_STRUCTURE_MAX
from omnigraph.pipeline.load import run as load_run
from omnigraph.pipeline.spark.session import spark_runtime
from omnigraph.recovery.audit import RECOVERY_ACTOR


def person(name: str, **data) -> dict:
    return {"type": "Person", "data": {"name": name, **data}}


def company(name: str) -> dict:
    return {"type": "Company", "data": {"name": name}}


def knows(source: str, target: str, **data) -> dict:
    return {"edge": "Knows", "from": source, "to": target, "data": data}


def works_at(source: str, target: str, **data) -> dict:
    return {"edge": "WorksAt", "from": source, "to": target, "data": data}


def test_load_append_inserts(graph: Graph, load) -> None:
    before = state_of(graph)
    report = load(
        person("ann", age=3), person("bob"), knows("ann", "bob", since="2024-01-01"), company("acme")
    )
    assert {count.name: count.inserted for count in (*report.nodes, *report.edges)} == {
        "Company": 1,
        "Person": 2,
        "Knows": 1,
    }
    assert (report.records_read, report.total_entities, report.records_refused) == (4, 4, 0)
    after = state_of(graph)
    assert after.manifest_version == before.manifest_version + 1
    assert after.commits == before.commits + 1
    assert after.heads == after.pins
    assert report.commit.operation == "load"
    assert rows_of(graph, "Person")["ann"]["age"] == 3
    assert graph.verify().violations == ()


def test_load_append_rejects_existing_id(graph: Graph, load) -> None:
    load(person("ann", age=3))
    with unchanged(graph), pytest.raises(KeyConflict) as refused:
        load(person("bob"), person("ann", age=4))
    assert refused.value.details["problems"][0]["line"] == 2


def test_load_merge_upserts(graph: Graph, load) -> None:
    load(person("ann", age=3), person("bob", age=4))
    for _ in range(2):
        load(person("ann", age=5), person("cat"), mode="merge")
        people = rows_of(graph, "Person")
        assert {name: row["age"] for name, row in people.items()} == {"ann": 5, "bob": 4, "cat": None}
    assert graph.verify().violations == ()


def test_load_merge_last_duplicate_wins(graph: Graph, load) -> None:
    load(person("ann"), person("bob"), knows("ann", "bob", id="k"))
    report = load(knows("ann", "ann", id="k"), knows("bob", "ann", id="k"), mode="merge")
    assert rows_of(graph, "Knows")["k"] == {"from": "bob", "to": "ann", "id": "k", "since": None}
    (count,) = report.edges
    assert (count.inserted, count.replaced, count.superseded) == (0, 1, 1)
    with unchanged(graph), pytest.raises(ConstraintViolation) as refused:
        load(person("cat", age=1), person("cat", age=2), mode="merge")
    assert refused.value.violations[0].rule == "unique"


def test_load_overwrite_replaces_named_tables_only(graph: Graph, load) -> None:
    load(person("ann"), company("acme"))
    before = state_of(graph)
    load(person("zed"), mode="overwrite")
    assert set(rows_of(graph, "Person")) == {"zed"}
    assert set(rows_of(graph, "Company")) == {"acme"}
    named = TableKey("node:Person")
    after = state_of(graph)
    assert after.pins == after.heads == {**before.pins, named: before.pins[named] + 1}


def test_load_overwrite_to_empty(graph: Graph, load) -> None:
    load(person("ann"), company("acme"))
    before = state_of(graph)
    with hear() as heard:
        report = load(mode="overwrite", replace_types=["Company"])
    after = state_of(graph)
    assert rows_of(graph, "Company") == {}
    assert set(rows_of(graph, "Person")) == {"ann"}
    key = TableKey("node:Company")
    assert [event.table_key for event in heard.of(TableCommitted)] == [key]
    assert after.pins == after.heads == {**before.pins, key: before.pins[key] + 1}
    storage, entry = graph.session.storage, graph.snapshot().entries[key]
    # Replaced as a whole by nothing: no row was hidden one by one, no file is left.
    assert storage.transaction_of(entry.location, None, entry.version).operation == "Overwrite"
    assert storage.fragments(graph.session.open_entry(entry)) == ()
    assert report.commit is not None


def test_load_overwrite_validates_against_new_image(graph: Graph, load) -> None:
    load(person("ann"), person("bob"), knows("ann", "bob"))
    with unchanged(graph), pytest.raises(ConstraintViolation) as refused:
        load(person("zed"), knows("zed", "ann"), mode="overwrite")
    assert {violation.rule for violation in refused.value.violations} == {"endpoint"}


def test_load_bad_edge_reference_unblocks_next_load(graph: Graph, load) -> None:
    with unchanged(graph), pytest.raises(ConstraintViolation):
        load(person("ann"), knows("ann", "nobody"))
    load(person("ann"), knows("ann", "ann"))
    assert len(rows_of(graph, "Knows")) == 1


@pytest.mark.slow
def test_load_concurrency_setting_affects_staging_only(
    tmp_path: Path, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    types = [f"N{number}" for number in range(10)]
    schema = "\n".join(f"node {name} {{ k: String @key }}" for name in types)
    source = tmp_path / "ten.jsonl"
    source.write_text("".join(f'{{"type":"{name}","data":{{"k":"a"}}}}\n' for name in reversed(types)))
    monkeypatch.setattr(load_run, "PARTITION_BYTES", 32)  # ten and more pieces for the checks
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    monkeypatch.setattr(load_run, "stage_journaled", watched_staging.stage_watched)
    if engine == "spark":
        spark_runtime(FAST).context.addPyFile(watched_staging.__file__)
    exports = []
    for concurrency in (1, 8):
        settings = replace(FAST, load_concurrency=concurrency)
        checks = watched_staging.Meeting(3)
        monkeypatch.setattr(verify, "check_ids", checks.held(check_ids))
        with make_graph(tmp_path / f"g{concurrency}", schema, settings=settings) as graph, hear() as heard:
            graph.load(source, mode="append", engine=engine)
            exports.append(graph.export())
            (staging,) = watched_staging.seen(graph.uri)
        assert (staging.tables, staging.most_at_once, staging.threads) == (10, concurrency, concurrency)
        assert (staging.pid == os.getpid()) is (engine == "local")
        assert checks.most == 3
        committed = [event.table_key for event in heard.of(TableCommitted)]
        assert committed == sorted(committed)
        assert len(committed) == 10
    assert exports[0] == exports[1]


def test_load_into_missing_branch_without_base_fails(graph: Graph, load) -> None:
    with pytest.raises(BranchNotFound):
        load(person("ann"), branch="review")
    assert graph.branches.list() == ["main"]


def test_load_with_base_creates_branch_and_commits(graph: Graph, load) -> None:
    load(person("ann"))
    report = load(person("bob"), person("ann", age=1), mode="merge", branch="review", base="main")
    assert report.branch_created
    assert set(rows_of(graph, "Person", branch="review")) == {"ann", "bob"}
    assert set(rows_of(graph, "Person")) == {"ann"}
    assert graph.commits.list(branch="review", limit=1)[0].id == report.commit.id
    again = load(person("cat"), knows("cat", "bob"), branch="review")
    assert not again.branch_created
    assert set(rows_of(graph, "Person", branch="review")) == {"ann", "bob", "cat"}
    assert graph.verify().violations == ()


def test_load_unknown_type_reports_record_number(graph: Graph, load) -> None:
    with unchanged(graph), pytest.raises(LoadFormatError) as refused:
        load(person("ann"), "", {"type": "Robot", "data": {}})
    assert refused.value.line == 3


def test_enum_range_regex_violations_rejected(tmp_path: Path, load) -> None:
    with make_graph(tmp_path / "m", FIXTURE_M) as graph:
        for data, rule in (({"role": "admin"}, "enum"), ({"age": 151}, "range"), ({"nick": "Ana!"}, "check")):
            member = {"type": "Member", "data": {"email": "ana@x", **data}}
            with unchanged(graph), pytest.raises(ConstraintViolation) as refused:
                load(member, into=graph)
            assert [violation.rule for violation in refused.value.violations] == [rule]


def test_cardinality_merge_load_counts_moved_edge_once(graph: Graph, load) -> None:
    load(person("ann"), person("bob"), company("acme"), works_at("ann", "acme", id="w"))
    load(works_at("bob", "acme", id="w"), mode="merge")
    load(works_at("ann", "acme", id="v"), mode="merge")
    with unchanged(graph), pytest.raises(ConstraintViolation) as refused:
        load(works_at("bob", "acme", id="v"), mode="merge")
    assert "source 'bob' would have 2 edges" in str(refused.value)


def test_actor_recorded_on_commit(graph: Graph, load) -> None:
    load(person("ann"), actor="ana")
    load(person("bob"), actor="bea")
    assert [commit.actor for commit in graph.commits.list(limit=2)] == ["bea", "ana"]
    assert len(graph.commits.list(actor="ana")) == 1


def test_load_after_finalize_publisher_failure_heals_without_reopen(graph: Graph, load) -> None:
    with (
        activate(Window.MUTATION_POST_FINALIZE_PRE_PUBLISHER, Raise(OSError("cut"))),
        pytest.raises(RecoveryRequired) as cut,
    ):
        load(person("ann"), actor="ana")
    assert rows_of(graph, "Person") == {}
    assert graph.pending() == (cut.value.operation_id,)
    assert graph.recoveries() == ()
    loaded = load(person("bob"), actor="ben").commit
    assert set(rows_of(graph, "Person")) == {"ann", "bob"}
    assert graph.pending() == ()
    (record,) = graph.recoveries()
    assert (
        record.operation_id,
        record.recovery_kind,
        record.recovery_for_actor,
        record.sidecar_writer_kind,
    ) == (
        cut.value.operation_id,
        RecoveryKind.ROLLED_FORWARD,
        "ana",
        "Load",
    )
    history = [(commit.id, commit.operation, commit.actor) for commit in graph.commits.list()]
    assert history[:2] == [
        (loaded.id, "load", "ben"),
        (record.graph_commit_id, "recovery", RECOVERY_ACTOR),
    ]
    assert graph.verify().violations == ()


def test_sidecar_write_failure_aborts_before_head_moves(graph: Graph, load) -> None:
    failing = activate(Window.RECOVERY_SIDECAR_WRITE, Raise(OSError("full")))
    with failing, unchanged(graph), pytest.raises((OmnigraphError, OSError)):
        load(person("ann"))
    load(person("ann"))
    assert set(rows_of(graph, "Person")) == {"ann"}


def test_sidecar_delete_failure_keeps_success(graph: Graph, load) -> None:
    failing = Sequence([Raise(OSError("gone")), PassBy()])
    with activate(Window.RECOVERY_SIDECAR_DELETE, failing), hear() as heard:
        report = load(person("ann"), actor="ana")
    (operation,) = graph.pending()
    assert [warned.detail for warned in heard.of(Warned)] == [f"{operation}: gone"]
    assert report.commit == graph.commits.head()
    assert set(rows_of(graph, "Person")) == {"ann"}
    load(person("bob"))
    assert graph.pending() == ()
    assert set(rows_of(graph, "Person")) == {"ann", "bob"}
    # What was there already is recorded once and makes no row twice.
    assert [(each.operation_id, each.recovery_kind) for each in graph.recoveries()] == [
        (operation, RecoveryKind.ROLLED_FORWARD)
    ]
    assert graph.verify().violations == ()


# --- beside other writers ---


def test_append_is_verified_again_when_somebody_was_faster(graph: Graph, load) -> None:
    """The other writer takes the same id between the checks and the commit: the load must notice."""
    other = reopen(graph)
    insert = Callback(lambda _window: run(other, 'insert Person { name: "ann" }'))
    with activate(Window.MUTATION_POST_STAGE_PRE_QUEUE, _first(insert)), pytest.raises(KeyConflict):
        load(person("ann", age=1))
    assert rows_of(graph, "Person")["ann"]["age"] is None
    other.close()


def test_merge_lands_on_what_somebody_else_committed(graph: Graph, load) -> None:
    load(person("ann", age=1))
    other = reopen(graph)
    insert = Callback(lambda _window: run(other, 'insert Person { name: "bob", age: 2 }'))
    with activate(Window.MUTATION_POST_STAGE_PRE_QUEUE, _first(insert)):
        report = load(person("ann", age=5), person("bob", age=6), mode="merge")
    people = rows_of(graph, "Person")
    assert {name: row["age"] for name, row in people.items()} == {"ann": 5, "bob": 6}
    assert [(count.inserted, count.replaced) for count in report.nodes] == [(0, 2)]
    other.close()


def test_overwrite_does_not_run_over_a_newer_commit(graph: Graph, load) -> None:
    load(person("ann"))
    other = reopen(graph)
    insert = Callback(lambda _window: run(other, 'insert Person { name: "bob" }'))
    with (
        activate(Window.MUTATION_POST_STAGE_PRE_QUEUE, _first(insert)),
        pytest.raises(ExpectedVersionMismatch),
    ):
        load(person("zed"), mode="overwrite")
    assert set(rows_of(graph, "Person")) == {"ann", "bob"}
    other.close()


def _first(action: Callback) -> Sequence:
    """Only once: the competing write passes the same window."""
    return Sequence([action])


def test_cancelled_before_phase_a(graph: Graph, load) -> None:
    cancel = Cancellation()
    cancel.request()
    with unchanged(graph), pytest.raises(Cancelled):
        load(person("ann"), cancel=cancel)


# --- what is left behind ---


def test_a_refused_load_leaves_no_files(graph: Graph, load, tmp_path: Path) -> None:
    files = {path for path in (tmp_path / "g").rglob("*") if path.is_file()}
    with pytest.raises(ConstraintViolation):
        load(person("ann"), knows("ann", "nobody"))
    left = {path for path in (tmp_path / "g").rglob("*") if path.is_file()} - files
    assert {path.name for path in left if "__cache" not in str(path)} == set()


def test_a_lost_overwrite_leaves_no_files(graph: Graph, load, tmp_path: Path) -> None:
    load(person("ann"))
    other = reopen(graph)
    insert = Callback(lambda _window: run(other, 'insert Company { name: "acme" }'))
    moved = activate(Window.MUTATION_POST_STAGE_PRE_QUEUE, _first(insert))
    with moved, pytest.raises(ExpectedVersionMismatch):
        load(company("zed"), mode="overwrite")
    other.close()
    referenced = {name for key in state_of(graph).pins for name in _data_files(graph, key)}
    found = {str(path.relative_to(tmp_path / "g")) for path in (tmp_path / "g").rglob("data/*.lance")}
    tables = {name for name in found if name.startswith(("nodes/", "edges/"))}
    assert tables == referenced


def _data_files(graph: Graph, key: TableKey) -> list[str]:
    session = graph.session
    entry = session.manifest.current(None).entries[key]
    fragments = session.storage.fragments(session.open_entry(entry))
    return [name for fragment in fragments for name in fragment.files]


@pytest.mark.slow
def test_a_graph_made_anew_at_the_same_place(tmp_path: Path, engine: str) -> None:
    """Workers outlive a graph; what they had open for the old one must not serve the new one."""
    source = tmp_path / "in.jsonl"
    source.write_text(json.dumps(person("ann", age=1)) + "\n")
    for _ in range(2):
        with make_graph(tmp_path / "again") as graph:
            graph.load(source, mode="append", engine=engine)
            graph.load(source, mode="merge", engine=engine)
            assert graph.verify().violations == ()
            assert set(rows_of(graph, "Person")) == {"ann"}
        shutil.rmtree(tmp_path / "again")


# --- sources ---


@pytest.mark.slow
def test_sources_files_directories_patterns_gzip_and_streams(
    graph: Graph, tmp_path: Path, engine: str
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.jsonl").write_text(json.dumps(person("ann")))
    with gzip.open(folder / "b.jsonl.gz", "wt") as out:
        out.write(json.dumps(person("bob")) + "\n" + json.dumps(knows("bob", "ann")))
    with pa.output_stream(str(folder / "c.ndjson.zst"), compression="zstd") as out:
        out.write(json.dumps(person("cat")).encode())
    (folder / "notes.txt").write_text("not an input")
    report = graph.load(folder, mode="append", engine=engine)
    assert (report.records_read, len(rows_of(graph, "Person"))) == (4, 3)
    graph.load(str(folder / "*.jsonl"), mode="merge", engine=engine)
    graph.load(io.BytesIO(json.dumps(person("dan")).encode()), mode="append", engine=engine)
    assert set(rows_of(graph, "Person")) == {"ann", "bob", "cat", "dan"}
    with pytest.raises(IoFailure):
        graph.load(tmp_path / "nothing.jsonl", mode="append", engine=engine)


def test_csv_and_parquet_hold_one_type(graph: Graph, tmp_path: Path, engine: str) -> None:
    (tmp_path / "Person.csv").write_text('name,age,nick\nann,3,"a,n"\nbob,,\n')
    graph.load(tmp_path / "Person.csv", mode="append", engine=engine)
    people = rows_of(graph, "Person")
    assert (people["ann"]["age"], people["ann"]["nick"], people["bob"]["age"]) == (3, "a,n", None)
    edges = pa.table({"from": ["ann"], "to": ["bob"], "since": pa.array([19723], pa.date32())})
    pa.parquet.write_table(edges, tmp_path / "edges.parquet")
    graph.load(tmp_path / "edges.parquet", mode="append", engine=engine, type_name="Knows")
    (edge,) = rows_of(graph, "Knows").values()
    assert (edge["from"], edge["to"], edge["since"]) == ("ann", "bob", "2024-01-01")
    (tmp_path / "Person.csv").write_text("name,age\ncat,4\ndan,old\n")
    with pytest.raises(LoadFormatError) as refused:
        graph.load(tmp_path / "Person.csv", mode="append", engine=engine)
    assert "'old' is not an integer of I32" in str(refused.value)
    assert refused.value.line == 3


def test_words_nobody_knows_are_refused(graph: Graph, tmp_path: Path) -> None:
    source = tmp_path / "a.jsonl"
    source.write_text("")
    for options in (
        {"mode": "replace"},
        {"mode": "append", "engine": "ray"},
        {"mode": "append", "format": "xml"},
    ):
        with pytest.raises(BadRequest):
            graph.load(source, **options)


def test_records_over_a_limit_are_refused(graph: Graph, load) -> None:
    long = '{"type":"Person","data":{"name":"' + "a" * 200_000 + '"}}'
    load(long)
    deep = '{"type":"Person","data":{"name":[' + "1," * (RECORD_STRUCTURE_MAX + 1) + "1]}}"
    with unchanged(graph), pytest.raises(ResourceLimit):
        load(deep)


def test_progress_is_reported_per_stage(load) -> None:
    with hear() as heard:
        load(person("ann"))
    stages = {event.stage for event in heard.of(Progress)}
    assert {"stage", "check ids", "check references"} <= stages


def test_rejects_hold_every_refused_record_with_its_reasons(graph: Graph, load, tmp_path: Path) -> None:
    report = load(
        person("ann"), person("ann"), knows("ann", "bob"), person("bob", age="x"), person("cat"), "oops",
        rejects=tmp_path / "rejects",
    )  # fmt: skip
    assert set(rows_of(graph, "Person")) == {"cat"}
    lines = [json.loads(line) for line in (tmp_path / "rejects" / "rejects.jsonl").read_text().splitlines()]
    assert [line["line"] for line in lines] == [1, 2, 3, 4, 6]
    assert all(line["reasons"] for line in lines)
    assert lines[-1]["record"] == "oops"
    assert (report.records_read, report.records_refused, report.total_entities) == (6, 5, 1)
