"""The handlers that read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from omnigraph.api.texts import Text
from omnigraph.core.errors import TargetConflict
from omnigraph.manifest.commit_record import commit_dict
from omnigraph.server.answers import ARROW, LINES, Stream, document, listed, rows_as_arrow, rows_as_json

if TYPE_CHECKING:
    from omnigraph.server import bodies
    from omnigraph.server.answers import Answer
    from omnigraph.server.bodies import ChangesFilter, ExportBody, Nothing, QueryBody
    from omnigraph.server.calls import Call


def query(call: Call[QueryBody]) -> Answer | Stream:
    """Run a query that reads."""
    said = call.said
    rows = call.graph.query(
        Text(said.query),
        said.params,
        name=said.name,
        branch=said.branch,
        at=said.at,
        cancel=call.cancel,
    )
    return rows_as_arrow(rows) if ARROW in call.accept else rows_as_json(rows)


def export(call: Call[ExportBody]) -> Stream:
    """Every record of a state, as lines of the load format."""
    said = call.said
    return Stream(call.graph.export_chunks(branch=said.branch, at=said.at, types=said.type_names), LINES)


def branches(call: Call[Nothing]) -> Answer:
    """All branches, by name."""
    return document({"branches": sorted(call.graph.branches.list())})


def schema(call: Call[Nothing]) -> Answer:
    """The accepted schema."""
    return document({"schema_source": call.graph.schema_source()})


def explain(call: Call[bodies.ExplainBody]) -> Answer:
    """How a query would be answered."""
    said = call.said
    found = call.graph.explain(
        Text(said.query), said.params, analyze=said.analyze, name=said.name, branch=said.branch, at=said.at
    )
    return document(found.to_dict())


def stats(call: Call[bodies.ReadTarget]) -> Answer:
    """How large the tables of a state are."""
    said = call.said
    branch = "main" if said.branch is None and said.at is None else said.branch
    return document(call.graph.stats(branch=branch, at=said.at).to_dict())


def commits(call: Call[bodies.CommitsParameters]) -> Answer:
    """The commits of a branch, newest first."""
    said = call.said
    found = call.graph.commits.list(
        branch=said.branch,
        actor=said.actor,
        limit=said.limit,
        before=said.before,
        since_us=said.since,
        until_us=said.until,
    )
    return document({"commits": [commit_dict(each) for each in found]})


def commit(call: Call[Nothing]) -> Answer:
    """One commit."""
    return document(commit_dict(call.graph.commits.show(call.names["commit"])))


def commit_changes(call: Call[bodies.CommitChangesParameters]) -> Answer:
    """One page of what a commit changed against its first parent."""
    said = call.said
    page = call.graph.feed.changes(
        call.names["commit"], page_token=said.page_token, changes_max=said.limit, **_chosen(said)
    )
    return document(page.to_dict())


def changes(call: Call[bodies.FeedParameters]) -> Answer:
    """One page of what happened on a branch behind a cursor."""
    said, feed = call.said, call.graph.feed
    if said.cursor is not None and said.start is not None:
        raise TargetConflict("give either a cursor or a start, not both")
    chosen = _chosen(said)
    position = said.cursor or feed.start(said.start or "now", branch=said.branch, **chosen)
    page = feed.poll(position, branch=said.branch, changes_max=said.limit, **chosen)
    return document(page.to_dict())


def _chosen(said: ChangesFilter) -> dict[str, Any]:
    return {"types": said.type or None, "ops": said.op or None, "kinds": said.kind or None}


def diff(call: Call[bodies.DiffBody]) -> Answer | Stream:
    """What differs between two states."""
    said = call.said
    found = call.graph.diff(said.old, said.new, **_chosen(said))
    return listed(found.to_dict(), "changes", (each.to_dict() for each in found))


def blame(call: Call[bodies.BlameParameters]) -> Answer:
    """Which commit gave each property of an entity its value."""
    said = call.said
    return document(call.graph.blame(said.type, said.id, at=said.at).to_dict())


def tags(call: Call[Nothing]) -> Answer:
    """All tags."""
    return document({"tags": call.graph.tags.list()})


def preview(call: Call[bodies.MergeBody]) -> Answer:
    """What a merge would do now."""
    said = call.said
    found = call.graph.branches.preview(said.source, into=said.target, on_conflict=said.on_conflict)
    return document(found.to_dict())
