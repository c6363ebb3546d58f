"""Schema changes whose processes die: at every window the graph is as before or as after, and goes on."""

import shutil
import threading
from contextlib import ExitStack
from itertools import count

import pytest

import omnigraph
from crash.harness import CUT, run_child
from graphs import pins_of
from invariants import assert_healthy
from omnigraph.core.errors import ConflictError, MigrationUnsupported, RecoveryRequired, SchemaSyntaxError
from omnigraph.core.failpoints import Callback, Pause, Raise, Window, activate
from omnigraph.core.ids import TableKey
from omnigraph.manifest.branches import BranchStore
from omnigraph.manifest.recoveries import RecoveryKind
from omnigraph.recovery.queues import SCHEMA_APPLY_KEY
from omnigraph.storage.layout import SCHEMA_STATE, STAGING_SUFFIX
from omnigraph.storage.manifest_files import manifest_object
from recovery_graph import FAST, SCHEMA, RawGraph

pytestmark = pytest.mark.crash

WIDER = SCHEMA.replace("age: I32?", "age: I32?  nick: String?") + "node City { name: String @key }\n"
"""One table gets a column, one type is added."""
RENAMED = (
    SCHEMA.replace("node Person", 'node Human @rename_from("Person")')
    .replace("age: I32?", 'years: I32? @rename_from("age")')
    .replace("Person -> Person", "Human -> Human")
    .replace("node Company { name: String @key }\n", "")
)
"""A type and a property with new names, a type that goes."""
DESCRIBED = SCHEMA.replace("node Company", 'node Company @description("firms")')
"""No table changes at all."""
FILLED = SCHEMA.replace("age: I32?", 'age: I64?  tier: String @default("basic")')
"""A column with new values in every row, and one that becomes wider."""

SCHEMAS = {"wider": WIDER, "renamed": RENAMED, "described": DESCRIBED, "filled": FILLED}

BEFORE, AFTER = "before", "after"
KILLED = {
    Window.RECOVERY_SIDECAR_LIST: BEFORE,
    Window.BRANCH_CREATE_AFTER_MANIFEST_BRANCH_CREATE: BEFORE,
    Window.SCHEMA_APPLY_AFTER_LOCK: BEFORE,
    Window.SCHEMA_APPLY_AFTER_COLUMN_FILES: BEFORE,
    Window.RECOVERY_SIDECAR_WRITE: BEFORE,
    Window.SCHEMA_APPLY_POST_SIDECAR_PRE_COMMIT: BEFORE,
    Window.SCHEMA_APPLY_AFTER_TABLE_CREATE: BEFORE,
    Window.SCHEMA_APPLY_AFTER_TABLE_COMMIT: BEFORE,
    Window.SCHEMA_APPLY_BEFORE_STAGING_WRITE: BEFORE,
    Window.SCHEMA_APPLY_AFTER_STAGING_WRITE: AFTER,
    Window.PUBLISH_AFTER_STATE_LOAD: AFTER,
    Window.PUBLISH_RETRYABLE_CONTENTION: AFTER,
    Window.GRAPH_PUBLISH_AFTER_MANIFEST_COMMIT: AFTER,
    Window.GRAPH_PUBLISH_BEFORE_COMMIT_APPEND: AFTER,
    Window.SCHEMA_APPLY_AFTER_MANIFEST_COMMIT: AFTER,
    Window.SCHEMA_APPLY_BETWEEN_RENAMES: AFTER,
    Window.RECOVERY_SIDECAR_DELETE: AFTER,
    Window.SCHEMA_APPLY_BEFORE_LOCK_RELEASE: AFTER,
    Window.COMMIT_PROJECTION_BEFORE_APPEND: AFTER,
}
"""Every window that a change passes, in the order of their times, and what a death there leaves."""
ONLY = {
    Window.SCHEMA_APPLY_AFTER_COLUMN_FILES: ["filled"],
    Window.SCHEMA_APPLY_AFTER_TABLE_CREATE: ["wider"],
    Window.SCHEMA_APPLY_AFTER_TABLE_COMMIT: ["wider", "renamed", "filled"],
}
"""Windows that not every change passes."""
DEATHS = [
    (window, name)
    for window in KILLED
    # What every write does alike is tried with one of them.
    for name in (ONLY.get(window, SCHEMAS) if window.startswith("schema_apply.") else ["wider"])
]
CITY = TableKey("node:City")
_numbers = count(1)


