"""The engine asks the policy of its handle: what no route asked about cannot be written either."""

import inspect
import io
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import cedarpy
import pytest

import omnigraph
from graphs import FAST
from omnigraph.api.branches import Branches, Commits
from omnigraph.api.graph import Graph
from omnigraph.api.history import Feed, Tags
from omnigraph.core.errors import (
    ActorRequired,
    BadRequest,
    Forbidden,
    OmnigraphError,
    PolicyEvaluationFailed,
)
from omnigraph.core.permission import Action, Decision, Question
from omnigraph.policy.bundle import InvalidBundle, parse_bundle
from omnigraph.policy.decisions import BundlePolicy
from omnigraph.server import app
from omnigraph.server.routes import GRAPH_ROUTES, Lane
from server.conftest import Serve
from server.test_roles import rows

POLICY = """\
version: 1
groups: { crew: [ines, tomas], masters: [tomas], idle: [nobody] }
protected_branches: [main]
rules:
  - { id: reads, allow: { actors: { group: crew }, actions: [read], branch_scope: any } }
  - { id: topics, allow: { actors: { group: crew }, actions: [change], branch_scope: unprotected } }
  - { id: own, allow: { actors: { group: masters }, actions: [change, export], branch_scope: protected } }
  - id: steer
    allow:
      actors: { group: masters }
      actions: [branch_create, branch_delete, branch_merge, schema_apply]
      target_branch_scope: any
  - { id: keep, allow: { actors: { group: masters }, actions: [admin] } }
"""
INSERT = 'query q() { insert Port { code: "OPO", name: "Porto" } }'
LINE = b'{"type":"Port","data":{"code":"OPO","name":"Porto"}}\n'

READS = {
    Graph: "at blame blob catalog clone diff entity explain export export_chunks export_to frames indexes"
    " pending plan_schema query recoveries resumable_loads schema_source snapshot stats verify close",
    Branches: "details list preview",
    Commits: "head list show",
    Tags: "list",
    Feed: "baseline baseline_lines changes poll start",
}
UNASKED = {(Graph, "refresh")}
"""It settles what dead writers left, as opening does, and belongs to nobody."""


def writers(graph: Graph) -> dict[tuple[type, str], Callable[..., Any]]:
    """Every method that writes; called with an actor."""

    def records() -> io.BytesIO:
        return io.BytesIO(b"not a record\n")

    return {
        (Graph, "mutate"): lambda **who: graph.mutate("not a query", **who),
        (Graph, "mutate_many"): lambda **who: graph.mutate_many(INSERT, [{}], **who),
        (Graph, "load"): lambda **who: graph.load(records(), mode="append", engine="local", **who),
        (Graph, "load_frames"): lambda **who: graph.load_frames(
            {"Port": [{"code": "OPO", "name": "Porto"}]}, mode="append", engine="local", **who
        ),
        (Graph, "embed"): lambda **who: graph.embed("Ship.name", engine="local", **who),
        (Graph, "apply_schema"): lambda **who: graph.apply_schema(b"not a schema", **who),
        (Graph, "revert"): lambda **who: graph.revert("no such commit", **who),
        (Graph, "optimize"): graph.optimize,
        (Graph, "ensure_indices"): graph.ensure_indices,
        (Graph, "repair"): lambda **who: graph.repair(confirm=True, **who),
        (Graph, "cleanup"): lambda **who: graph.cleanup(keep=1, older_than=timedelta(0), **who),
        (Graph, "erase"): lambda **who: graph.erase("Ship", "S1", **who),
        (Branches, "create"): lambda **who: graph.branches.create("new", **who),
        (Branches, "delete"): lambda **who: graph.branches.delete("topic", **who),
        (Branches, "merge"): lambda **who: graph.branches.merge("topic", **who),
        (Branches, "restore"): lambda **who: graph.branches.restore("main", to="no such commit", **who),
        (Tags, "create"): lambda **who: graph.tags.create("v2", **who),
        (Tags, "delete"): lambda **who: graph.tags.delete("v1", **who),
    }


