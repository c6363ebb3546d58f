"""An erased entity is in no file of the graph, and everything else is as it was."""

import json
from pathlib import Path

import pytest

import omnigraph
from forgetting import SUBJECT, VALUES, add_subject, downloaded, found, spread
from graphs import FAST, make_graph, run
from omnigraph.core import limits
from omnigraph.core.errors import (
    ConstraintViolation,
    EntityNotFound,
    ResourceBusy,
    SubjectTagged,
    TypeNotFound,
    VersionReclaimed,
)
from omnigraph.core.failpoints import Callback, InjectedFailure, Raise, Sequence, Window, activate
from omnigraph.core.settings import Settings
from omnigraph.engine.tables.cache_files import CacheFiles
from omnigraph.engine.tables.cache_work import BACKGROUND
from omnigraph.engine.write.parts import StagedPart
from omnigraph.maintenance import erase, erase_rewrite
from omnigraph.maintenance.cleanup_plan import CleanupPlan
from omnigraph.maintenance.pins import Pin, PinnedState
from omnigraph.storage.indexes import stage_indexes
from omnigraph.storage.tables import TableStorage
from stores import TABLE_STORES, Store, StoreCase
from travelling import SCHEMA, goes_on, make

pytestmark = pytest.mark.slow

SEARCHED = Settings(durability="os", vector_probes=2)


def opened(store: Store, settings: Settings = SEARCHED) -> omnigraph.Graph:
    return omnigraph.open(store.uri, settings=settings, storage_options=store.storage_options)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store(str(tmp_path / "g"))
    with omnigraph.init(made.uri, schema=SCHEMA, settings=SEARCHED) as graph:
        run(graph, 'insert Person { handle: "p2", bio: "maps" } insert Person { handle: "p4" }')
        run(graph, 'insert City { name: "c1" }')
        add_subject(graph)
    return made


def rows(graph, branch) -> set[str]:
    """The lines of a branch that do not tell of the subject."""
    lines = graph.export(branch=branch).splitlines()
    return {line for line in lines if SUBJECT not in line}


def erased_everywhere(top: Path) -> bool:
    return found(top) == {}


@pytest.mark.parametrize("case", TABLE_STORES, ids=str)
def test_after_an_erasure_no_file_holds_a_value_of_it(case: StoreCase, tmp_path: Path) -> None:
    store = case.make(tmp_path)
    make(store, tmp_path)
    with opened(store) as graph:
        spread(graph)
        before = found(downloaded(store, tmp_path / "before"))
        assert set().union(*before.values()) == set(VALUES)
        for part in ("/data/", "/_indices/"):
            assert [name for name in before if part in name]
        kept = {branch: rows(graph, branch) for branch in graph.branches.list()}
        receipt = graph.erase("Person", SUBJECT, tags=True)
        assert receipt.complete
        assert receipt.left == ()
        assert {branch: rows(graph, branch) for branch in kept} == kept
        assert all(SUBJECT not in graph.export(branch=branch) for branch in graph.branches.list())
        assert graph.verify(deep=True).violations == ()
    assert erased_everywhere(downloaded(store, tmp_path / "after"))
    with opened(store) as graph:
        goes_on(graph)
        for branch in ("inherits", "other", "deleted"):
            graph.branches.merge(branch, on_conflict="theirs")
        assert graph.verify(deep=True).violations == ()
        assert SUBJECT not in graph.export()


MISSES = {
    "older states": (erase.Erasure, "_reclaim", lambda self, done: CleanupPlan()),
    "rewritten files": (
        erase_rewrite,
        "stage_compaction",
        lambda s, h, g, stamp, index, b, dropped: _only(index, h),
    ),
    "indexes": (erase_rewrite, "_plans", lambda session, type_, handle: ()),
    "caches": (CacheFiles, "clear", lambda self: []),
}


def _only(index, handle):
    return (StagedPart(index(handle)),)


def _keeping_indexes(self, handle, plans, stamp, *, rebuild=False, segments_max=None):
    return stage_indexes(self._pool, handle, plans, stamp, segments_max=segments_max)


@pytest.mark.parametrize("miss", MISSES)
def test_the_search_finds_what_a_careless_erasure_leaves(
    store: Store, monkeypatch: pytest.MonkeyPatch, miss: str
) -> None:
    monkeypatch.setattr(limits, "CACHED_ROWS_MIN", 1)
    with opened(store) as graph:
        graph.entity("Person", SUBJECT)
        BACKGROUND.drain(graph.session.root.identity)
    assert any(name.startswith("__cache/") for name in found(Path(store.uri)))
    with opened(store) as graph, monkeypatch.context() as careless:
        careless.setattr(*MISSES[miss])
        if miss == "indexes":
            careless.setattr(TableStorage, "stage_indexes", _keeping_indexes)
        receipt = graph.erase("Person", SUBJECT)
    left = found(Path(store.uri))
    assert left
    match miss:
        case "caches":
            assert all(name.startswith("__cache/") for name in left)
        case "indexes":
            assert all("/_indices/" in name for name in left)
        case _:
            assert any("/data/" in name for name in left)
            assert not receipt.complete
    with opened(store) as graph:
        if miss in {"caches", "indexes"}:
            with pytest.raises(EntityNotFound):
                graph.erase("Person", SUBJECT)
        else:
            assert graph.erase("Person", SUBJECT).complete
    assert miss == "indexes" or erased_everywhere(Path(store.uri))