@pytest.fixture
def path(tmp_path):
    where = tmp_path / "graph"
    with omnigraph.init(where, schema=SCHEMA, settings=FAST) as graph:
        graph.mutate(
            'query q() { insert Person { name: "ada", age: 1 } insert Person { name: "bob" }'
            ' insert Knows { from: "ada", to: "bob" } }'
        )
    return where


def die(path, window, schema=WIDER, action="kill"):
    command = {"command": "apply_schema", "path": str(path), "schema": schema}
    status, errors = run_child(command, failpoints=f"{window}={action}")
    assert status == CUT, f"{window} was not reached: {errors}"


def rows(graph, type_name="Person"):
    return graph.entity(type_name, "ada").properties


def assert_as(path, outcome, schema=WIDER):
    """The graph as one schema or the other leaves it, sound, with nothing left over, and open to writers."""
    with omnigraph.open(path, settings=FAST) as graph:
        assert graph.schema_source() == (schema if outcome == AFTER else SCHEMA)
        person = "Human" if schema == RENAMED and outcome == AFTER else "Person"
        age = "years" if person == "Human" else "age"
        assert rows(graph, person)[age] == 1
        assert {
            row[f"p.{age}"]
            for row in graph.query(f"query q() {{ match {{ $p: {person} }} return {{ $p.{age} }} }}")
        } == {1, None}
        if schema == FILLED and outcome == AFTER:
            tiers = graph.query("query q() { match { $p: Person } return { $p.tier } }")
            assert {row["p.tier"] for row in tiers} == {"basic"}
        graph.mutate(f'query q() {{ insert {person} {{ name: "new{next(_numbers)}" }} }}')
    assert not list(path.glob(f"*{STAGING_SUFFIX}"))
    assert_healthy(path, table=TableKey(f"node:{person}"))


def test_every_window_that_a_change_passes_is_one_it_dies_in(path, tmp_path):
    passed = set()
    for name, schema in SCHEMAS.items():
        place = tmp_path / name
        shutil.copytree(path, place)
        with ExitStack() as watched:
            for window in Window:
                watched.enter_context(activate(window, Callback(passed.add)))
            with omnigraph.open(place, settings=FAST) as graph:
                graph.apply_schema(schema)
    assert passed == set(KILLED)


@pytest.mark.parametrize(("window", "name"), DEATHS, ids=str)
def test_a_killed_schema_change_is_all_or_nothing_and_can_be_repeated(path, window, name):
    schema = SCHEMAS[name]
    die(path, window, schema)
    assert_as(path, KILLED[window], schema)
    with omnigraph.open(path, settings=FAST) as graph:
        assert graph.apply_schema(schema).applied is (KILLED[window] == BEFORE)
        assert graph.verify().violations == ()
    assert_as(path, AFTER, schema)


@pytest.mark.parametrize("passed", [0, 1], ids=["between two commits of a table", "after both"])
def test_a_kill_between_the_commits_of_one_table_undoes_the_first(path, passed):
    """A column comes and another may not be null any longer: two commits, and no half of them is ever shown."""
    with omnigraph.open(path, settings=FAST) as graph:
        graph.mutate('query q() { update Person set { age: 1 } where name = "bob" }')
    stricter = SCHEMA.replace("age: I32?", 'age: I32  tier: String @default("basic")')
    die(path, Window.SCHEMA_APPLY_AFTER_TABLE_COMMIT, stricter, action=",".join(["pass"] * passed + ["kill"]))
    with omnigraph.open(path, settings=FAST) as graph:
        assert graph.schema_source() == SCHEMA
        graph.mutate('query q() { insert Person { name: "cyd" } }')
        graph.mutate('query q() { delete Person where name = "cyd" }')
    assert_healthy(path)
    with omnigraph.open(path, settings=FAST) as graph:
        graph.mutate("query q() { update Person set { age: 1 } where age is null }")
        assert graph.apply_schema(stricter).applied
        rows = graph.query("query q() { match { $p: Person } return { $p.age, $p.tier } }")
        assert {tuple(row.values()) for row in rows} == {(1, "basic")}
        graph.mutate('query q() { insert Person { name: "dov", age: 2 } }')
        assert graph.verify(deep=True).violations == ()


