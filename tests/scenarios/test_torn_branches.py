"""What a power cut leaves of branches, forks, tags and commit tables: removed, made again or reported."""

import shutil
from pathlib import Path

import pytest

import omnigraph
from crash.people import SCHEMA, Model, seed
from graphs import make_graph
from omnigraph.core.errors import BranchNotFound, OmnigraphError, StoragePermanent
from omnigraph.core.events import Warned, listen
from omnigraph.core.failpoints import Callback, Raise, Window, activate
from omnigraph.recovery.verify import Rule
from recovery_graph import FAST

pytestmark = pytest.mark.crash

INSERT = "query q($n: String) { insert Person { name: $n } }"
TWO_TABLES = "query q($n: String) { insert Person { name: $n } insert Knows { from: $n, to: $n } }"
TEARS = {
    "emptied": lambda content: b"",
    "halved": lambda content: content[: len(content) // 2],
    "zeroed": lambda content: bytes(len(content)),
}
tears = pytest.mark.parametrize("tear", TEARS.values(), ids=TEARS.keys())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with make_graph(tmp_path / "graph", SCHEMA) as graph:
        seed(graph)
        graph.branches.create("other")
        graph.mutate(INSERT, {"n": "on other"}, branch="other")
    return tmp_path / "graph"


def opened(path: Path) -> omnigraph.Graph:
    return omnigraph.open(path, settings=FAST)


def people(graph: omnigraph.Graph, branch: str = "main") -> set[str]:
    return set(Model.read(graph.export(branch=branch)).people)


def states(path: Path, branch: str) -> Path:
    return path / f"__manifest/tree/{branch}/_versions"


def newest(directory: Path) -> Path:
    """The file of the newest version: numbers count down."""
    return min(directory.glob("*.manifest"))


def reference(path: Path, branch: str, table: str = "__manifest") -> Path:
    return path / table / f"_refs/branches/{branch}.json"


def tear_file(file: Path, tear) -> None:
    file.write_bytes(tear(file.read_bytes()))


def assert_others_work(path: Path) -> None:
    """Main and the other branch are read, written, merged and listed."""
    with opened(path) as graph:
        assert people(graph) >= {"ada", "bob"}
        assert "on other" in people(graph, "other")
        for branch in ("main", "other"):
            graph.mutate(TWO_TABLES, {"n": f"later on {branch}"}, branch=branch)
            assert f"later on {branch}" in people(graph, branch)
            assert len(graph.commits.list(branch=branch, merged=True)) > 2
        graph.branches.merge("other", into="main")
        assert "later on other" in people(graph)
        graph.branches.create("another")
        graph.branches.delete("another")
        assert {"main", "other"} <= {each.name for each in graph.branches.details()}
        graph.tags.create("kept")
        assert "kept" in graph.tags.list()
        graph.tags.delete("kept")


# --- a branch that was being made


def unmade(path: Path, how: str, tear) -> None:
    """A branch `b` as a creation that was cut leaves it."""
    with opened(path) as graph:
        graph.branches.create("b", from_branch="other")
    match how:
        case "torn reference":
            tear_file(reference(path, "b"), tear)
        case "torn state":
            tear_file(newest(states(path, "b")), tear)
        case "both torn":
            tear_file(reference(path, "b"), tear)
            tear_file(newest(states(path, "b")), tear)
        case "no state":
            newest(states(path, "b")).unlink()
        case "no directory":
            shutil.rmtree(path / "__manifest/tree/b")
        case "torn reference alone":
            shutil.rmtree(path / "__manifest/tree/b")
            tear_file(reference(path, "b"), tear)
        case "no reference":
            reference(path, "b").unlink()
        case "no reference, torn state":
            reference(path, "b").unlink()
            tear_file(newest(states(path, "b")), tear)


@pytest.mark.parametrize(
    ("how", "tear"),
    [
        *(("torn reference", tear) for tear in TEARS),
        *(("torn state", tear) for tear in TEARS),
        ("both torn", "emptied"),
        ("no state", None),
        ("no directory", None),
        ("torn reference alone", "emptied"),
        ("no reference", None),
        ("no reference, torn state", "halved"),
    ],
)
def test_a_branch_that_was_never_finished_is_removed(path, how, tear):
    unmade(path, how, TEARS.get(tear))
    with opened(path) as graph:
        assert graph.branches.list() == ["main", "other"]
        assert graph.verify().ok
    assert not (path / "__manifest/tree/b").exists()
    assert_others_work(path)
    with opened(path) as graph:
        graph.branches.create("b")
        graph.mutate(INSERT, {"n": "on b"}, branch="b")
        assert "on b" in people(graph, "b")
        assert graph.verify().ok


def test_a_branch_that_another_thread_is_making_is_left_alone(path):
    """Half of it looks like what a power cut leaves; the open beside it must not take it away."""
    made = []
    with opened(path) as graph:

        def open_beside(_window):
            opened(path).close()
            made.append(reference(path, "b").exists())

        with activate(Window.BRANCH_CREATE_AFTER_MANIFEST_BRANCH_CREATE, Callback(open_beside)):
            graph.branches.create("b")
        assert made == [True]
        assert graph.branches.list() == ["main", "b", "other"]


def test_the_states_of_a_nested_name_are_not_taken_with_a_leftover_above_them(path):
    with opened(path) as graph:
        graph.branches.create("b")
    shutil.copytree(path / "__manifest/tree/b", path / "__manifest/tree/team")
    with opened(path) as graph:
        graph.branches.delete("b")
    with opened(path) as graph:
        graph.branches.create("team/x")
        graph.mutate(INSERT, {"n": "nested"}, branch="team/x")
    with opened(path) as graph:
        assert "nested" in people(graph, "team/x")
        assert graph.verify().ok


# --- a branch that is damaged


def damaged(path: Path, how: str, tear) -> None:
    """A branch `b` with acknowledged writes, one of whose files was destroyed by something else."""
    with opened(path) as graph:
        graph.branches.create("b")
        for number in range(3):
            graph.mutate(TWO_TABLES, {"n": f"b{number}"}, branch="b")
    match how:
        case "reference":
            tear_file(reference(path, "b"), tear)
        case "newest state":
            tear_file(newest(states(path, "b")), tear)
        case "rows of the newest state":
            tear_file(
                max((path / "__manifest/tree/b/data").iterdir(), key=lambda f: f.stat().st_mtime_ns), tear
            )


@tears
@pytest.mark.parametrize("how", ["reference", "newest state", "rows of the newest state"])
def test_a_damaged_branch_stops_nobody_else_and_can_be_deleted(path, how, tear):
    damaged(path, how, tear)
    heard = []
    with listen(heard.append), opened(path) as graph:
        report = graph.verify()
        assert report.violations
        assert all("b" in each.where.split() for each in report.violations), report.violations
        with pytest.raises(OmnigraphError):
            graph.export(branch="b")
    assert any(isinstance(each, Warned) and "'b'" in each.message for each in heard)
    assert_others_work(path)
    with opened(path) as graph:
        assert "b" in graph.branches.list()
        graph.branches.delete("b")
        with pytest.raises(BranchNotFound):
            graph.export(branch="b")
        assert graph.verify().ok
        graph.branches.create("b")
        graph.mutate(TWO_TABLES, {"n": "anew"}, branch="b")
        assert people(graph, "b") == people(graph) | {"anew"}
        assert graph.verify().ok


def test_a_write_that_was_interrupted_on_a_damaged_branch_waits(path):
    with opened(path) as graph:
        graph.branches.create("b")
        graph.mutate(TWO_TABLES, {"n": "b0"}, branch="b")
        dying = activate(Window.MUTATION_POST_FINALIZE_PRE_PUBLISHER, Raise(OSError("here")))
        with dying, pytest.raises(OmnigraphError):
            graph.mutate(TWO_TABLES, {"n": "b1"}, branch="b")
    file = reference(path, "b")
    whole = file.read_bytes()
    file.write_bytes(b"")
    assert_others_work(path)
    with opened(path) as graph:
        assert Rule.NOTHING_PENDING in {each.rule for each in graph.verify().violations}
    file.write_bytes(whole)
    with opened(path) as graph:
        assert "b1" in people(graph, "b")
        assert graph.verify().ok


# --- the fork of a table


def dies(path: Path, window: Window, branch: str) -> Path:
    """A writer dies during its first write on a branch; returns the directory of its first table."""
    with opened(path) as graph:
        entry = graph.session.manifest.current(branch).entries["edge:Knows"]
        with activate(window, Raise(OSError("here"))), pytest.raises((OmnigraphError, OSError)):
            graph.mutate(TWO_TABLES, {"n": "unfinished"}, branch=branch)
    return path / entry.location


@pytest.mark.parametrize(
    ("how", "tear"),
    [
        *(("torn reference", tear) for tear in TEARS),
        ("torn version", "emptied"),
        ("both torn", "halved"),
        ("first version torn", "emptied"),
        ("no reference", None),
        ("no version", None),
        ("nothing", None),
    ],
)
@pytest.mark.parametrize(
    "window",
    [
        Window.MUTATION_POST_FORK_PRE_COMMIT,
        Window.MUTATION_POST_TABLE_COMMIT,
        Window.MUTATION_POST_FINALIZE_PRE_PUBLISHER,
    ],
    ids=str,
)
def test_a_fork_that_was_never_finished_is_removed(path, window, how, tear):
    with opened(path) as graph:
        graph.branches.create("b")
    table = dies(path, window, "b")
    versions = table / "tree/b/_versions"
    if how in {"torn reference", "both torn"}:
        tear_file(table / "_refs/branches/b.json", TEARS[tear])
    if how in {"torn version", "both torn"}:
        tear_file(newest(versions), TEARS[tear])
    if how == "first version torn":
        tear_file(max(versions.glob("*.manifest")), TEARS[tear])
    if how == "no reference":
        (table / "_refs/branches/b.json").unlink()
    if how == "no version":
        for file in versions.glob("*.manifest"):
            file.unlink()
    with opened(path) as graph:
        report = graph.verify()
        assert report.ok, report.violations
        assert people(graph, "b") == {"ada", "bob"} or (
            how == "nothing" and "unfinished" in people(graph, "b")
        )
        assert len(graph.recoveries()) == 1
        graph.mutate(TWO_TABLES, {"n": "afterwards"}, branch="b")
        assert "afterwards" in people(graph, "b")
        assert graph.verify().ok
    assert_others_work(path)


@pytest.mark.parametrize("lost", ["missing", *TEARS])
def test_recovery_never_takes_rows_that_a_branch_shows(path, lost):
    """The reference of a fork is lost, and a writer to that table died: its rows stay, and it is mended."""
    with opened(path) as graph:
        graph.branches.create("b")
        for number in range(5):
            graph.mutate(TWO_TABLES, {"n": f"b{number}"}, branch="b")
        graph.branches.create("c", from_branch="b")
        graph.mutate(TWO_TABLES, {"n": "on c"}, branch="c")
    table = dies(path, Window.MUTATION_POST_TABLE_COMMIT, "b")
    dies(path, Window.MUTATION_POST_TABLE_COMMIT, "c")
    for branch in ("b", "c"):
        file = table / f"_refs/branches/{branch}.json"
        file.unlink() if lost == "missing" else tear_file(file, TEARS[lost])
    with opened(path) as graph:
        assert people(graph, "b") >= {f"b{number}" for number in range(5)}
        assert people(graph, "c") >= {"b0", "on c"}
        report = graph.verify()
        assert report.ok, report.violations
        for branch in ("b", "c"):
            graph.mutate(TWO_TABLES, {"n": f"after on {branch}"}, branch=branch)
        graph.branches.create("child", from_branch="c")
        graph.mutate(TWO_TABLES, {"n": "grandchild"}, branch="child")
        assert graph.verify().ok


def test_a_lost_reference_of_a_shown_fork_is_reported(path):
    with opened(path) as graph:
        location = graph.session.manifest.current("other").entries["node:Person"].location
    (path / location / "_refs/branches/other.json").unlink()
    with opened(path) as graph:
        (found,) = graph.verify().violations
        assert (found.rule, found.where) == (Rule.PIN_IDENTITY, "node:Person on other")
        assert "on other" in people(graph, "other")


def test_a_first_write_clears_a_directory_that_a_dead_deletion_left(path):
    """Its versions may have other numbers than the new fork: they must never be taken for the fork's own."""
    with opened(path) as graph:
        graph.branches.create("b")
        for number in range(4):
            graph.mutate(INSERT, {"n": f"old{number}"}, branch="b")
        location = graph.session.manifest.current("b").entries["node:Person"].location
        kept = path.with_name("tree")
        shutil.copytree(path / location / "tree/b", kept)
        graph.branches.delete("b")
    shutil.copytree(kept, path / location / "tree/b")
    with opened(path) as graph:
        graph.branches.create("b")
        graph.mutate(INSERT, {"n": "new"}, branch="b")
        assert people(graph, "b") == {"ada", "bob", "new"}
        assert graph.verify().ok


# --- tags


@tears
def test_a_torn_tag_is_removed_and_its_name_is_free(path, tear):
    with opened(path) as graph:
        graph.tags.create("t")
        graph.tags.create("whole")
        tear_file(path / "__manifest/_refs/tags/t.json", tear)
        assert list(graph.tags.list()) == ["whole"]
        graph.tags.create("t", at="other")
        tear_file(path / "__manifest/_refs/tags/t.json", tear)
    with omnigraph.open_read_only(path, settings=FAST) as reader:
        assert list(reader.tags.list()) == ["whole"]
    with opened(path) as graph:
        assert graph.verify().ok
    assert not (path / "__manifest/_refs/tags/t.json").exists()
    assert_others_work(path)


# --- the commit tables


@tears
@pytest.mark.parametrize(
    "table", ["_graph_commits.lance", "_graph_commit_actors.lance", "_graph_commit_recoveries.lance"]
)
def test_a_commit_table_without_a_whole_version_is_made_again(path, table, tear):
    dies(path, Window.MUTATION_POST_FINALIZE_PRE_PUBLISHER, "other")
    with opened(path) as graph:
        graph.mutate(INSERT, {"n": "by ana"}, actor="ana")
        before = graph.commits.list(merged=True)
        assert len(graph.recoveries()) == 1
    first = max((path / table / "_versions").glob("*.manifest"))
    for file in (path / table / "_versions").glob("*.manifest"):
        if file != first:
            file.unlink()
    tear_file(first, tear)
    with omnigraph.open_read_only(path, settings=FAST) as reader:
        assert reader.commits.list(merged=True) == before
        reader.recoveries()
        reader.verify()
    with opened(path) as graph:
        assert graph.commits.list(merged=True) == before
        assert [each.actor for each in graph.commits.list(actor="ana")] == ["ana"]
        graph.recoveries()
        report = graph.verify()
        assert report.ok, report.violations
    dies(path, Window.MUTATION_POST_FINALIZE_PRE_PUBLISHER, "other")
    with opened(path) as graph:
        assert graph.recoveries()
    assert_others_work(path)


# --- a graph that was being made


@tears
@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_creation_that_was_cut_can_be_repeated(tmp_path, version, tear):
    path = tmp_path / "graph"
    omnigraph.init(path, schema=SCHEMA, settings=FAST).close()
    files = sorted((path / "__manifest/_versions").glob("*.manifest"), reverse=True)
    assert len(files) == 3
    for file in files[version:]:
        file.unlink()
    tear_file(files[version - 1], tear)
    shutil.rmtree(path / "_graph_commits.lance")
    with pytest.raises(OmnigraphError):
        omnigraph.open_read_only(path, settings=FAST)
    with omnigraph.init(path, schema=SCHEMA, force=True, settings=FAST) as graph:
        seed(graph)
        assert people(graph) == {"ada", "bob"}
        assert graph.verify().ok


def test_a_published_state_of_main_that_is_torn_is_named(path):
    file = newest(path / "__manifest/_versions")
    file.write_bytes(b"")
    with pytest.raises(StoragePermanent, match=file.name):
        opened(path)
    with pytest.raises(OmnigraphError):
        omnigraph.init(path, schema=SCHEMA, force=True, settings=FAST)
    assert file.exists()
