"""A clone is one moment of a graph, whole or not a graph at all; a second one copies only what is new."""

import json
import shutil
import threading
from pathlib import Path

import pytest

import omnigraph
from graphs import FAST, hear, make_graph, run
from omnigraph.core.errors import (
    BadRequest,
    BranchNotFound,
    CloneTarget,
    ResourceBusy,
    SnapshotNotFound,
    StorageNotFound,
    StoragePermanent,
)
from omnigraph.core.events import Progress, Warned
from omnigraph.core.failpoints import Callback, Raise, Window, activate
from omnigraph.storage.layout import CLONE, PINS
from stores import Store, s3_store
from travelling import (
    PICTURE,
    SMALL,
    Writing,
    cloned,
    die,
    files_of,
    goes_on,
    make,
    opened,
    published,
    states,
)

pytestmark = pytest.mark.slow


@pytest.fixture
def source(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "source"))


@pytest.fixture
def target(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "clone"))


@pytest.fixture
def small(tmp_path: Path):
    with make_graph(tmp_path / "small", SMALL) as graph:
        run(graph, 'insert P { k: "a" } insert P { k: "b" } insert E { from: "a", to: "b" }')
        yield graph


# ---- one moment, whole


@pytest.mark.crash
@pytest.mark.parametrize(
    "way",
    [
        "local to local",
        *(
            pytest.param(way, marks=[pytest.mark.s3, pytest.mark.slow])
            for way in ("local to s3", "s3 to local", "s3 to s3")
        ),
    ],
)
def test_a_clone_shows_every_state_and_goes_on(tmp_path: Path, way: str) -> None:
    kinds = zip(("source", "clone"), way.split(" to "), strict=True)
    source, target = (s3_store() if kind == "s3" else Store(str(tmp_path / name)) for name, kind in kinds)
    make(source, tmp_path)
    with opened(source, read_only=True) as graph:
        expected = states(graph)
    die(source, Window.MUTATION_POST_FINALIZE_PRE_PUBLISHER)
    report = cloned(source, target)
    assert [each.branch for each in report.branches] == ["main", "team/own", "kid", "lazy"]
    assert report.tags == ("v1", "v2")
    with opened(target) as graph:
        assert states(graph) == expected
        assert graph.pending() == graph.recoveries() == (), "a pending write is not part of a clone"
        report = graph.verify()
        assert (report.violations, report.pending) == ((), ())
        goes_on(graph)
    with opened(source, read_only=True) as graph:
        assert states(graph) == expected
        assert len(graph.pending()) == 1
    assert source.adapter().list_dir(PINS) == []


def test_a_settled_write_comes_with_its_audit(source: Store, target: Store, tmp_path: Path) -> None:
    make(source, tmp_path)
    die(source, Window.MUTATION_POST_TABLE_COMMIT)
    with opened(source) as graph:
        recoveries = graph.recoveries()
    assert len(recoveries) == 1
    cloned(source, target)
    with opened(target, read_only=True) as graph:
        assert graph.recoveries() == recoveries
        assert graph.verify().violations == ()


def test_what_no_state_needs_stays_behind(small, target: Store, tmp_path: Path) -> None:
    cloned(Store(small.uri), target)
    before = files_of(target)
    failure = OSError("the disk is away")
    with activate(Window.MUTATION_POST_STAGE_PRE_QUEUE, Raise(failure)), pytest.raises(OSError):
        run(small, 'insert P { k: "never" }')
    (tmp_path / "in.jsonl").write_text('{"type":"P","data":{"k":"loaded"}}\n')
    with (
        activate(Window.LOAD_POST_STAGE, Raise(omnigraph.errors.IoFailure("away"))),
        pytest.raises(omnigraph.errors.IoFailure),
    ):
        small.load(tmp_path / "in.jsonl", mode="append", engine="local")
    assert small.resumable_loads()
    report = cloned(Store(small.uri), target)
    assert report.files_copied == 0
    assert files_of(target) == before
    assert not any(name.startswith(("__loads", "__recovery", "__cache", PINS)) for name in before)