@pytest.mark.parametrize(
    ("window", "done"),
    [
        (Window.SCHEMA_APPLY_AFTER_COLUMN_FILES, False),
        (Window.SCHEMA_APPLY_AFTER_STAGING_WRITE, True),
        (Window.SCHEMA_APPLY_BEFORE_LOCK_RELEASE, True),
    ],
)
def test_a_killed_fill_is_repeated_by_the_same_call(path, window, done):
    labelled, fills = SCHEMA.replace("age: I32?", "age: I32?  label: String"), ["Person.label = $row.name"]
    command = {"command": "apply_schema", "path": str(path), "schema": labelled, "fills": fills}
    status, errors = run_child(command, failpoints=f"{window}=kill")
    assert status == CUT, errors
    with omnigraph.open(path, settings=FAST) as graph:
        assert graph.plan_schema(labelled, fills=fills).plan.is_empty is done
        assert graph.apply_schema(labelled, fills=fills).applied is not done
        found = graph.query("query q() { match { $p: Person } return { $p.name, $p.label } }")
        assert sorted(map(tuple, map(dict.values, found))) == [("ada", "ada"), ("bob", "bob")]
        with pytest.raises(MigrationUnsupported, match=r"does not add 'Person.age'"):
            graph.apply_schema(labelled, fills=[*fills, "Person.age = 1"])
        assert graph.verify(deep=True).violations == ()


def test_schema_apply_before_staging_rolls_back(path):
    die(path, Window.SCHEMA_APPLY_BEFORE_STAGING_WRITE)
    assert_as(path, BEFORE)
    with omnigraph.open(path, settings=FAST) as graph:
        assert [each.recovery_kind for each in graph.recoveries()] == [RecoveryKind.ROLLED_BACK]


def test_schema_apply_after_staging_rolls_forward(path):
    die(path, Window.SCHEMA_APPLY_AFTER_STAGING_WRITE)
    assert_as(path, AFTER)
    with omnigraph.open(path, settings=FAST) as graph:
        assert [each.recovery_kind for each in graph.recoveries()] == [RecoveryKind.ROLLED_FORWARD]


def test_schema_apply_after_publish_completes_renames(path):
    die(path, Window.SCHEMA_APPLY_AFTER_MANIFEST_COMMIT)
    assert_as(path, AFTER)


@pytest.mark.parametrize("renamed", [1, 2, 3])
def test_schema_apply_partial_rename_completed(path, renamed):
    die(path, Window.SCHEMA_APPLY_BETWEEN_RENAMES, action=",".join(["pass"] * (renamed - 1) + ["kill"]))
    with omnigraph.open_read_only(path, settings=FAST) as graph:
        assert graph.schema_source() == WIDER, "a reader pairs the new tables with the new schema"
        assert rows(graph)["nick"] is None
    assert_as(path, AFTER)


def test_schema_apply_property_only_crash_decidable(path):
    """Nothing but the staged files tells of the change: whether main follows them decides."""
    richer = SCHEMA.replace("age: I32?", "age: I32?  nick: String?")
    die(path, Window.SCHEMA_APPLY_AFTER_MANIFEST_COMMIT, richer)
    for note in (path / "__recovery").glob("*.json"):
        note.unlink()
    assert_as(path, AFTER, richer)


def test_schema_apply_retry_after_added_type_rollback(path):
    die(path, Window.SCHEMA_APPLY_AFTER_TABLE_CREATE)
    with omnigraph.open(path, settings=FAST) as graph:
        assert graph.apply_schema(WIDER).applied
        graph.mutate('query q() { insert City { name: "Oslo" } }')
        location = graph.snapshot().entries[CITY].location
    assert location == RawGraph.attach(path).session.manifest.current(None).registrations[CITY]
    assert_as(path, AFTER)


