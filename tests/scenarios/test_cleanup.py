"""Old states go, and whatever anybody still needs stays."""

import os
import time
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import lance
import pytest

import graphs
import omnigraph
from omnigraph.api.graph import Graph
from omnigraph.core.errors import (
    BadRequest,
    Corrupt,
    DriftError,
    RecoveryRequired,
    SnapshotNotFound,
    StoragePermanent,
    VersionReclaimed,
)
from omnigraph.core.events import Warned, listen
from omnigraph.core.failpoints import Raise, Window, activate
from omnigraph.core.settings import Settings
from omnigraph.engine.session import open_session
from omnigraph.pipeline.output.scans import plan_scan, readable_type, scan_fragments
from omnigraph.storage.layout import CHECKSUMS, CLEANUP
from omnigraph.storage.manifest_files import HINT, hint_text, manifest_object

SCHEMA = """
node P { name: String @key  n: I32? }
node Q { name: String @key }
edge Likes: P -> Q
"""
AT_ONCE = Settings(durability="os", leftover_seconds=0)
NOTES = {CLEANUP, f"{CLEANUP}.lock", f"{CLEANUP}.lock.next"}


@pytest.fixture
def graph(tmp_path):
    with graphs.make_graph(tmp_path / "g", SCHEMA) as made:
        made.session.after_publish = None
        yield made


class SteppingClock:
    """A clock that stands until it is advanced."""

    def __init__(self) -> None:
        self._now_us = time.time_ns() // 1_000

    def now_us(self) -> int:
        return self._now_us

    def advance(self, by: timedelta) -> None:
        self._now_us += by // timedelta(microseconds=1)


def insert(graph, name, *, of="P", branch="main"):
    graphs.run(graph, f'insert {of} {{ name: "{name}" }}', branch=branch)


def on_disk(graph) -> dict[str, int]:
    top = Path(graph.uri)
    found = {str(each.relative_to(top)): each.stat().st_size for each in top.rglob("*") if each.is_file()}
    return {
        name: size for name, size in found.items() if name not in NOTES and not name.startswith(CHECKSUMS)
    }


def states(graph, *names) -> dict[str, str]:
    """What commits, tags or branches show."""
    return {name: graph.export(at=name) for name in names}


def is_sound(graph) -> None:
    report = graph.verify(deep=True)
    assert report.violations == ()
    assert report.corrupt == ()


@pytest.mark.slow
def test_the_dry_run_is_what_goes(graph) -> None:
    for number in range(12):
        insert(graph, f"p{number}")
        if number == 4:
            graph.tags.create("v1")
        if number == 6:
            graph.branches.create("review")
    insert(graph, "r", branch="review")
    graph.branches.create("lazy")
    kept = states(graph, "main", "review", "lazy", "v1", *(c.id for c in graph.commits.list(limit=3)))
    before = on_disk(graph)
    dry = graph.cleanup(keep=3, dry_run=True)
    assert on_disk(graph) == before
    assert {each.name: each.bytes for each in dry.fates if each.name not in NOTES} == before
    done = graph.cleanup(keep=3)
    assert done.removed == dry.removed
    went = {each.name: each.bytes for each in done.removed}
    assert went
    assert on_disk(graph) == {name: size for name, size in before.items() if name not in went}
    assert states(graph, *kept) == kept
    with graphs.reopen(graph) as other:
        assert states(other, *kept) == kept
        is_sound(other)
        insert(other, "more")
        other.branches.merge("review")
        other.branches.merge("main", into="lazy")
        is_sound(other)
    went = graph.cleanup(keep=30).removed
    assert all(each.name.startswith("_graph_commits.lance") for each in went)
    assert graph.cleanup(keep=30).removed == ()