@pytest.mark.parametrize("branches", [["kid"], ["lazy"], ["main"], ["lazy", "kid"]], ids=",".join)
def test_chosen_branches_bring_what_they_grew_out_of(
    source: Store, target: Store, tmp_path: Path, branches: list[str]
) -> None:
    make(source, tmp_path)
    with opened(source, read_only=True) as graph:
        expected = states(graph)
    cloned(source, target, branches=branches)
    along = {"main", *branches} | ({"team/own"} if "kid" in branches else set())
    with opened(target) as graph:
        assert set(graph.branches.list()) == along
        found = states(graph)
        shows_only(graph, expected)
        assert {f"branch {name}" for name in along} <= set(found)
        assert ("tag v2" in found) == ("kid" in branches)
        assert graph.verify().violations == ()
        for branch in ("main", *branches):
            run(graph, 'insert Person { handle: "on" } insert Note { text: "on" }', branch=branch)
        assert graph.verify().violations == ()


def shows_only(graph, expected: dict[str, str]) -> None:
    """What a clone of a part shows is what the graph shows; commits of branches it has not are only known."""
    branches = graph.branches.list()
    homes = {
        commit.id: commit.branch
        for branch in branches
        for commit in graph.commits.list(branch=branch, merged=True)
    }
    for key, rows in states(graph).items():
        if key in homes and homes[key] not in branches:
            assert rows == "gone with its branch"
        elif key in homes or key.startswith("tag"):
            assert expected[key] == rows


def test_a_clone_ends_with_a_commit(source: Store, tmp_path: Path) -> None:
    make(source, tmp_path)
    with opened(source, read_only=True) as graph:
        expected = states(graph)
        commits = {
            branch: graph.commits.list(branch=branch) for branch in ("main", "team/own", "kid", "lazy")
        }
    chosen = {commit.id: commit for some in commits.values() for commit in some}
    for number, commit in enumerate(chosen.values()):
        target = Store(str(tmp_path / f"at{number}"))
        cloned(source, target, at=commit.id)
        with opened(target) as graph:
            assert graph.commits.list(branch=commit.branch)[0].id == commit.id
            assert graph.export(branch=commit.branch) == expected[commit.id]
            shows_only(graph, expected)
            assert graph.verify().violations == (), commit
            run(graph, 'insert Person { handle: "on" }', branch=commit.branch)
            run(graph, 'insert Note { text: "on" }')
            assert graph.verify().violations == (), commit


def test_a_clone_ends_with_a_tag(source: Store, target: Store, tmp_path: Path) -> None:
    make(source, tmp_path)
    cloned(source, target, at="v1")
    with opened(target) as graph, opened(source, read_only=True) as original:
        assert graph.branches.list() == ["main"]
        assert graph.tags.list() == {"v1": original.tags.list()["v1"]}
        assert graph.export() == original.export(at="v1")
        assert graph.verify().violations == ()


@pytest.mark.crash
def test_heads_only_leaves_the_history_behind_and_can_be_merged(
    source: Store, target: Store, tmp_path: Path
) -> None:
    make(source, tmp_path)
    die(source, Window.MUTATION_POST_TABLE_COMMIT)
    full = Store(str(tmp_path / "full"))
    whole, report = cloned(source, full), cloned(source, target, heads_only=True)
    assert report.heads_only
    assert report.files < whole.files * 2 / 3
    with opened(source, read_only=True) as original, opened(target) as graph:
        for branch in original.branches.list():
            assert graph.export(branch=branch) == original.export(branch=branch)
            history = graph.commits.list(branch=branch, merged=True)
            assert history == original.commits.list(branch=branch, merged=True)
        with pytest.raises(SnapshotNotFound):
            graph.export(at=original.commits.list()[-1].id)
        assert graph.tags.list() == {}
        assert graph.verify().violations == ()
        goes_on(graph)
    with pytest.raises(CloneTarget, match="commits of its own"):
        cloned(source, target)


def test_heads_only_becomes_whole_later(source: Store, target: Store, tmp_path: Path) -> None:
    make(source, tmp_path)
    cloned(source, target, heads_only=True)
    cloned(source, target)
    with opened(source, read_only=True) as original, opened(target) as graph:
        assert states(graph) == states(original)
        assert graph.verify().violations == ()


# ---- only what is new


def test_a_second_clone_copies_only_what_is_new(source: Store, target: Store, tmp_path: Path) -> None:
    make(source, tmp_path)
    first = cloned(source, target)
    assert first.files_copied > 50
    again = cloned(source, target)
    assert (again.files_copied, again.bytes_copied) == (0, 0)
    with opened(source) as graph:
        run(graph, 'insert Note { text: "new" }')
        graph.branches.create("next", from_branch="kid")
        run(graph, 'insert City { name: "next" }', branch="next")
        graph.tags.create("v3", at="next")
    third = cloned(source, target)
    # Two commits of one table each, a branch and a fork: manifests, data, transactions of both kinds.
    assert 0 < third.files_copied <= 16
    with opened(source, read_only=True) as original, opened(target) as graph:
        assert states(graph) == states(original)
        assert graph.verify().violations == ()