def test_schema_apply_empty_table_rewrite(path):
    with omnigraph.open(path, settings=FAST) as graph:
        before = pins_of(graph.snapshot())[TableKey("node:Company")]
        graph.apply_schema(
            SCHEMA.replace(
                "node Company { name: String @key }", "node Company { name: String @key  site: String? }"
            )
        )
        entry = graph.snapshot().entries[TableKey("node:Company")]
        assert entry.version == before + 1
        made = graph.session.storage.transaction_of(entry.location, None, entry.version)
        assert made is not None
        assert made.operation == "Overwrite"
        graph.mutate('query q() { insert Company { name: "acme", site: "acme.example" } }')
        assert graph.entity("Company", "acme").properties["site"] == "acme.example"


def test_rollback_then_retry_converges(path):
    person = TableKey("node:Person")
    for attempt in range(1, 4):
        die(path, Window.SCHEMA_APPLY_BEFORE_STAGING_WRITE)
        with omnigraph.open(path, settings=FAST) as graph:
            assert graph.schema_source() == SCHEMA
            entry = graph.snapshot().entries[person]
            assert graph.session.storage.head_version(entry.location, None) == entry.version
            # The first insert made one version; each attempt adds its own commit and the restore.
            assert entry.version <= 3 + 2 * attempt
    with omnigraph.open(path, settings=FAST) as graph:
        assert graph.apply_schema(WIDER).applied
    assert_as(path, AFTER)


def test_schema_apply_after_finalize_publisher_failure_heals_without_reopen(path, tmp_path):
    source = tmp_path / "people.jsonl"
    source.write_text('{"type":"Person","data":{"name":"cid"}}\n')
    with omnigraph.open(path, settings=FAST) as graph:
        window = Window.MUTATION_POST_FINALIZE_PRE_PUBLISHER
        with activate(window, Raise(OSError("cut"))), pytest.raises(RecoveryRequired):
            graph.load(source, mode="append", engine="local")
        assert graph.apply_schema(WIDER).applied
        assert rows(graph)["nick"] is None
        assert graph.entity("Person", "cid").properties["nick"] is None
    assert_as(path, AFTER)


def test_load_after_recovered_schema_apply_uses_new_catalog(path, tmp_path):
    source = tmp_path / "cities.jsonl"
    source.write_text('{"type":"City","data":{"name":"Oslo"}}\n')
    with omnigraph.open(path, settings=FAST) as graph:
        window = Window.SCHEMA_APPLY_AFTER_STAGING_WRITE
        with activate(window, Raise(OSError("cut"))), pytest.raises(RecoveryRequired):
            graph.apply_schema(WIDER)
        graph.load(source, mode="append", engine="local")
        assert graph.entity("City", "Oslo").properties["name"] == "Oslo"
    assert_as(path, AFTER)


def test_heal_does_not_promote_live_schema_apply_staging(path, tmp_path):
    source = tmp_path / "people.jsonl"
    source.write_text('{"type":"Person","data":{"name":"cid"}}\n')
    with omnigraph.open(path, settings=FAST) as graph, omnigraph.open(path, settings=FAST) as other:
        with activate(Window.SCHEMA_APPLY_AFTER_STAGING_WRITE, Pause()) as pause:
            applying = threading.Thread(target=graph.apply_schema, args=(WIDER,))
            applying.start()
            pause.wait_until_reached()
            outcome = []

            def load():
                try:
                    outcome.append(other.load(source, mode="append", engine="local"))
                except ConflictError as refused:
                    outcome.append(refused)

            loading = threading.Thread(target=load)
            loading.start()
            assert (path / (SCHEMA_STATE + STAGING_SUFFIX)).exists(), "nobody took the files of a live apply"
            pause.release()
            applying.join(60)
            loading.join(60)
        assert graph.schema_source() == WIDER
        assert outcome
        assert graph.verify().violations == ()
        if not isinstance(outcome[0], ConflictError):
            assert graph.entity("Person", "cid").properties["nick"] is None
    assert_as(path, AFTER)


def test_a_failed_change_that_moved_nothing_leaves_no_lock(path):
    with omnigraph.open(path, settings=FAST) as graph:
        with (
            activate(Window.SCHEMA_APPLY_POST_SIDECAR_PRE_COMMIT, Raise(OSError("cut"))),
            pytest.raises(OSError, match="cut"),
        ):
            graph.apply_schema(WIDER)
        assert not graph.session.manifest.schema_apply_in_progress()
        graph.mutate('query q() { insert Person { name: "cid" } }')
        assert graph.apply_schema(WIDER).applied
    assert_as(path, AFTER)