@pytest.mark.slow
def test_the_reasons_are_said_in_words(graph) -> None:
    for number in range(6):
        insert(graph, f"p{number}")
        if number == 1:
            graph.tags.create("v1")
        if number == 2:
            graph.branches.create("review")
    insert(graph, "r", branch="review")
    stray = Path(graph.uri) / graph.snapshot().entries["node:P"].location / "data" / "stray.lance"
    stray.write_bytes(b"x")
    why = {each.name: (each.goes, each.why) for each in graph.cleanup(keep=1, dry_run=True).fates}
    reasons = {reason for _, reason in why.values()}
    assert {"head of main", "head of review", "tag v1", "unreferenced", "schema"} <= reasons
    assert "merge base of main and review" in reasons
    assert why[str(stray.relative_to(graph.uri))] == (False, "younger than 24 h")
    old = Path(graph.uri) / "readme.txt"
    old.write_text("mine")
    os.utime(stray, (1, 1))
    os.utime(old, (1, 1))
    graph.cleanup(keep=1)
    assert not stray.exists()
    assert old.exists()


@pytest.mark.slow
def test_cleanup_keeps_versions_lazy_branches_need(graph) -> None:
    insert(graph, "a")
    graph.branches.create("lazy")
    graph.branches.create("lazier", from_branch="lazy")
    shown = states(graph, "lazy", "lazier")
    for number in range(4):
        insert(graph, f"b{number}")
    graph.cleanup(keep=1)
    with graphs.reopen(graph) as other:
        assert states(other, "lazy", "lazier") == shown
        insert(other, "c", branch="lazier")
        other.branches.merge("lazier", into="lazy")
        other.branches.merge("lazy")
        is_sound(other)


def test_a_hint_that_lags_behind_does_not_end_a_search_at_a_gap(graph) -> None:
    """A writer was stopped between its commit and its hint, while others committed and a cleanup came."""
    insert(graph, "a")
    graph.tags.create("v1")
    kept = graph.snapshot().manifest_version
    for number in range(4):
        insert(graph, f"b{number}")
    shown = states(graph, "main", "v1")
    (Path(graph.uri) / "__manifest" / "_versions" / HINT).write_text(hint_text(kept))
    graph.cleanup(keep=1)
    with graphs.reopen(graph) as other:
        assert states(other, "main", "v1") == shown
        insert(other, "c")
        is_sound(other)


def half_a_write(graph) -> None:
    """Leaves a note that only an open can settle: one table has moved, the other has not."""
    window = Window.MUTATION_POST_TABLE_COMMIT
    with activate(window, Raise(StoragePermanent("cut"))), pytest.raises(RecoveryRequired):
        graphs.run(graph, 'insert P { name: "half" } insert Q { name: "half" }')


def test_cleanup_refuses_pending_sidecar_and_drift(graph) -> None:
    for name in "abc":
        insert(graph, name)
    half_a_write(graph)
    before = on_disk(graph)
    for dry_run in (True, False):
        with pytest.raises(RecoveryRequired, match="rolled back first"):
            graph.cleanup(keep=1, dry_run=dry_run)
    assert on_disk(graph) == before
    with graphs.reopen(graph) as healed:
        entry = healed.snapshot().entries["node:P"]
        lance.dataset(f"{healed.uri}/{entry.location}").delete("id = 'a'")
        before = on_disk(healed)
        for dry_run in (True, False):
            with pytest.raises(DriftError, match="node:P"):
                healed.cleanup(keep=1, dry_run=dry_run)
        assert on_disk(healed) == before


@pytest.mark.slow
def test_cleanup_isolates_one_failing_table(graph) -> None:
    for name in "abc":
        insert(graph, name)
        insert(graph, name, of="Q")
    dry = {each.name: each for each in graph.cleanup(keep=1, dry_run=True).datasets}
    failing = graph.snapshot().entries["node:P"].location
    real = type(graph.session.adapter).remove

    def remove(adapter, names):
        if any(name.startswith(failing) for name in names):
            raise StoragePermanent("the table takes no removal")
        real(adapter, names)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(type(graph.session.adapter), "remove", remove)
        report = graph.cleanup(keep=1)
    done = {each.name: each for each in report.datasets}
    assert report.failed
    assert (done["node:P"].files, done["node:P"].error) == (0, "the table takes no removal")
    assert done["node:Q"] == dry["node:Q"]
    is_sound(graph)
    again = graph.cleanup(keep=1)
    assert not again.failed
    (left,) = [each for each in again.datasets if each.name == "node:P"]
    assert left == dry["node:P"]
    is_sound(graph)


