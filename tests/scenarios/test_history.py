"""Differences, tags, blame and the change feed."""

import pytest

import omnigraph
from graphs import make_graph, unchanged
from omnigraph.core.errors import (
    BadRequest,
    BranchNotFound,
    ChangeCursorRejected,
    CommitNotFound,
    EntityNotFound,
    MergeConflicts,
    SnapshotNotFound,
    TagExists,
    TagNotFound,
    TargetConflict,
    TypeNotFound,
)

SCHEMA = """
node Person { name: String @key  age: I32?  tags: [String]? }
edge Knows: Person -> Person { since: I32? }
"""


@pytest.fixture
def graph(tmp_path):
    with make_graph(tmp_path / "g", SCHEMA) as opened:
        yield opened


def run(graph, statements, **named):
    return graph.mutate(f"query m() {{ {statements} }}", **named)


def people(graph, *names, **named):
    return run(graph, " ".join(f'insert Person {{ name: "{n}", age: 30 }}' for n in names), **named)


def told(diff):
    return [(c.table_key, c.op.value, c.id) for c in diff]


def test_a_diff_tells_inserts_updates_and_deletes(graph):
    people(graph, "ann", "bob", "cyd")
    before = graph.commits.head().id
    run(graph, 'insert Person { name: "dan" } update Person set { age: 31 } where name = "bob"')
    run(graph, 'delete Person where name = "cyd"')
    run(graph, 'insert Knows { from: "ann", to: "bob", since: 2001 }')
    found = graph.diff(before, "main")
    assert [t for t in told(found) if t[0] == "node:Person"] == [
        ("node:Person", "update", "bob"),
        ("node:Person", "delete", "cyd"),
        ("node:Person", "insert", "dan"),
    ]
    assert found.stats["edge:Knows"] == {"inserted": 1, "updated": 0, "deleted": 0}
    assert len(found) == 4
    change = next(c for c in found if c.id == "bob")
    assert (change.before["age"], change.after["age"], change.properties) == (30, 31, ("age",))


def test_a_rewrite_with_equal_values_is_no_change(graph):
    people(graph, "ann", "bob")
    before = graph.commits.head().id
    run(graph, 'update Person set { age: 30 } where name = "ann"')
    assert told(graph.diff(before, "main")) == []


def test_diff_same_branch_and_cross_branch_agree(graph):
    people(graph, "ann", "bob", "cyd")
    graph.branches.create("review")
    base = graph.commits.head().id
    changes = 'insert Person { name: "dan", tags: ["x"] } update Person set { age: 31 } where name = "bob"'
    run(graph, changes, branch="review")
    run(graph, 'delete Person where name = "cyd"', branch="review")
    across = told(graph.diff("main", "review"))
    assert across == [
        ("node:Person", "update", "bob"),
        ("node:Person", "delete", "cyd"),
        ("node:Person", "insert", "dan"),
    ]
    run(graph, changes)
    run(graph, 'delete Person where name = "cyd"')
    assert across == told(graph.diff(base, "main"))
    assert told(graph.diff("main", "review")) == []


def test_a_diff_applied_to_one_state_gives_the_other(graph):
    people(graph, "ann", "bob", "cyd")
    before = graph.commits.head().id
    old = {
        row["name"]: row["age"]
        for row in graph.query("query q() { match { $p: Person } return { $p.name as name, $p.age as age } }")
    }
    run(graph, 'insert Person { name: "dan", age: 5 } update Person set { age: 31 } where name = "bob"')
    run(graph, 'delete Person where name = "ann"')
    for change in graph.diff(before, "main"):
        if change.after is None:
            del old[change.id]
        else:
            old[change.id] = change.after["age"]
    assert old == {"bob": 31, "cyd": 30, "dan": 5}


def test_a_diff_is_narrowed_by_type_and_operation(graph):
    people(graph, "ann", "bob")
    before = graph.commits.head().id
    run(graph, 'insert Person { name: "cyd" } insert Knows { from: "ann", to: "bob" }')
    run(graph, 'delete Person where name = "bob"')
    assert told(graph.diff(before, "main", types=["Person"], ops=["delete"])) == [
        ("node:Person", "delete", "bob")
    ]
    with pytest.raises(TypeNotFound, match="Persn"):
        graph.diff(before, "main", types=["Persn"])