def test_the_lock_of_a_dead_apply_is_removed_by_the_next_open(path):
    die(path, Window.SCHEMA_APPLY_AFTER_LOCK)
    raw = RawGraph.attach(path)
    assert raw.session.manifest.schema_apply_in_progress()
    raw.session.close()
    with omnigraph.open(path, settings=FAST) as graph:
        assert not graph.session.manifest.schema_apply_in_progress()
        graph.mutate('query q() { insert Person { name: "cid" } }')


def test_a_staged_schema_is_not_promoted_when_the_change_is_undone(path):
    """A staged schema in place over tables that were rolled back could never be opened."""
    die(path, Window.SCHEMA_APPLY_AFTER_STAGING_WRITE)
    raw = RawGraph.attach(path)
    entry = raw.session.manifest.current(None).entries[TableKey("node:Person")]
    raw.session.close()
    # A power cut took the version that the change had made: it cannot be completed.
    (path / manifest_object(entry.location, None, entry.version + 1)).unlink()
    assert_as(path, BEFORE)
    with omnigraph.open(path, settings=FAST) as graph:
        assert [each.recovery_kind for each in graph.recoveries()] == [RecoveryKind.ROLLED_BACK]
        assert graph.apply_schema(WIDER).applied
    assert_as(path, AFTER)


def test_a_second_apply_beside_a_live_one_waits_or_is_refused(path):
    with omnigraph.open(path, settings=FAST) as graph, omnigraph.open(path, settings=FAST) as other:
        with activate(Window.SCHEMA_APPLY_POST_SIDECAR_PRE_COMMIT, Pause()) as pause:
            applying = threading.Thread(target=graph.apply_schema, args=(WIDER,))
            applying.start()
            pause.wait_until_reached()
            with pytest.raises(ConflictError, match="schema apply is in progress"):
                BranchStore(other.session.manifest).create("early")
            pause.release()
            applying.join(60)
        assert other.apply_schema(WIDER).applied is False
        with pytest.raises(SchemaSyntaxError):
            other.apply_schema("node {")


SITED = SCHEMA.replace(
    "node Company { name: String @key }", "node Company { name: String @key  site: String? }"
)


def test_an_apply_beside_a_live_one_is_refused_and_changes_nothing(path):
    with omnigraph.open(path, settings=FAST) as graph, omnigraph.open(path, settings=FAST) as other:
        with activate(Window.SCHEMA_APPLY_AFTER_LOCK, Pause()) as pause:
            applying = threading.Thread(target=graph.apply_schema, args=(WIDER,))
            applying.start()
            pause.wait_until_reached()
            with pytest.raises(ConflictError, match="a schema apply is in progress") as refused:
                other.apply_schema(SITED)
            assert refused.value.hint == "try again when it has finished"
            pause.release()
            applying.join(60)
        assert other.schema_source() == WIDER
        assert graph.verify().violations == ()


def test_of_two_applies_planned_on_one_schema_one_is_told_of_the_other(path, monkeypatch):
    """The plan of the one that comes second would drop what the first one adds."""
    with omnigraph.open(path, settings=FAST) as graph, omnigraph.open(path, settings=FAST) as other:
        queues = graph.session.queues
        assert queues is other.session.queues
        acquire, in_line, outcomes = queues.acquire_many, threading.Semaphore(0), []

        def queued(*keys, **limits):
            in_line.release()
            return acquire(*keys, **limits)

        def apply(handle, text):
            try:
                outcomes.append(handle.apply_schema(text).applied)
            except ConflictError as refused:
                outcomes.append(refused.message)

        threads = [threading.Thread(target=apply, args=each) for each in ((graph, WIDER), (other, SITED))]
        with acquire([SCHEMA_APPLY_KEY]):
            monkeypatch.setattr(queues, "acquire_many", queued)
            for thread in threads:
                thread.start()
                assert in_line.acquire(timeout=60)
        for thread in threads:
            thread.join(60)
        assert sorted(map(str, outcomes)) == ["True", "another schema change was applied meanwhile"]
        assert graph.schema_source() in {WIDER, SITED}
        assert graph.verify().violations == ()