@pytest.mark.slow
def test_a_table_that_cannot_be_told_is_left_alone(graph) -> None:
    for name in "abc":
        insert(graph, name)
        insert(graph, name, of="Q")
    graph.tags.create("v1")
    tagged = graph.snapshot().entries["node:P"]
    insert(graph, "d")
    insert(graph, "e")
    file = Path(graph.uri, manifest_object(tagged.location, None, tagged.version))
    file.write_bytes(file.read_bytes()[:-40] + b"x" * 24 + file.read_bytes()[-16:])
    before = {name for name in on_disk(graph) if name.startswith(tagged.location)}
    report = graph.cleanup(keep=1)
    assert [each.name for each in report.datasets if each.error is not None] == ["node:P"]
    assert before <= on_disk(graph).keys()
    assert any(each.name.startswith("__manifest") for each in report.removed)
    assert sorted(graphs.rows_of(graph, "P")) == ["a", "b", "c", "d", "e"]


@pytest.mark.slow
def test_a_flipped_bit_in_a_kept_version_lets_no_file_of_it_go(graph) -> None:
    """The version names another file than it did: the one it needs looks like one that nobody needs."""
    for name in "abc":
        insert(graph, name)
    graph.tags.create("v1")
    whole = graph.at("v1").export()
    tagged = graph.snapshot().entries["node:P"]
    needed = graph.session.storage.used_files(tagged.location, None, tagged.version).data
    graph.optimize()
    insert(graph, "d")
    file = Path(graph.uri, manifest_object(tagged.location, None, tagged.version))
    kept = file.read_bytes()
    named = Path(min(needed)).name.encode()
    assert named in kept
    file.write_bytes(kept.replace(named, bytes([named[0] ^ 1]) + named[1:]))
    report = graph.cleanup(keep=1)
    (told,) = [each for each in report.datasets if each.error is not None]
    assert told.name == "node:P"
    assert "holds other bytes than were written" in told.error
    file.write_bytes(kept)
    graph.refresh()
    assert graph.at("v1").export() == whole
    assert not graph.cleanup(keep=1).failed
    assert graph.at("v1").export() == whole
    is_sound(graph)


@pytest.mark.slow
def test_a_flipped_bit_in_a_kept_state_stops_everything(graph) -> None:
    """What a state shows decides what stays, and a state that shows something else would let all of it go."""
    for name in "abc":
        insert(graph, name)
    graph.tags.create("v1")
    version = graph.snapshot().manifest_version
    (data,) = graph.session.manifest.dataset.used_files(None, version).data
    insert(graph, "d")
    insert(graph, "e")
    file = Path(graph.uri, data)
    kept = file.read_bytes()
    file.write_bytes(kept[:-1] + bytes([kept[-1] ^ 1]))
    before = on_disk(graph)
    with pytest.raises(Corrupt) as raised:
        graph.cleanup(keep=1)
    assert raised.value.file == data
    assert before.keys() <= on_disk(graph).keys()
    file.write_bytes(kept)
    assert not graph.cleanup(keep=1).failed
    is_sound(graph)


