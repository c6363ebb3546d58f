"""Loads into a branch that does not exist yet: it is there when the load is, and never before."""

import json
from pathlib import Path

import pytest

from crash.harness import CUT, run_script
from graphs import rows_of, unchanged
from omnigraph.api.graph import Graph
from omnigraph.core.errors import (
    BadRequest,
    BranchPrefixClash,
    Cancelled,
    ConstraintViolation,
    IoFailure,
    KeyConflict,
    LoadFormatError,
    PreconditionFailed,
)
from omnigraph.core.failpoints import Callback, Raise, Window, activate


def person(name: str, **data) -> dict:
    return {"type": "Person", "data": {"name": name, **data}}


def knows(source: str, target: str) -> dict:
    return {"edge": "Knows", "from": source, "to": target, "data": {}}


@pytest.mark.slow
def test_a_refused_load_makes_no_branch(graph: Graph, load) -> None:
    load(person("ann"))
    wrong = [
        {"rows": [person("bob", age="old")], "error": LoadFormatError},
        {"rows": [person("ann")], "error": KeyConflict},
        {"rows": [knows("ann", "nobody")], "error": ConstraintViolation},
    ]
    for case in wrong:
        with unchanged(graph), pytest.raises(case["error"]):
            load(*case["rows"], branch="review", base="main")
        assert graph.branches.list() == ["main"]
    with pytest.raises(PreconditionFailed):
        load(person("bob"), branch="review", base="main", if_commit="0" * 26)
    assert graph.branches.list() == ["main"]
    assert load(person("bob"), branch="review", base="main").branch_created


def test_a_bad_name_of_a_branch_is_refused_before_any_work(graph: Graph, load) -> None:
    graph.branches.create("a/b")
    with activate(Window.LOAD_POST_STAGE, Raise(AssertionError("staged"))):
        for name, error in (("x y", BadRequest), ("a", BranchPrefixClash), ("a/b/c", BranchPrefixClash)):
            with pytest.raises(error):
                load(person("ann"), branch=name, base="main")


@pytest.mark.slow
def test_a_new_branch_shows_its_base_as_it_was_when_the_load_began(graph: Graph, load) -> None:
    """A base that others write to all the time does not hold up the load."""
    load(person("ann"))

    def write(_: Window) -> None:
        graph.mutate('query q() { insert Person { name: "late" } }')

    with activate(Window.LOAD_POST_VERIFY, Callback(write)):
        report = load(person("bob"), mode="overwrite", branch="review", base="main")
    assert report.branch_created
    assert set(rows_of(graph, "Person", branch="review")) == {"bob"}
    assert set(rows_of(graph, "Person")) == {"ann", "late"}
    assert graph.verify().violations == ()


def test_a_branch_that_another_writer_makes_meanwhile_is_loaded_into(graph: Graph, load) -> None:
    load(person("ann"))

    def write(_: Window) -> None:
        if "review" not in graph.branches.list():
            graph.branches.create("review")
            graph.mutate('query q() { insert Person { name: "bob" } }', branch="review")

    with activate(Window.LOAD_POST_VERIFY, Callback(write)):
        report = load(person("cat"), branch="review", base="main")
    assert not report.branch_created
    assert set(rows_of(graph, "Person", branch="review")) == {"ann", "bob", "cat"}
    with activate(Window.LOAD_POST_VERIFY, Callback(write)), pytest.raises(KeyConflict):
        load(person("bob"), branch="review", base="main")
    assert set(rows_of(graph, "Person", branch="review")) == {"ann", "bob", "cat"}


@pytest.mark.slow
def test_a_branch_whose_load_fails_at_its_commit_is_taken_back_unless_it_is_used(graph: Graph, load) -> None:
    load(person("ann"))
    failing = Raise(Cancelled("no"))
    with activate(Window.MUTATION_POST_STAGE_PRE_QUEUE, failing), pytest.raises(Cancelled):
        load(person("bob"), branch="review", base="main")
    assert graph.branches.list() == ["main"]

    def use(_: Window) -> None:
        graph.branches.create("child", from_branch="review")
        raise Cancelled("no")

    with activate(Window.MUTATION_POST_STAGE_PRE_QUEUE, Callback(use)), pytest.raises(Cancelled):
        load(person("bob"), branch="review", base="main")
    assert graph.branches.list() == ["main", "child", "review"]
    assert graph.verify().violations == ()


def test_a_load_that_is_resumed_makes_the_branch_then(graph: Graph, load, engine: str) -> None:
    load(person("ann"))
    failure = IoFailure("the disk is away")
    with activate(Window.LOAD_POST_STAGE, Raise(failure)), pytest.raises(IoFailure):
        load(person("bob"), branch="review", base="main")
    assert graph.branches.list() == ["main"]
    report = graph.load(resume=failure.details["load_id"], engine=engine)
    assert (report.branch_created, report.splits_reused) == (True, 1)
    assert set(rows_of(graph, "Person", branch="review")) == {"ann", "bob"}


def test_a_load_without_records_makes_its_branch(graph: Graph, load) -> None:
    report = load(branch="review", base="main")
    assert (report.branch_created, report.commit) == (True, None)
    assert graph.branches.list() == ["main", "review"]


LOADER = """
import sys, omnigraph
from omnigraph.core.settings import Settings
path, source = sys.argv[1:]
with omnigraph.open(path, settings=Settings(durability="os")) as graph:
    graph.load(source, mode="append", engine="local", branch="review", base="main")
"""
DEATHS = {
    Window.LOAD_POST_VERIFY: ["main"],
    Window.BRANCH_CREATE_AFTER_MANIFEST_BRANCH_CREATE: ["main", "review"],
    Window.MUTATION_POST_STAGE_PRE_QUEUE: ["main", "review"],
}
"""Which branches there are when the process dies, up to the last moment before Phase A."""


@pytest.mark.crash
@pytest.mark.parametrize("again", ["resume", "load"])
@pytest.mark.parametrize("window", DEATHS, ids=str)
def test_a_load_that_dies_around_the_making_of_its_branch_can_be_done(
    graph: Graph, tmp_path: Path, window: Window, again: str
) -> None:
    graph.load_frames({"Person": [{"name": "ann"}]}, mode="append", engine="local")
    source = tmp_path / "input.jsonl"
    source.write_text(json.dumps(person("bob")) + "\n")
    status, errors = run_script(
        LOADER, graph.uri, source, failpoints=f"{window.value}=kill", durability="full"
    )
    assert status == CUT, (status, errors)
    assert graph.branches.list() == DEATHS[window]
    for branch in DEATHS[window]:
        assert set(rows_of(graph, "Person", branch=branch)) == {"ann"}
    assert graph.verify().violations == ()
    if again == "resume":
        (waiting,) = graph.resumable_loads()
        graph.load(resume=waiting.id, engine="local")
    else:
        graph.load(source, mode="append", engine="local", branch="review", base="main")
    assert set(rows_of(graph, "Person", branch="review")) == {"ann", "bob"}
    assert set(rows_of(graph, "Person")) == {"ann"}
    assert graph.verify().violations == ()