def test_a_tag_names_one_commit_for_good(graph):
    people(graph, "ann")
    first = graph.commits.head().id
    assert graph.tags.create("v1") == first
    people(graph, "bob")
    assert graph.tags.list() == {"v1": first}
    assert told(graph.diff("v1", "main")) == [("node:Person", "insert", "bob")]
    with pytest.raises(TagExists):
        graph.tags.create("v1")
    for bad in ["main", "a/b", ".x", "", "ü"]:
        with pytest.raises(BadRequest):
            graph.tags.create(bad)
    graph.tags.delete("v1")
    with pytest.raises(TagNotFound):
        graph.tags.delete("v1")
    with pytest.raises(CommitNotFound):
        graph.diff("v1", "main")


def test_a_tag_given_for_a_branch_is_said_to_be_one(graph, tmp_path):
    people(graph, "ann")
    graph.tags.create("v1")
    (tmp_path / "in.jsonl").write_text('{"type":"Person","data":{"name":"cyd"}}\n')
    attempts = [
        lambda: people(graph, "bob", branch="v1"),
        lambda: graph.load(tmp_path / "in.jsonl", mode="append", engine="local", branch="v1"),
        lambda: graph.branches.delete("v1"),
    ]
    for attempt in attempts:
        with unchanged(graph), pytest.raises(BranchNotFound, match="branch 'v1' does not exist") as caught:
            attempt()
        assert caught.value.hint == "'v1' is a tag: it can be read but never written; name a branch"
    with pytest.raises(BranchNotFound) as caught:
        people(graph, "bob", branch="v2")
    assert "tag" not in (caught.value.hint or "")


def test_a_branch_and_a_tag_never_share_a_name(graph):
    people(graph, "ann")
    graph.tags.create("v1")
    with pytest.raises(TagExists):
        graph.branches.create("v1")
    graph.branches.create("v1/fix")
    graph.tags.delete("v1")
    graph.branches.delete("v1/fix")
    graph.branches.create("v1")
    with pytest.raises(BadRequest, match="name of a branch"):
        graph.tags.create("v1")


def test_a_change_of_the_sign_of_zero_is_told_and_blamed(tmp_path):
    schema = "node P { name: String @key  w: F64?  v: Vector(2)?  n: F32? }"
    text = 'query q($w: F64, $v: Vector(2)) { insert P { name: "a", w: $w, v: $v, n: 1.5 } }'
    with make_graph(tmp_path / "g", schema) as graph:
        first = graph.mutate(text, {"w": 0.0, "v": [0.0, 1.0]}).commit
        second = graph.mutate(text, {"w": -0.0, "v": [-0.0, 1.0]}).commit
        [change] = graph.diff(first.id, second.id)
        assert set(change.properties) == {"w", "v"}
        blame = graph.blame("P", "a")
        assert {name: blame[name].commit.id for name in ("name", "n", "w", "v")} == {
            "name": first.id,
            "n": first.id,
            "w": second.id,
            "v": second.id,
        }


def test_a_commit_is_shown_by_branch_tag_or_id(graph):
    made = people(graph, "ann").commit
    assert made.branch == "main"
    creation = graph.branches.create("topic")
    assert (creation.name, creation.from_branch, creation.commit) == ("topic", "main", made)
    own = people(graph, "bob", branch="topic").commit
    assert (own.branch, own.parent) == ("topic", made.id)
    graph.tags.create("v1", at=made.id)
    for pinned in ("v1", made.id):
        with pytest.raises(BadRequest, match="starts at the head of another branch"):
            graph.branches.create("other", from_branch=pinned)
    with pytest.raises(BranchNotFound):
        graph.branches.create("other", from_branch="nowhere")
    for reference, commit in {"main": made, "topic": own, "v1": made, own.id: own}.items():
        assert graph.commits.show(reference) == commit
    with pytest.raises(CommitNotFound, match="topics") as unknown:
        graph.commits.show("topics")
    assert "topic" in unknown.value.details["candidates"]
    graph.branches.merge("topic")
    graph.branches.delete("topic")
    assert graph.commits.show(own.id) == own