@pytest.mark.slow
def test_cleanup_reconciles_orphans_keeps_legitimate(graph) -> None:
    insert(graph, "a")
    for branch in ("gone", "gone-as-well", "here"):
        graph.branches.create(branch)
        insert(graph, branch, branch=branch)
    for branch in ("gone", "gone-as-well"):
        with activate(Window.BRANCH_DELETE_BEFORE_TABLE_CLEANUP, Raise()):
            graph.branches.delete(branch)
    location = graph.snapshot().entries["node:P"].location
    forks = graph.session.storage.list_branches
    assert set(forks(location)) == {"gone", "gone-as-well", "here"}
    dry = graph.cleanup(keep=100, dry_run=True)
    of_forks = {each.name for each in dry.removed if each.why == "fork that nothing shows"}
    assert f"{location}/_refs/branches/gone.json" in of_forks
    assert all("gone" in name for name in of_forks)
    done = graph.cleanup(keep=100)
    assert done.removed == dry.removed
    assert set(forks(location)) == {"here"}
    assert sorted(graphs.rows_of(graph, "P", branch="here")) == ["a", "here"]
    graph.branches.create("gone")
    insert(graph, "new", branch="gone")
    assert sorted(graphs.rows_of(graph, "P", branch="gone")) == ["a", "new"]
    is_sound(graph)


def test_a_fork_that_cannot_be_judged_stays_until_the_next_cleanup(graph) -> None:
    insert(graph, "a")
    graph.branches.create("gone")
    insert(graph, "x", branch="gone")
    with activate(Window.BRANCH_DELETE_BEFORE_TABLE_CLEANUP, Raise()):
        graph.branches.delete("gone")
    location = graph.snapshot().entries["node:P"].location
    with activate(Window.CLASSIFY_FRESH_READ, Raise(StoragePermanent("not now"))):
        graph.cleanup(keep=100)
    assert lance.dataset(f"{graph.uri}/{location}/tree/gone").count_rows() == 2
    assert set(graph.session.storage.list_branches(location)) == {"gone"}
    graph.cleanup(keep=100)
    assert graph.session.storage.list_branches(location) == {}


@pytest.mark.slow
def test_a_fork_that_others_grew_out_of_goes_with_the_last_of_them(graph) -> None:
    insert(graph, "a")
    graph.branches.create("one")
    insert(graph, "one", branch="one")
    graph.branches.create("two", from_branch="one")
    insert(graph, "two", branch="two")
    shown = graph.export(branch="two")
    graph.cleanup(keep=1)
    with graphs.reopen(graph) as other:
        assert other.export(branch="two") == shown
        for branch in ("two", "one"):
            with activate(Window.BRANCH_DELETE_BEFORE_TABLE_CLEANUP, Raise()):
                other.branches.delete(branch)
        location = other.snapshot().entries["node:P"].location
        assert set(other.session.storage.list_branches(location)) == {"one", "two"}
        other.cleanup(keep=1)
        assert other.session.storage.list_branches(location) == {}
        is_sound(other)


def test_cleanup_reports_unreadable_branch_once(graph) -> None:
    for name in "abc":
        insert(graph, name)
        insert(graph, name, of="Q")
    graph.branches.create("torn")
    insert(graph, "t", branch="torn")
    head = graph.session.manifest.head("torn")
    file = Path(graph.uri, manifest_object("__manifest", "torn", head.version))
    whole = file.read_bytes()
    file.write_bytes(b"x" * len(whole))
    before = on_disk(graph)
    with (
        omnigraph.open_read_only(graph.uri) as reader,
        listening_to_warnings() as warned,
        pytest.raises(StoragePermanent, match="torn cannot be read, so nothing may be removed") as caught,
    ):
        reader.cleanup(keep=1, dry_run=True)
    assert str(caught.value).count("torn cannot be read") == 1
    assert warned == []
    assert on_disk(graph) == before
    file.write_bytes(whole)
    is_sound(graph)


@contextmanager
def listening_to_warnings():
    heard = []
    with listen(lambda event: heard.append(event) if isinstance(event, Warned) else None):
        yield heard


def test_a_damaged_tag_stops_everything(graph) -> None:
    insert(graph, "a")
    graph.tags.create("v1")
    insert(graph, "b")
    tag = Path(graph.uri, "__manifest/_refs/tags/v1.json")
    tag.write_text(tag.read_text().replace('"version": 4', '"version": 3'))
    before = on_disk(graph)
    for dry_run in (True, False):
        with pytest.raises(Corrupt):
            graph.cleanup(keep=1, dry_run=dry_run)
    assert on_disk(graph).items() >= before.items()