def test_a_tag_that_was_moved_moves(small, target: Store) -> None:
    small.tags.create("now")
    cloned(Store(small.uri), target)
    small.tags.delete("now")
    run(small, 'insert P { k: "c" }')
    small.tags.create("now")
    cloned(Store(small.uri), target)
    small.tags.delete("now")
    small.tags.create("now", at=small.commits.list()[1].id)
    assert cloned(Store(small.uri), target).files_copied == 0
    with opened(target, read_only=True) as graph:
        assert graph.tags.list() == small.tags.list()


def test_branches_that_went_go_from_the_clone(small, target: Store) -> None:
    for name in ("old", "old/er", "older"):
        if name != "old/er":
            small.branches.create(name)
            run(small, f'insert P {{ k: "{name}" }}', branch=name)
    small.tags.create("of-old", at="old")
    cloned(Store(small.uri), target)
    small.tags.delete("of-old")
    small.branches.delete("old")
    small.branches.create("old/er")
    run(small, 'insert P { k: "deeper" }', branch="old/er")
    cloned(Store(small.uri), target)
    run(small, 'insert P { k: "c" }')
    cloned(Store(small.uri), target)
    with opened(target) as graph:
        assert states(graph) == states(small)
        assert graph.branches.list() == ["main", "old/er", "older"]
        assert graph.verify().violations == ()
        graph.branches.delete("old/er")
        graph.branches.create("old")
        run(graph, 'insert P { k: "again" }', branch="old")
        assert graph.verify().violations == ()


def test_a_branch_that_was_made_again_replaces_the_first(small, target: Store) -> None:
    for life in ("first", "second", "third"):
        small.branches.create("b")
        run(small, f'insert P {{ k: "{life}" }}', branch="b")
        small.branches.create("kid", from_branch="b")
        run(small, f'insert P {{ k: "{life}-kid" }}', branch="kid")
        small.tags.create(life, at="b")
        cloned(Store(small.uri), target, branches=["kid"] if life == "second" else None)
        with opened(target) as graph:
            assert states(graph) == states(small)
            assert graph.verify().violations == ()
        small.tags.delete(life)
        small.branches.delete("kid")
        small.branches.delete("b")
    cloned(Store(small.uri), target)
    with opened(target) as graph:
        assert graph.branches.list() == ["main"]
        assert graph.tags.list() == {}
        assert graph.verify().violations == ()
    assert not [name for name in files_of(target) if "/tree/" in name]


def test_a_clone_of_a_clone_and_of_a_moved_graph(small, tmp_path: Path) -> None:
    small.branches.create("b")
    run(small, 'insert P { k: "x" }', branch="b")
    places = [Store(small.uri), *(Store(str(tmp_path / name)) for name in ("one", "two"))]
    cloned(places[0], places[1])
    cloned(places[1], places[2])
    shutil.rmtree(places[1].uri)
    with opened(places[2]) as graph:
        assert graph.export(branch="b") == small.export(branch="b")
        assert graph.verify().violations == ()
    run(small, 'insert P { k: "y" }', branch="b")
    moved = Path(small.uri).rename(tmp_path / "moved")
    assert cloned(Store(str(moved)), places[2]).files_copied > 0
    with opened(places[2]) as graph, opened(Store(str(moved)), read_only=True) as original:
        assert states(graph) == states(original)


# ---- beside others


def test_clones_beside_a_writer_are_published_states(small, tmp_path: Path) -> None:
    small.branches.create("b")
    small.branches.create("lazy")
    with Writing(small.uri):
        for number in range(5):
            target = Store(str(tmp_path / f"clone{number % 2}"))
            cloned(Store(small.uri), target)
            published(small, target)


@pytest.mark.parametrize(
    "window", [Window.CLONE_FILE_COPIED, Window.CLONE_POST_COPY, Window.CLONE_POST_TABLES]
)
def test_a_branch_that_is_deleted_meanwhile_stays_away(small, target: Store, window: Window) -> None:
    small.branches.create("b")
    small.branches.create("kept")
    run(small, 'insert P { k: "b" }', branch="b")
    run(small, 'insert P { k: "kept" }', branch="kept")

    def delete(_: Window) -> None:
        if "b" in small.branches.list():
            small.branches.delete("b")
            run(small, 'insert P { k: "since" }')

    with activate(window, Callback(delete)):
        report = small.clone(target.uri)
    assert [each.branch for each in report.branches] == ["main", "kept"]
    with opened(target) as graph:
        assert states(graph) == states(small)
        assert graph.verify().violations == ()
    assert small.session.adapter.list_dir(PINS) == []