def test_the_history_of_merged_branches_comes_before_their_parents(graph):
    """Main and two branches that are merged into it, one by way of the other."""
    people(graph, "ann")
    for name in ("one", "two"):
        graph.branches.create(name)
        people(graph, name, branch=name)
    people(graph, "bob")
    graph.branches.merge("one", into="two")
    graph.branches.merge("two")
    listed = graph.commits.list(merged=True)
    assert {commit.branch for commit in listed} == {"main", "one", "two"}
    places = {commit.id: number for number, commit in enumerate(listed)}
    assert len(places) == len(listed)
    assert all(places[parent] > places[commit.id] for commit in listed for parent in commit.parents)
    assert [c for c in listed if c.branch == "main"] == graph.commits.list()
    assert graph.commits.list(merged=True, limit=3) == listed[:3]
    assert graph.commits.list(merged=True, before=listed[2].id) == listed[3:]


def test_a_tag_on_a_branch_is_read_after_reopening(graph, tmp_path):
    people(graph, "ann")
    graph.branches.create("topic/a")
    people(graph, "bob", branch="topic/a")
    graph.tags.create("kept", at="topic/a")
    people(graph, "cyd", branch="topic/a")
    graph.close()
    with omnigraph.open(tmp_path / "g") as again:
        assert told(again.diff("main", "kept")) == [("node:Person", "insert", "bob")]


def test_a_branch_stays_while_a_tag_names_its_commits(graph):
    people(graph, "ann")
    graph.branches.create("topic")
    people(graph, "bob", branch="topic")
    graph.tags.create("kept", at="topic")
    with pytest.raises(BadRequest, match="kept"):
        graph.branches.delete("topic")
    assert told(graph.diff("main", "kept")) == [("node:Person", "insert", "bob")]
    graph.tags.delete("kept")
    graph.branches.delete("topic")
    assert graph.branches.list() == ["main"]


def test_blame_names_the_commit_that_set_each_property(graph):
    made = people(graph, "ann", actor="ana").commit
    people(graph, "bob")
    tagged = run(graph, 'update Person set { tags: ["x"] } where name = "ann"', actor="ben").commit
    run(graph, 'insert Knows { from: "ann", to: "bob" }')
    origins = {
        each.property: (each.commit.id, each.commit.actor) for each in graph.blame("Person", "ann").properties
    }
    assert origins["age"] == (made.id, "ana")
    assert origins["name"] == (made.id, "ana")
    assert origins["tags"] == (tagged.id, "ben")


def test_the_feed_gives_each_commit_once_and_in_order(graph):
    people(graph, "ann")
    cursor = graph.feed.start()
    assert graph.feed.poll(cursor).blocks == ()
    first = people(graph, "bob").commit
    second = run(graph, 'delete Person where name = "ann"').commit
    page = graph.feed.poll(cursor, commits_max=1)
    assert [b.commit.id for b in page.blocks] == [first.id]
    assert (page.cursor, page.caught_up) == (None, None)
    rest = graph.feed.poll(page.next_page_token)
    assert [(b.commit.id, told(b.changes)) for b in rest.blocks] == [
        (second.id, [("node:Person", "delete", "ann")])
    ]
    assert rest.next_page_token is None
    assert rest.caught_up
    assert graph.feed.poll(rest.cursor).blocks == ()


def test_pages_stop_inside_a_commit_and_end_at_the_head_they_began_with(graph):
    cursor = graph.feed.start()
    made = people(graph, "ann", "bob", "cyd").commit
    later = people(graph, "dan").commit
    seen, position, pages = [], cursor, 0
    while True:
        page = graph.feed.poll(position, changes_max=2)
        pages += 1
        seen += [(block.commit.id, change.id) for block in page.blocks for change in block.changes]
        if pages == 1:
            people(graph, "eve")  # after the poll began: the next poll tells it
        if page.next_page_token is None:
            break
        assert page.cursor is None
        position = page.next_page_token
    assert seen == [(made.id, "ann"), (made.id, "bob"), (made.id, "cyd"), (later.id, "dan")]
    assert not page.caught_up
    rest = graph.feed.poll(page.cursor)
    assert [change.id for block in rest.blocks for change in block.changes] == ["eve"]
    assert rest.caught_up