@pytest.mark.parametrize(
    "bounds", [{}, {"keep": 0}, {"keep": -1}, {"older_than": timedelta(seconds=-1)}], ids=str
)
def test_a_cleanup_without_a_bound_is_refused(graph, bounds) -> None:
    with pytest.raises(BadRequest):
        graph.cleanup(**bounds)


@pytest.mark.slow
def test_a_state_that_is_gone_names_the_oldest_one_left(graph) -> None:
    for name in "abcde":
        insert(graph, name)
    old, *_, parent, _head = [each.id for each in reversed(graph.commits.list())]
    graph.export(at=old)
    with graphs.reopen(graph) as other:
        other.export(at=old)
        graph.cleanup(keep=2)
        for each in (graph, other):
            with pytest.raises(VersionReclaimed, match=old) as caught:
                each.export(at=old)
            assert caught.value.oldest == parent
            assert parent in str(caught.value.hint)
            assert each.blame("P", "a")["name"].before
            assert [commit.id for commit in each.commits.list()][-1] == old
            assert each.commits.show(old).id == old


@pytest.mark.parametrize(
    "read",
    [
        lambda graph, old: graph.query("query q() { match { $p: P } return { $p.name } }", at=old),
        lambda graph, old: graph.explain("query q() { match { $p: P } return { $p.name } }", at=old),
        lambda graph, old: graph.diff(old, "main"),
        lambda graph, _: graph.revert(graph.commits.list()[1].id),
        lambda graph, old: graph.entity("P", "a", at=old),
        lambda graph, old: graph.tags.create("late", at=old),
        lambda graph, old: graph.branches.restore("main", to=old),
        lambda graph, old: graph.at(old),
        lambda graph, _: graph.at(4),
    ],
    ids=["query", "explain", "diff", "revert", "entity", "tag", "restore", "at", "number"],
)
def test_every_call_that_needs_a_state_that_is_gone_says_so(graph, read) -> None:
    for name in "abcde":
        insert(graph, name)
    old = graph.commits.list()[-1].id
    graph.export(at=old)
    graph.cleanup(keep=2)
    with pytest.raises(VersionReclaimed):
        read(graph, old)


@pytest.mark.slow
def test_a_reader_on_a_state_that_goes_is_told(graph) -> None:
    for name in "abc":
        insert(graph, name)
    chunks, rows = graph.export_chunks(), graph.export()
    insert(graph, "d")
    graph.cleanup(keep=1)
    assert b"".join(chunks).decode() == rows  # every file of it is a file of the newest state, too
    chunks = graph.export_chunks()
    graph.optimize()
    graph.cleanup(keep=1)
    with pytest.raises(VersionReclaimed) as caught:
        b"".join(chunks)
    assert caught.value.oldest == graph.commits.head().id


def removed(graph) -> str:
    """Remove the state that is shown now, with the files that only it is read from; its commit."""
    old = graph.commits.head().id
    insert(graph, "later")
    graph.optimize()
    graph.cleanup(keep=1)
    return old


READS = {
    "blob": lambda graph: graph.blob("Doc", "d0", "file").read(),
    "entity": lambda graph: graph.entity("Doc", "d0"),
    "query": lambda graph: graph.query("query q() { match { $d: Doc } return { $d.name } }").to_arrow(),
}