def test_a_pin_lasts_as_long_as_the_copying(small, target: Store) -> None:
    seen: list[dict[str, object]] = []

    def look(_: Window) -> None:
        adapter = small.session.adapter
        seen.extend(json.loads(adapter.read_text(f"{PINS}/{name}")) for name in adapter.list_dir(PINS))

    head = small.commits.list()[0]
    with activate(Window.CLONE_POST_COPY, Callback(look)):
        small.clone(target.uri)
    (pin,) = seen
    assert (pin["format"], pin["purpose"], pin["history"]) == (1, "clone", True)
    assert pin["states"] == [
        {"branch": None, "manifest_version": head.manifest_version, "graph_commit_id": head.id}
    ]
    assert int(str(pin["expires_at"])) - int(str(pin["created_at"])) >= 900_000_000
    assert small.session.adapter.list_dir(PINS) == []


def test_a_failed_clone_lets_go_of_its_pin_and_a_dead_one_expires(small, target: Store) -> None:
    adapter = small.session.adapter
    with activate(Window.CLONE_POST_COPY, Raise(KeyboardInterrupt())), pytest.raises(KeyboardInterrupt):
        small.clone(target.uri)
    assert adapter.list_dir(PINS) == []
    now = small.session.clock.now_us()
    for name, expiry in {"dead": now - 6_000_000, "alive": now + 60_000_000, "late": now - 1_000_000}.items():
        adapter.write_text(f"{PINS}/{name}.json", json.dumps({"expires_at": expiry}))
    adapter.write_text(f"{PINS}/unknown.json", "not ours")
    small.clone(target.uri)
    assert sorted(adapter.list_dir(PINS)) == ["alive.json", "late.json", "unknown.json"]


def test_a_read_only_handle_writes_nothing_to_the_source(small, target: Store) -> None:
    with omnigraph.open_read_only(small.uri, settings=FAST) as graph:
        before = {path: path.stat().st_mtime_ns for path in Path(small.uri).rglob("*")}
        graph.clone(target.uri)
        assert {path: path.stat().st_mtime_ns for path in Path(small.uri).rglob("*")} == before
    with opened(target) as clone:
        assert clone.verify().violations == ()