def test_a_page_holds_few_heavy_changes(graph, monkeypatch):
    """A change heavier than the target of a page is sent alone."""
    monkeypatch.setattr("omnigraph.branching.feed.PAGE_BYTES", 1)
    cursor = graph.feed.start()
    made = people(graph, "ann", "bob").commit
    first = graph.feed.poll(cursor)
    assert [change.id for block in first.blocks for change in block.changes] == ["ann"]
    rest = graph.feed.poll(first.next_page_token)
    assert [change.id for block in rest.blocks for change in block.changes] == ["bob"]
    page = graph.feed.changes(made.id)
    assert [change.id for change in page.changes] == ["ann"]
    with pytest.raises(ChangeCursorRejected):
        graph.feed.poll(page.next_page_token)
    page = graph.feed.changes(made.id, page_token=page.next_page_token)
    assert ([change.id for change in page.changes], page.next_page_token) == (["bob"], None)
    with pytest.raises(ChangeCursorRejected):
        graph.feed.changes(made.id, page_token=cursor)


def test_the_feed_starts_after_a_commit(graph):
    first = people(graph, "ann").commit
    second = people(graph, "bob").commit
    page = graph.feed.poll(graph.feed.start(f"after:{first.id}"))
    assert [block.commit.id for block in page.blocks] == [second.id]
    with pytest.raises(CommitNotFound):
        graph.feed.start("after:01ARZ3NDEKTSV4RRFFQ69G5FAV")
    with pytest.raises(BadRequest, match="not a start of a feed"):
        graph.feed.start("yesterday")


def test_a_feed_of_one_kind_tells_nodes_before_edges(graph):
    cursor = graph.feed.start()
    nodes_only = graph.feed.start(kinds=["node"])
    run(
        graph,
        'insert Person { name: "ann" } insert Person { name: "bob" } insert Knows { from: "ann", to: "bob" }',
    )
    (block,) = graph.feed.poll(cursor).blocks
    assert [change.kind for change in block.changes] == ["node", "node", "edge"]
    (block,) = graph.feed.poll(nodes_only, kinds=["node"]).blocks
    assert [change.kind for change in block.changes] == ["node", "node"]


def test_a_feed_whose_commits_are_gone_says_so(graph):
    graph.branches.create("review")
    people(graph, "ann", branch="review")
    cursor = graph.feed.start(branch="review")
    people(graph, "bob", branch="review")
    graph.branches.delete("review")
    graph.branches.create("review")
    with pytest.raises(ChangeCursorRejected):
        graph.feed.poll(cursor, branch="review")


def test_the_feed_from_the_beginning_rebuilds_the_graph(graph):
    people(graph, "ann", "bob")
    run(graph, 'update Person set { age: 1 } where name = "ann"')
    run(graph, 'delete Person where name = "bob"')
    state = {}
    for block in graph.feed.poll(graph.feed.start("beginning")).blocks:
        for change in block.changes:
            state.pop(change.id, None)
            if change.after is not None:
                state[change.id] = change.after["age"]
    assert state == {"ann": 1}


def test_a_cursor_is_good_for_one_branch_and_filter_only(graph):
    people(graph, "ann")
    graph.branches.create("review")
    cursor = graph.feed.start()
    with pytest.raises(ChangeCursorRejected):
        graph.feed.poll(cursor, branch="review")
    with pytest.raises(ChangeCursorRejected):
        graph.feed.poll(cursor, types=["Person"])
    with pytest.raises(ChangeCursorRejected):
        graph.feed.poll(cursor[:-6] + "AAAAAA")


def test_time_travel_versions_chain(graph):
    people(graph, "ann")
    states = [graph.commits.head().id]
    run(graph, 'update Person set { age: 31 } where name = "ann"')
    states.append(graph.commits.head().id)
    run(graph, 'delete Person where name = "ann"')
    states.append(graph.commits.head().id)
    question = "query q() { match { $p: Person } return { $p.age as age } }"
    assert [[row["age"] for row in graph.query(question, at=each)] for each in states] == [[30], [31], []]
    assert [graph.at(each).entity("Person", "ann").properties["age"] for each in states[:2]] == [30, 31]
    with pytest.raises(EntityNotFound):
        graph.entity("Person", "ann", at=states[2])