# --- what is asked wrongly, or while something is in the way -------------------------------------------------


def test_a_dry_run_says_what_would_go_and_changes_nothing(store: Store) -> None:
    with opened(store) as graph:
        graph.branches.create("review")
        before = store.adapter().stored()
        receipt = graph.erase("Person", SUBJECT, dry_run=True)
        assert [(each.branch, each.rows, each.edges) for each in receipt.branches] == [
            ("main", 1, 3),
            ("review", 1, 3),
        ]
        assert receipt.states_removed > 0
        assert not receipt.complete
        assert {n for n in before if not n.startswith("__l")} == {
            n for n in store.adapter().stored() if not n.startswith("__l")
        }
    with omnigraph.open_read_only(store.uri, settings=FAST) as graph:
        assert graph.erase("Person", SUBJECT, dry_run=True).files_held == receipt.files_held


def test_a_subject_that_no_file_holds_is_not_found_and_history_stays(store: Store) -> None:
    with opened(store) as graph:
        first = graph.commits.list()[-1].id
        with pytest.raises(EntityNotFound) as missing:
            graph.erase("Person", "nobody")
        assert "nobody" in missing.value.message
        with pytest.raises(TypeNotFound):
            graph.erase("Persn", SUBJECT)
        assert graph.export(at=first) == ""
        assert graph.verify().ok


def test_a_deleted_subject_is_erased_from_history(store: Store) -> None:
    with opened(store) as graph:
        old = graph.commits.head().id
        run(graph, f'delete Person where handle = "{SUBJECT}"')
        receipt = graph.erase("Person", SUBJECT)
        assert receipt.complete
        assert receipt.branches[0].rows == 0
        with pytest.raises(VersionReclaimed):
            graph.export(at=old)
    assert erased_everywhere(Path(store.uri))


def test_a_tag_goes_only_by_consent(store: Store) -> None:
    with opened(store) as graph:
        graph.tags.create("v1")
        with pytest.raises(SubjectTagged) as refused:
            graph.erase("Person", SUBJECT)
        assert refused.value.tags == ("v1",)
        assert SUBJECT in graph.export(at="v1")
        receipt = graph.erase("Person", SUBJECT, tags=True)
        assert receipt.tags_removed == ("v1",)
        assert graph.tags.list() == {}
    assert erased_everywhere(Path(store.uri))


def test_an_edge_is_erased_alone(store: Store) -> None:
    with opened(store) as graph:
        edges = map(json.loads, graph.export(types=["LivesIn"]).splitlines())
        (edge,) = (each["data"]["id"] for each in edges if each["from"] == SUBJECT)
        receipt = graph.erase("LivesIn", edge)
        assert receipt.complete
        assert (receipt.branches[0].rows, receipt.branches[0].edges) == (1, 0)
        assert SUBJECT in graph.export(types=["Person"])
        assert edge not in graph.export(types=["LivesIn"])
        assert graph.verify(deep=True).ok
    held = [
        each for each in Path(store.uri).rglob("*") if each.is_file() and edge.encode() in each.read_bytes()
    ]
    assert held == []


@pytest.mark.parametrize("again", [False, True], ids=["then only", "then and now"])
def test_a_subject_of_a_type_that_was_dropped_and_came_back(tmp_path: Path, *, again: bool) -> None:
    rest = "node City { name: String @key }"
    schema = f"node Person {{ handle: String @key  nick: String? }}\n{rest}\nedge LivesIn: Person -> City"
    with make_graph(tmp_path / "g", schema) as graph:
        run(
            graph,
            f'insert Person {{ handle: "{SUBJECT}", nick: "zqxnick" }} insert City {{ name: "c" }}'
            f' insert LivesIn {{ from: "{SUBJECT}", to: "c" }}',
        )
        for text in (rest, schema):
            graph.apply_schema(text)
        if again:
            run(graph, f'insert Person {{ handle: "{SUBJECT}" }}')
        receipt = graph.erase("Person", SUBJECT)
        assert receipt.complete
        assert receipt.branches[0].rows == int(again)
        assert '"c"' in graph.export()
        assert graph.verify(deep=True).ok
        with pytest.raises(EntityNotFound):
            graph.erase("Person", SUBJECT)
    assert erased_everywhere(tmp_path / "g")