@pytest.mark.slow
@pytest.mark.parametrize("read", READS)
def test_a_state_that_goes_after_it_was_found_is_named(tmp_path, monkeypatch, read) -> None:
    """Between the look at the branch and the look at its tables."""
    with graphs.make_graph(
        tmp_path / "g", f"{SCHEMA} node Doc {{ name: String @key  file: Blob? }}"
    ) as graph:
        graph.session.after_publish = None
        for number in range(3):
            graphs.run(graph, f'insert Doc {{ name: "d{number}", file: "base64:QUJD" }}')
        with graphs.reopen(graph) as reader:
            found, state = [], reader._state

            def find(*given):
                found.append(state(*given))
                if len(found) == 1:
                    graphs.run(graph, 'update Doc set { file: "base64:REVG" } where name = "d0"')
                    removed(graph)
                return found[-1]

            monkeypatch.setattr(reader, "_state", find)
            with pytest.raises(VersionReclaimed) as caught:
                READS[read](reader)
            assert caught.value.oldest == graph.commits.head().id
            READS[read](reader)


@pytest.mark.parametrize(
    "read",
    [
        lambda graph: graph.export(branch="short"),
        lambda graph: graph.query(
            "query q() { match { $p: P } return { $p.name } }", branch="short"
        ).to_arrow(),
    ],
    ids=["export", "query"],
)
def test_a_state_that_goes_with_its_branch_while_it_is_read_is_named(graph, monkeypatch, read) -> None:
    graph.branches.create("short")
    insert(graph, "a", branch="short")
    with graphs.reopen(graph) as reader:
        state = reader._state

        def find(*given):
            found = state(*given)
            if "short" in graph.branches.list():
                graph.branches.delete("short")
            return found

        monkeypatch.setattr(reader, "_state", find)
        with pytest.raises(SnapshotNotFound, match="short@"):
            read(reader)


@pytest.mark.slow
def test_a_scan_of_a_task_says_that_its_state_is_gone(graph) -> None:
    """What a frame of Spark reads, task by task, long after it was made."""
    for name in "abc":
        insert(graph, name)
    snapshot = graph.snapshot()
    seen, table_type = readable_type(graph.session, snapshot, "P", None)
    scan = plan_scan(graph.session, seen, table_type)
    assert sum(each.num_rows for each in scan_fragments(scan, scan.groups[0])) == 3
    removed(graph)
    with pytest.raises(VersionReclaimed, match=f"main@{snapshot.manifest_version}") as caught:
        list(scan_fragments(scan, scan.groups[0]))
    assert caught.value.oldest == graph.commits.head().id


@pytest.mark.slow
def test_states_that_were_shown_lately_stay(tmp_path) -> None:
    clock = SteppingClock()
    with graphs.make_graph(tmp_path / "g", SCHEMA) as made:
        uri = made.uri
    with Graph(open_session(uri, settings=graphs.FAST, clock=clock)) as graph:
        for name in "abcd":
            insert(graph, name)
            clock.advance(timedelta(days=1))
        commits = [each.id for each in reversed(graph.commits.list())]
        # The state of `b` was shown until `c` came, two days ago.
        graph.cleanup(older_than=timedelta(days=2, hours=1))
        assert states(graph, *commits[2:])
        with pytest.raises(VersionReclaimed):
            graph.export(at=commits[1])
        graph.cleanup(keep=3, older_than=timedelta(0))
        assert states(graph, *commits[2:])
        graph.cleanup(older_than=timedelta(0))
        with pytest.raises(VersionReclaimed):
            graph.export(at=commits[3])
        assert graph.export(at=commits[4]) == graph.export()


@pytest.mark.slow
def test_the_checksums_of_files_that_stay_are_kept(graph) -> None:
    for name in "abcdef":
        insert(graph, name)
    deep = graph.verify(deep=True)
    graph.cleanup(keep=1)
    after = graph.verify(deep=True)
    assert after.corrupt == ()
    entry = graph.snapshot().entries["node:P"]
    used = graph.session.storage.used_files(entry.location, None, entry.version)
    assert len(used.data) == 6
    for name in used.data:
        file = Path(graph.uri, name)
        whole = file.read_bytes()
        file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        assert [each.file for each in graph.verify(deep=True).corrupt] == [name]
        file.write_bytes(whole)
    assert deep.files > after.files >= 6