def test_a_state_is_read_by_its_version_number(graph):
    people(graph, "ann")
    run(graph, 'update Person set { age: 31 } where name = "ann"')
    graph.branches.create("review")
    run(graph, 'update Person set { age: 32 } where name = "ann"', branch="review")
    run(graph, 'update Person set { age: 41 } where name = "ann"')
    question = "query q() { match { $p: Person } return { $p.age as age } }"

    def found(branch):
        commits = [each for each in graph.commits.list(branch=branch) if each.branch == branch]
        states = (graph.at(each.manifest_version, branch=branch) for each in commits)
        return [(each.commit_id, [row["age"] for row in each.query(question)]) for each in states], commits

    main, commits = found("main")
    assert main == list(zip([each.id for each in commits], [[41], [31], [30], []], strict=True))
    assert graph.at(commits[1].manifest_version).entity("Person", "ann").properties["age"] == 31
    review, commits = found("review")
    assert review == [(commits[0].id, [32])]
    for gone in (0, 1, -3, 99):
        with pytest.raises(SnapshotNotFound):
            graph.at(gone)
    with pytest.raises(BranchNotFound):
        graph.at(3, branch="nobody")
    with pytest.raises(TargetConflict):
        graph.at("review", branch="review")


def ages(graph, **where):
    question = "query q() { match { $p: Person } return { $p.name as name, $p.age as age } }"
    return {row["name"]: row["age"] for row in graph.query(question, **where)}


@pytest.mark.slow
def test_a_revert_takes_back_one_commit_and_keeps_later_ones(graph):
    people(graph, "ann", "bob", "cyd")
    mistake = run(
        graph, 'insert Person { name: "dan", age: 1 } update Person set { age: 99 } where name = "ann"'
    ).commit
    run(graph, 'delete Person where name = "cyd"')
    run(graph, 'update Person set { age: 31 } where name = "bob"')
    report = graph.revert(mistake.id, actor="ana")
    assert ages(graph) == {"ann": 30, "bob": 31}
    recorded = graph.commits.show(report.commit.id)
    assert (recorded.actor, recorded.operation) == ("ana", f"revert:{mistake.id}")
    assert graph.verify().ok


def test_a_reverted_delete_brings_the_rows_back(graph):
    people(graph, "ann", "bob")
    run(graph, 'insert Knows { from: "ann", to: "bob", since: 1 }')
    gone = run(graph, 'delete Person where name = "bob"').commit
    graph.revert(gone.id)
    assert ages(graph) == {"ann": 30, "bob": 30}
    edges = graph.query("query q() { match { $a: Person $a $e:knows $b } return { $e.since as since } }")
    assert [row["since"] for row in edges] == [1]


def test_a_revert_refuses_what_later_commits_changed(graph):
    people(graph, "ann")
    changed = run(graph, 'update Person set { age: 99 } where name = "ann"').commit
    run(graph, 'update Person set { age: 50 } where name = "ann"')
    before = graph.commits.head().id
    with pytest.raises(MergeConflicts):
        graph.revert(changed.id)
    assert graph.commits.head().id == before
    assert ages(graph) == {"ann": 50}


def test_the_first_commit_cannot_be_reverted(graph):
    with pytest.raises(BadRequest):
        graph.revert(graph.commits.list()[-1].id)


def test_blame_follows_a_merge_to_the_side_that_set_the_value(graph):
    people(graph, "ann", actor="ana")
    graph.branches.create("review")
    there = run(
        graph, 'update Person set { age: 40 } where name = "ann"', branch="review", actor="rae"
    ).commit
    run(graph, 'update Person set { tags: ["x"] } where name = "ann"', branch="review", actor="rob")
    people(graph, "bob", actor="ben")
    graph.branches.merge("review", into="main", actor="mia")
    found = graph.blame("Person", "ann")
    assert (found["age"].commit.id, found["age"].commit.actor) == (there.id, "rae")
    assert found["tags"].commit.actor == "rob"
    assert found["name"].commit.actor == "ana"