def test_a_source_that_takes_no_pin_is_cloned_with_a_warning(
    small, target: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    from omnigraph.core.errors import StorageConfiguration
    from omnigraph.maintenance.pins import Pin

    def refused(_: Pin) -> None:
        raise StorageConfiguration("read-only")

    monkeypatch.setattr(Pin, "renew", refused)
    with hear() as heard:
        small.clone(target.uri)
    assert ["takes no pin" in each.message for each in heard.of(Warned)] == [True]
    with opened(target) as clone:
        assert clone.export() == small.export()


# ---- what may be at the target


def test_a_place_that_holds_something_else_is_refused(small, tmp_path: Path) -> None:
    full = tmp_path / "full"
    full.mkdir()
    (full / "notes.txt").write_text("mine")
    with pytest.raises(CloneTarget, match="not empty"):
        small.clone(full)
    assert [path.name for path in full.iterdir()] == ["notes.txt"]
    make_graph(tmp_path / "graph", SMALL).close()
    with pytest.raises(CloneTarget, match="not empty"):
        small.clone(tmp_path / "graph")
    shutil.copytree(small.uri, tmp_path / "copy")
    with pytest.raises(CloneTarget, match="not empty"):
        small.clone(tmp_path / "copy")
    with make_graph(tmp_path / "other", SMALL) as other:
        other.clone(tmp_path / "of other")
    with pytest.raises(CloneTarget, match="another graph") as refused:
        small.clone(tmp_path / "of other")
    assert (refused.value.kind, refused.value.uri) == ("clone_target", str(tmp_path / "of other"))
    for inside in (small.uri, f"{small.uri}/nodes", f"{small.uri}/deep/er"):
        with pytest.raises(BadRequest, match="lies in the graph"):
            small.clone(inside)
    (tmp_path / "empty").mkdir()
    small.clone(tmp_path / "empty")
    (tmp_path / "empty" / CLONE).write_text("{}")
    with pytest.raises(CloneTarget, match="not one that this program wrote"):
        small.clone(tmp_path / "empty")


def test_a_clone_that_is_written_to_goes_its_own_way(small, target: Store) -> None:
    small.branches.create("b")
    cloned(Store(small.uri), target)
    with opened(target) as graph:
        run(graph, 'insert P { k: "own" }', branch="b")
        before = graph.export(branch="b")
    run(small, 'insert P { k: "c" }')
    with pytest.raises(CloneTarget, match="b has commits of its own"):
        cloned(Store(small.uri), target)
    with opened(target) as graph:
        assert graph.export(branch="b") == before
        assert graph.verify().violations == ()


def test_a_clone_is_never_taken_back(small, target: Store) -> None:
    run(small, 'insert P { k: "c" }')
    cloned(Store(small.uri), target)
    with pytest.raises(CloneTarget, match="ahead"):
        cloned(Store(small.uri), target, at=small.commits.list()[1].id)


def test_a_branch_that_was_made_in_a_clone_is_never_removed(small, target: Store) -> None:
    cloned(Store(small.uri), target)
    with opened(target) as graph:
        graph.branches.create("mine")
    with pytest.raises(CloneTarget, match="'mine' is a branch of its own"):
        cloned(Store(small.uri), target)
    with opened(target) as graph:
        assert graph.branches.list() == ["main", "mine"]


def test_somebody_at_work_on_the_target_is_not_disturbed(small, target: Store) -> None:
    cloned(Store(small.uri), target)
    run(small, 'insert P { k: "c" }')
    with opened(target) as graph, graph.session.lease.hold():
        thread_refused: list[BaseException] = []

        def clone() -> None:
            try:
                cloned(Store(small.uri), target)
            except BaseException as error:
                thread_refused.append(error)

        other = threading.Thread(target=clone)
        other.start()
        other.join()
    assert [type(each) for each in thread_refused] == [ResourceBusy]


def test_what_cannot_be_cloned_is_said(small, target: Store, tmp_path: Path) -> None:
    with pytest.raises(BranchNotFound):
        small.clone(target.uri, branches=["nobody"])
    with pytest.raises(BadRequest, match="list of names"):
        small.clone(target.uri, branches="main")
    small.branches.create("b")
    with pytest.raises(BadRequest, match="published on main"):
        small.clone(target.uri, branches=["b"], at=small.commits.list()[0].id)
    with pytest.raises(omnigraph.errors.CommitNotFound):
        small.clone(target.uri, at="01ARZ3NDEKTSV4RRFFQ69G5FAV")
    with pytest.raises(omnigraph.errors.GraphNotFound):
        omnigraph.clone(tmp_path / "nowhere", target.uri)
    assert files_of(target) == {}


def data_file(store: Store) -> Path:
    return next(path for path in sorted(Path(store.uri).glob("nodes/*/data/*.lance")))


def test_a_damaged_source_is_not_copied_as_if_it_were_whole(small, target: Store) -> None:
    file = data_file(Store(small.uri))
    content = file.read_bytes()
    file.write_bytes(content[:-1])
    with pytest.raises(StoragePermanent, match=file.name):
        cloned(Store(small.uri), target)
    file.unlink()
    with pytest.raises(StorageNotFound, match=file.name):
        cloned(Store(small.uri), target)
    assert files_of(target) == {}
    file.write_bytes(content)
    cloned(Store(small.uri), target)
    with opened(target) as graph:
        assert graph.export() == small.export()


def test_progress_is_told_in_bytes(small, target: Store) -> None:
    with hear() as heard:
        report = small.clone(target.uri)
    told = [each for each in heard.of(Progress) if each.operation == "clone"]
    done = [each.done for each in told]
    assert done == sorted(done)
    assert {(each.total, each.unit) for each in told} == {(report.bytes_copied, "bytes")}
    assert done[-1] == report.bytes_copied


def test_blobs_come_along(source: Store, target: Store, tmp_path: Path) -> None:
    make(source, tmp_path)
    cloned(source, target)
    with opened(target, read_only=True) as graph:
        assert graph.blob("Person", "p5", "photo", branch="team/own").read() == PICTURE


def test_a_read_only_handle_does_not_complete_the_commit_tables(small) -> None:
    run(small, 'insert P { k: "unflushed" }')
    before = files_of(Store(small.uri))
    with omnigraph.open_read_only(small.uri, settings=FAST) as graph:
        assert [each.operation for each in graph.commits.list()].count("mutation") == 2
        assert graph.verify().violations == ()
    assert files_of(Store(small.uri)) == before