@pytest.fixture
def policy() -> BundlePolicy:
    return BundlePolicy(parse_bundle(POLICY, "p")[0])


@pytest.fixture
def guarded(harbor: Graph, policy: BundlePolicy) -> Graph:
    """The graph with two branches and a tag, whose writes ask the policy."""
    harbor.branches.create("topic")
    harbor.tags.create("v1")
    harbor.session.policy = policy
    return harbor


def files_of(graph: Graph) -> dict[str, tuple[int, int]]:
    root = Path(graph.uri)
    return {
        str(each.relative_to(root)): (each.stat().st_size, each.stat().st_mtime_ns)
        for each in root.rglob("*")
        if each.is_file()
    }


def test_every_public_method_is_known_to_read_or_to_write(guarded: Graph) -> None:
    known = {*writers(guarded), *UNASKED}
    known |= {(owner, name) for owner, names in READS.items() for name in names.split()}
    found = {
        (owner, name)
        for owner in READS
        for name in dir(owner)
        if not name.startswith("_") and inspect.isfunction(inspect.getattr_static(owner, name))
    }
    assert found == known


@pytest.mark.slow
def test_every_writer_refuses_before_it_looks_at_anything(guarded: Graph) -> None:
    before = files_of(guarded)
    for (_, name), write in writers(guarded).items():
        with pytest.raises(Forbidden, match="'nobody' may not"):
            write(actor="nobody")
        with pytest.raises(Forbidden, match="does not know 'stranger'"):
            write(actor="stranger")
        with pytest.raises(ActorRequired, match="names no actor"):
            write()
        assert files_of(guarded) == before, name


@pytest.mark.slow
def test_who_may_write_writes(guarded: Graph) -> None:
    for (owner, name), write in writers(guarded).items():
        try:
            write(actor="tomas")
        except (Forbidden, ActorRequired) as error:
            raise AssertionError((owner, name)) from error
        except OmnigraphError:
            pass  # most of these calls are wrong in themselves


@pytest.mark.slow
def test_a_load_asks_for_the_branch_it_makes_and_not_for_one_that_exists(guarded: Graph) -> None:
    into: dict[str, Any] = {"mode": "merge", "branch": "topic/c", "base": "main", "engine": "local"}
    with pytest.raises(
        Forbidden, match="may not branch_create on branch 'main' with target branch 'topic/c'"
    ):
        guarded.load(io.BytesIO(LINE), actor="ines", **into)
    assert "topic/c" not in guarded.branches.list()
    guarded.branches.delete("topic", actor="tomas")
    guarded.branches.create("topic/c", actor="tomas")
    done = guarded.load(io.BytesIO(LINE), actor="ines", **into)
    assert done.commit is not None
    assert done.commit.actor == "ines"


@pytest.mark.slow
def test_the_server_asks_about_a_branch_only_where_it_is_made(
    serve: Serve, guarded: Graph, policy: BundlePolicy
) -> None:
    running = serve({"ines": "t1", "tomas": "t2"}, policy)
    headers = {"Content-Type": "application/x-ndjson"}
    answers = [
        running.ask(
            "POST", f"/graphs/harbor/load?from=main&branch={branch}", "ines", content=LINE, headers=headers
        )
        for branch in ("topic", "new")
    ]
    assert [each.status_code for each in answers] == [200, 403]
    assert "branch_create" in answers[1].json()["error"]
    assert "new" not in guarded.branches.list()


def test_blanks_around_a_name_do_not_dodge_a_rule(guarded: Graph) -> None:
    with pytest.raises(Forbidden, match="on branch 'main'"):
        guarded.mutate(INSERT, branch=" main ", actor="ines")
    assert guarded.mutate(INSERT, branch=" topic ", actor="ines").commit is not None