@pytest.mark.parametrize("actor", ["", " \t"])
def test_nobody_signs_without_a_name(graph, tmp_path, actor):
    with unchanged(graph), pytest.raises(BadRequest, match="the actor is empty"):
        people(graph, "ann", actor=actor)
    with pytest.raises(BadRequest, match="the actor is empty"):
        omnigraph.init(tmp_path / "new", schema="node P { k: String @key }", actor=actor)
    assert not (tmp_path / "new").exists()


def test_nobody_signs_as_the_engine(graph, tmp_path):
    people(graph, "ann")
    graph.branches.create("b")
    people(graph, "ben", branch="b")
    (tmp_path / "in.jsonl").write_text('{"type":"Person","data":{"name":"cyd"}}\n')
    newest = graph.commits.list()[0].id
    taken = "omnigraph:recovery"
    attempts = [
        lambda: people(graph, "dov", actor=taken),
        lambda: graph.load(tmp_path / "in.jsonl", mode="append", engine="local", actor=taken),
        lambda: graph.branches.merge("b", actor=taken),
        lambda: graph.revert(newest, actor=taken),
        lambda: graph.ensure_indices(actor=taken),
        lambda: omnigraph.init(tmp_path / "new", schema="node P { k: String @key }", actor=taken),
    ]
    for attempt in attempts:
        with unchanged(graph), pytest.raises(BadRequest, match="'omnigraph:recovery' is reserved"):
            attempt()
    assert not (tmp_path / "new").exists()


def names_at(graph, reference):
    question = "query q() { match { $p: Person } return { $p.name } order { $p.name } }"
    return [row["p.name"] for row in graph.query(question, at=reference)]


def test_a_commit_is_named_by_how_many_come_after_it(graph):
    for name in ("ann", "bob", "cyd"):
        people(graph, name)
    graph.branches.create("draft")
    people(graph, "dan", branch="draft")
    assert names_at(graph, "main~1") == names_at(graph, "main~") == ["ann", "bob"]
    assert names_at(graph, "main~2") == names_at(graph, "main~1~1") == ["ann"]
    assert names_at(graph, "draft~2") == ["ann", "bob"]
    assert names_at(graph, f"{graph.commits.head().id}~1") == ["ann", "bob"]
    assert graph.commits.show("main~1").id == graph.commits.show("main").parents[0]
    with pytest.raises(CommitNotFound, match="main~99") as refused:
        names_at(graph, "main~99")
    assert "goes back" in str(refused.value.hint)


def test_a_commit_is_named_by_the_beginning_of_its_id(graph):
    people(graph, "ann")
    first = graph.commits.head().id
    people(graph, "bob")
    second = graph.commits.head().id
    every = [each.id for each in graph.commits.list()]
    enough = next(size for size in range(27) if len({each[:size] for each in every}) == len(every))
    assert names_at(graph, first[:enough]) == ["ann"]
    assert names_at(graph, second[:enough].lower()) == ["ann", "bob"]
    shared = next(at for at in range(26) if first[at] != second[at])
    with pytest.raises(CommitNotFound) as refused:
        names_at(graph, first[:shared])
    assert "commits begin so" in str(refused.value.hint)
    with pytest.raises(CommitNotFound):
        names_at(graph, first[:3])


def test_a_graph_is_read_as_of_a_moment(graph):
    people(graph, "ann")
    first = graph.commits.head()
    graph.branches.create("draft")
    people(graph, "bob")
    people(graph, "cyd", branch="draft")
    second = graph.commits.head()
    assert names_at(graph, first.time.isoformat(timespec="milliseconds"))[0] == "ann"
    assert names_at(graph, second.time.isoformat()) == ["ann", "bob"]
    assert names_at(graph, "9999-12-31") == names_at(graph, "9998-11-01T12:00Z") == ["ann", "bob"]
    assert names_at(graph, "draft@9998-11-01T12:00:00+02:00") == ["ann", "cyd"]
    with pytest.raises(CommitNotFound) as refused:
        names_at(graph, "2001-01-01T00:00Z")
    assert "begins at" in str(refused.value.hint)
    with pytest.raises(BranchNotFound):
        names_at(graph, "nothing@9998-11-01")