def test_an_edge_whose_type_was_dropped_is_forgotten_with_its_end(tmp_path: Path) -> None:
    rest = "node Person { handle: String @key }\nnode City { name: String @key }"
    with omnigraph.init(
        tmp_path / "g", schema=f"{rest}\nedge LivesIn: Person -> City", settings=FAST
    ) as graph:
        run(
            graph,
            f'insert Person {{ handle: "{SUBJECT}" }} insert City {{ name: "c" }}'
            f' insert LivesIn {{ from: "{SUBJECT}", to: "c" }}',
        )
        graph.apply_schema(rest)
        assert graph.erase("Person", SUBJECT).complete
    assert erased_everywhere(tmp_path / "g")


def test_an_edge_that_must_stay_refuses_the_erasure_of_its_end(tmp_path: Path) -> None:
    schema = "node P { k: String @key }\nnode Q { k: String @key }\nedge Has: P -> Q @card(1..)"
    with make_graph(tmp_path / "g", schema) as graph:
        run(graph, 'insert P { k: "p" } insert Q { k: "q" } insert Has { from: "p", to: "q" }')
        with pytest.raises(ConstraintViolation):
            graph.erase("Q", "q")
        assert '"q"' in graph.export(types=["Q"])
        assert graph.erase("P", "p").complete
        assert graph.erase("Q", "q").complete


def test_a_clone_under_way_is_waited_for(store: Store) -> None:
    with opened(store) as graph:
        head = graph.session.manifest.current(None)
        pin = Pin(
            graph.session, "clone", [PinnedState(None, head.manifest_version, head.head)], history=False
        )
        pin.renew()
        with pytest.raises(ResourceBusy):
            graph.erase("Person", SUBJECT)
        pin.release()
        assert graph.erase("Person", SUBJECT).complete


def test_whoever_writes_the_subject_meanwhile_is_followed(store: Store) -> None:
    """A write between the last look at a branch and the removal of files is erased as well."""
    with opened(store) as graph, opened(store) as other:

        def write(_window: Window) -> None:
            run(other, f'insert Person {{ handle: "{SUBJECT}", nick: "zqxnick" }}')
            other.branches.create("late")

        meanwhile = Sequence([Callback(write)])
        with activate(Window.ERASE_PRE_RECLAIM, meanwhile):
            receipt = graph.erase("Person", SUBJECT)
        assert receipt.complete
        assert [(each.branch, each.rows) for each in receipt.branches[:2]] == [("main", 2), ("late", 1)]
        assert graph.verify(deep=True).ok
    assert erased_everywhere(Path(store.uri))


def test_a_tag_made_meanwhile_keeps_its_state_and_the_receipt_says_so(store: Store) -> None:
    with opened(store) as graph:
        old = graph.commits.head().id

        def tag(_window: Window) -> None:
            if "late" not in graph.tags.list():
                graph.tags.create("late", at=old)

        with activate(Window.ERASE_PRE_RECLAIM, Callback(tag)):
            receipt = graph.erase("Person", SUBJECT)
        assert not receipt.complete
        assert {why for _, why in receipt.left} == {"tag late"}
        assert SUBJECT in graph.export(at="late")
        with pytest.raises(SubjectTagged):
            graph.erase("Person", SUBJECT)
        assert graph.erase("Person", SUBJECT, tags=True).complete
    assert erased_everywhere(Path(store.uri))


def test_files_of_a_write_that_never_ended_are_left_and_said(store: Store) -> None:
    with opened(store) as graph:
        with activate(Window.MUTATION_POST_STAGE_PRE_QUEUE, Raise()), pytest.raises(InjectedFailure):
            run(graph, f'insert Person {{ handle: "{SUBJECT}" }}')
        receipt = graph.erase("Person", SUBJECT)
        assert [why for _, why in receipt.left] == ["younger than 24 h"]
    with opened(store, Settings(durability="os", leftover_seconds=0)) as graph:
        assert graph.erase("Person", SUBJECT).complete
    assert erased_everywhere(Path(store.uri))


def test_erasing_twice_keeps_branches_mergeable(store: Store) -> None:
    with opened(store) as graph:
        graph.branches.create("review")
        run(graph, 'insert City { name: "r" }', branch="review")
        run(graph, 'insert City { name: "m" }')
        assert graph.erase("Person", SUBJECT).complete
        assert graph.erase("Person", "p4").complete
        stand_ins = [each for each in graph.branches.list() if each.startswith("erased-")]
        assert len(stand_ins) == 1
        graph.branches.merge("review")
        assert {each for each in ("r", "m") if f'"{each}"' in graph.export(types=["City"])} == {"r", "m"}
        assert "p4" not in graph.export()
        graph.branches.delete("review")
        graph.branches.delete(stand_ins[0])
        assert graph.verify(deep=True).ok