@pytest.mark.slow
def test_merges_inside_a_permitted_write_are_not_asked_about(guarded: Graph) -> None:
    guarded.mutate(INSERT, branch="topic", actor="ines")
    with pytest.raises(Forbidden, match="branch_merge"):
        guarded.branches.merge("topic", actor="ines")
    guarded.branches.merge("topic", actor="tomas")
    admin = POLICY.replace("branch_merge, ", "")
    guarded.session.policy = BundlePolicy(parse_bundle(admin, "p")[0])
    with pytest.raises(Forbidden, match="branch_merge"):
        guarded.branches.merge("topic", actor="tomas")
    assert guarded.erase("Port", "OPO", actor="tomas", tags=True).to_dict()


@pytest.mark.slow
def test_a_graph_is_opened_with_the_file_of_a_policy(harbor: Graph, tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(POLICY)
    with omnigraph.open(harbor.uri, settings=FAST, policy=file) as graph:
        assert len(graph.query("query q() { match { $s: Ship } return { $s.imo } }")) == 2
        with pytest.raises(Forbidden):
            graph.mutate(INSERT, actor="ines")
        assert graph.mutate(INSERT, actor="tomas").commit is not None
        with pytest.raises(BadRequest, match="reserved"):
            graph.mutate(INSERT, actor="omnigraph:recovery")
    file.write_text("version: 2\n")
    with pytest.raises(InvalidBundle):
        omnigraph.open(harbor.uri, settings=FAST, policy=str(file))


@pytest.mark.slow
def test_a_route_that_forgot_its_question_still_cannot_write(
    serve: Serve, guarded: Graph, policy: BundlePolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    forgetful = tuple(replace(route, asks=lambda _said, _names: ()) for route in GRAPH_ROUTES)
    monkeypatch.setattr(app, "GRAPH_ROUTES", forgetful)
    running = serve({"nobody": "t1"}, policy)
    before = files_of(guarded)
    called = rows("main")
    called["mergeBranches"] = replace(called["mergeBranches"], body={"source": "topic", "target": "main"})
    for route in forgetful:
        if route.lane is not Lane.WRITES:
            continue
        row = called[route.operation]
        named: dict[str, Any] = {} if row.body is None else {"json": row.body}
        if row.lines is not None:
            named = {"content": row.lines, "headers": {"Content-Type": "application/x-ndjson"}}
        answer = running.ask(route.method, f"/graphs/harbor{row.path}", "nobody", **named)
        assert (answer.status_code, answer.json()["kind"]) == (403, "forbidden"), route.operation
    assert files_of(guarded) == before


class _Undecided(BundlePolicy):
    """It has no answer about changes."""

    def decide(self, actor: str | None, question: Question) -> Decision:
        if question.action is Action.CHANGE:
            raise PolicyEvaluationFailed("the policy could not be evaluated; nothing was permitted")
        return super().decide(actor, question)


def test_a30_what_cannot_be_decided_is_not_done(
    serve: Serve, guarded: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = parse_bundle(POLICY, "p")[0]
    running = serve({"tomas": "t2"}, _Undecided(bundle))
    before = files_of(guarded)
    answer = running.ask("POST", "/graphs/harbor/mutate", "tomas", json={"query": INSERT})
    assert (answer.status_code, answer.json()["kind"]) == (500, "policy_evaluation_failed")
    guarded.session.policy = _Undecided(bundle)
    with pytest.raises(PolicyEvaluationFailed):
        guarded.mutate(INSERT, actor="tomas")
    assert files_of(guarded) == before

    # Every answer of a bundle is asked for when it is loaded: one that Cedar does not give is told then.
    class Nothing:
        decision = cedarpy.Decision.NoDecision

    monkeypatch.setattr(cedarpy, "is_authorized", lambda *_: Nothing)
    with pytest.raises(PolicyEvaluationFailed):
        BundlePolicy(bundle)
