"""A file that does not hold what was written is found, and named with all that helps to mend it."""

from contextlib import suppress
from pathlib import Path

import lance
import pytest

import omnigraph
from graphs import FAST, make_graph, run
from omnigraph.core.errors import Corrupt
from omnigraph.core.failpoints import Raise, Window, activate
from omnigraph.manifest.recoveries import RecoveryKind
from omnigraph.recovery.file_checks import FileChecks
from omnigraph.recovery.verify import Rule
from omnigraph.storage.checksums import PROPERTY, FileRecord, record_of
from omnigraph.storage.manifest_files import manifest_object, transaction_properties


def flip(path: Path, at: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << bit
    path.write_bytes(bytes(data))


@pytest.fixture
def graph(tmp_path):
    with make_graph(tmp_path / "kb.omni") as made:
        run(made, 'insert Person { name: "ada", age: 36 } insert Person { name: "bob", age: 41 }')
        run(made, 'insert Knows { from: "ada", to: "bob" }')
        yield made


def files(graph, pattern: str) -> set[Path]:
    return set(Path(graph.uri).glob(pattern))


def damaged(graph) -> list[str]:
    return [each.file for each in FileChecks(graph.session.recovery).all_files().damaged]


def newest_record(graph, branch=None) -> FileRecord:
    version = graph.snapshot(branch=branch).manifest_version
    name = manifest_object("__manifest", branch, version)
    properties = transaction_properties((Path(graph.uri) / name).read_bytes())
    assert properties is not None
    return record_of(properties[PROPERTY])


def everything(graph) -> set[str]:
    return {str(path.relative_to(graph.uri)) for path in files(graph, "**/*") if path.is_file()}


def is_kept_without_sum(name: str) -> bool:
    """Copies of what other files hold, hints, and what is made again from the manifest."""
    copies = name.endswith((".txn", "latest_version_hint.json")) or "/_refs/" in name
    return copies or name.startswith(("_graph_", "__cache/"))


@pytest.mark.parametrize("branch", [None, "feat"])
def test_every_file_that_a_write_makes_has_its_sum(graph, branch):
    if branch:
        graph.branches.create(branch)
    before = everything(graph)
    statements = 'insert Person { name: "cat" } update Person set { age: 9 } where name = "ada"'
    run(graph, statements, **({"branch": branch} if branch else {}))
    record = newest_record(graph, branch)
    assert record.commit == graph.snapshot(branch=branch).head
    made = {name for name in everything(graph) - before if not is_kept_without_sum(name)}
    newest = manifest_object("__manifest", branch, graph.snapshot(branch=branch).manifest_version)
    assert {each.name for each in record.files} == made - {newest}
    assert manifest_object("__manifest", branch, graph.snapshot(branch=branch).manifest_version - 1) in {
        each.name for each in record.before
    }
    report = graph.verify(deep=True)
    assert report.ok
    assert report.commits_without_checksums == 0


@pytest.mark.parametrize(
    "pattern",
    [
        "nodes/*/data/*.lance",
        "edges/*/data/*.lance",
        "nodes/*/_versions/*.manifest",
        "nodes/*/_indices/*/*",
        "__manifest/data/*.lance",
        "__manifest/_versions/*.manifest",
    ],
)
def test_a_flipped_bit_is_found_wherever_it_is(graph, pattern):
    # The first version of a manifest shows nothing; the newest one is judged by the rows it shows.
    oldest, *_, newest = sorted(files(graph, "__manifest/_versions/*.manifest"), reverse=True)
    for path in files(graph, pattern) - {oldest, newest}:
        whole = path.read_bytes()
        flip(path, len(whole) // 3)
        assert str(path.relative_to(graph.uri)) in damaged(graph)
        path.write_bytes(whole)
    assert damaged(graph) == []


@pytest.mark.slow
def test_the_finding_names_commit_branches_and_the_state_without_the_file(graph):
    graph.branches.create("older")
    before, known = graph.snapshot().head, files(graph, "nodes/*/data/*.lance")
    run(graph, 'insert Person { name: "cat", age: 7 }')
    made = graph.snapshot().head
    graph.branches.create("newer")
    (path,) = files(graph, "nodes/*/data/*.lance") - known
    flip(path, 20)
    report = graph.verify(deep=True)
    (found,) = report.corrupt
    assert isinstance(found, Corrupt)
    assert found.file == str(path.relative_to(graph.uri))
    assert (found.commit, found.branches, found.restore_from) == (made, ("main", "newer"), before)
    assert found.to_dict()["corrupt"]["branches"] == ["main", "newer"]
    assert Rule.FILES_WHOLE in {each.rule for each in report.violations}


def test_a_file_that_is_gone_is_found_while_a_branch_shows_it(graph):
    known = files(graph, "nodes/*/data/*.lance")
    run(graph, 'insert Person { name: "cat", age: 7 }')
    (path,) = files(graph, "nodes/*/data/*.lance") - known
    path.unlink()
    assert damaged(graph) == [str(path.relative_to(graph.uri))]


def test_the_quick_verification_compares_the_newest_commit(graph):
    known = files(graph, "nodes/*/data/*.lance")
    run(graph, 'insert Person { name: "cat", age: 7 }')
    (path,) = files(graph, "nodes/*/data/*.lance") - known
    flip(path, 20)
    assert [each.file for each in graph.verify().corrupt] == [str(path.relative_to(graph.uri))]


def all_sums(graph) -> set[str]:
    """The names of the files that any commit of main keeps a sum of."""
    kept: set[str] = set()
    for path in files(graph, "__manifest/_versions/*.manifest"):
        text = (transaction_properties(path.read_bytes()) or {}).get(PROPERTY)
        kept |= {each.name for each in record_of(text).files} if text else set()
    return kept


def of_tables(names: set[str]) -> set[str]:
    return {name for name in names if name.startswith(("nodes/", "edges/")) and not is_kept_without_sum(name)}


def test_what_a_repair_publishes_has_its_sums(graph):
    run(graph, 'insert Person { name: "cat", age: 7 }')
    known = everything(graph)
    entry = graph.snapshot().entries["node:Person"]
    lance.dataset(f"{graph.uri}/{entry.location}").optimize.compact_files()
    made = of_tables(everything(graph) - known)
    assert {Path(name).suffix for name in made} >= {".lance", ".manifest"}
    graph.repair(confirm=True, force=True)
    assert made <= all_sums(graph)
    assert graph.verify(deep=True).ok


@pytest.mark.slow
@pytest.mark.parametrize(
    ("window", "write"),
    [
        (Window.ENSURE_INDICES_POST_PHASE_B_PRE_MANIFEST_COMMIT, lambda graph: graph.ensure_indices()),
        (Window.OPTIMIZE_POST_PHASE_B_PRE_MANIFEST_COMMIT, lambda graph: graph.optimize()),
        (
            Window.MUTATION_POST_FINALIZE_PRE_PUBLISHER,
            lambda graph: run(graph, 'update Person set { age: 1 } where name = "ada"'),
        ),
        (
            Window.SCHEMA_APPLY_AFTER_STAGING_WRITE,
            lambda graph: graph.apply_schema(f"{graph.schema_source()}\nnode Extra {{ k: String @key }}\n"),
        ),
    ],
    ids=["indexes", "optimize", "mutation", "schema"],
)
def test_what_recovery_publishes_has_its_sums(graph, window, write):
    run(graph, 'insert Person { name: "cat", age: 7 }')
    known = everything(graph)
    with activate(window, Raise(OSError("the machine stopped"))), suppress(Exception):
        write(graph)
    with omnigraph.open(graph.uri, settings=FAST) as again:
        assert [each.recovery_kind for each in again.recoveries()] == [RecoveryKind.ROLLED_FORWARD]
        made = of_tables(everything(again) - known)
        assert made
        assert made <= all_sums(again)
        assert again.verify(deep=True).ok
