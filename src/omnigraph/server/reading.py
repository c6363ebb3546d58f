"""The handlers that read."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import orjson

from omnigraph.api.texts import Text
from omnigraph.branching.feed import CHANGES_PER_PAGE_MAX
from omnigraph.core.errors import ResourceLimit, TargetConflict
from omnigraph.engine.read.at_hand import rows_at_hand
from omnigraph.manifest.commit_record import commit_dict
from omnigraph.server.answers import (
    ARROW,
    JSON,
    LINES,
    Answer,
    Stream,
    document,
    listed,
    rows_as_arrow,
    rows_as_json,
)
from omnigraph.server.entities import is_known, key_of

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from omnigraph.branching.baseline import Baseline
    from omnigraph.server import bodies
    from omnigraph.server.bodies import ChangesFilter, ExportBody, Nothing, QueryBody
    from omnigraph.server.calls import Call

PLAIN: Final = "text/plain"
COMMITS_PER_POLL_MAX: Final = 512


def query(call: Call[QueryBody]) -> Answer | Stream:
    """Run a query that reads."""
    said = call.said
    rows = call.graph.query(
        Text(said.query),
        said.params,
        name=said.name,
        branch=said.branch,
        at=said.at,
    )
    if len(rows) > call.rows_max:
        raise ResourceLimit(
            resource="result_rows", limit=call.rows_max, actual=len(rows), hint="narrow it, or ask in pieces"
        )
    return rows_as_arrow(rows) if ARROW in call.accept else rows_as_json(rows)


def query_at_hand(call: Call[QueryBody]) -> Answer | None:
    """As `query`, when the answer is at hand; None when it takes a wait, and for wrong queries."""
    said = call.said
    if said.at is not None or said.branch not in {None, "main"} or ARROW in call.accept:
        return None
    rows = rows_at_hand(call.graph.session, said.query, said.params, name=said.name)
    if rows is None or len(rows) > call.rows_max:
        return None
    return Answer(orjson.dumps(rows.envelope()))


def export(call: Call[ExportBody]) -> Stream:
    """Every record of a state, as lines of the load format."""
    said = call.said
    return Stream(call.graph.export_chunks(branch=said.branch, at=said.at, types=said.type_names), LINES)


def queries(call: Call[Nothing]) -> Answer:
    """The stored queries."""
    return document({"queries": [each.to_dict() for each in call.stored.by_name.values()]})


def invoked(call: Call[bodies.InvokeBody]) -> Answer:
    """Never called: a stored query is run by the route of what it is."""
    raise AssertionError(call.names)


def branches(call: Call[Nothing]) -> Answer:
    """All branches, by name."""
    return document({"branches": sorted(call.graph.branches.list())})


def schema(call: Call[Nothing]) -> Answer:
    """The accepted schema, as a JSON object or as the text alone."""
    source = call.graph.schema_source()
    tag = hashlib.sha256(source.encode()).hexdigest()
    about = {"etag": f'"{tag}"'}
    if is_known(tag, call.headers):
        return Answer(b"", JSON, 304, about)
    if PLAIN in call.accept:
        return Answer(source.encode(), f"{PLAIN}; charset=utf-8", headers=about)
    return replace(document({"schema_source": source}), headers=about)


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
    return document(call.graph.stats(branch=said.branch, at=said.at).to_dict())


def indexes(call: Call[bodies.IndexesParameters]) -> Answer:
    """Which indexes a state has."""
    said = call.said
    found = call.graph.indexes(branch=said.branch, at=said.at, types=said.type or None)
    return document(found.to_dict())


def snapshot(call: Call[bodies.SnapshotParameters]) -> Answer:
    """The version and size of every table of a state."""
    said, at = call.said, call.said.at
    if said.version is not None:
        if at is not None:
            raise TargetConflict("give either a commit or a version of a branch, not both")
        at = call.graph.at(said.version, branch=said.branch).commit_id
    found = call.graph.snapshot(branch=said.branch if at is None else None, at=at)
    return document({**found.to_dict(), "commit": commit_dict(found.commit)})


def branch_details(call: Call[Nothing]) -> Answer:
    """Every branch with its head, and how far it and main are apart."""
    return document({"branches": [each.to_dict() for each in call.graph.branches.details()]})


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
        merged=said.merged,
        upkeep=said.upkeep,
    )
    more = {"next": found[-1].id} if len(found) == said.limit else {}
    return document({"commits": [commit_dict(each) for each in found], **more})


def commit(call: Call[Nothing]) -> Answer:
    """One commit."""
    return document(commit_dict(call.graph.commits.show(call.names["commit"])))


def commit_changes(call: Call[bodies.CommitChangesParameters]) -> Answer:
    """One page of what a commit changed against its first parent."""
    said = call.said
    _check_page(said.limit)
    page = call.graph.feed.changes(
        call.names["commit"], page_token=said.page_token, changes_max=said.limit, **_chosen(said)
    )
    return document(page.to_dict())


def changes(call: Call[bodies.FeedParameters]) -> Answer:
    """One page of what happened on a branch behind a cursor."""
    said, feed = call.said, call.graph.feed
    _check_page(said.limit, said.commits)
    given = [each for each in (said.cursor, said.page_token, said.start) if each is not None]
    if len(given) > 1:
        raise TargetConflict("give a cursor, a page token or a start, and only one of them")
    chosen = _chosen(said)
    position = said.cursor or said.page_token or feed.start(said.start or "now", branch=said.branch, **chosen)
    page = feed.poll(position, branch=said.branch, changes_max=said.limit, commits_max=said.commits, **chosen)
    return document(page.to_dict())


def _check_page(changes: int, commits: int = 1) -> None:
    """Refuse a page that is larger than any. Raises ResourceLimit."""
    for resource, asked, most in (
        ("commit_changes_page_changes", changes, CHANGES_PER_PAGE_MAX),
        ("change_feed_commits_per_poll", commits, COMMITS_PER_POLL_MAX),
    ):
        if asked > most:
            raise ResourceLimit(
                resource=resource, limit=most, actual=asked, hint="ask for less, page by page"
            )


def cursor(call: Call[bodies.CursorParameters]) -> Answer:
    """Where a feed begins."""
    said = call.said
    return document({"cursor": call.graph.feed.start(said.start, branch=said.branch, **_chosen(said))})


def baseline(call: Call[bodies.BaselineBody]) -> Stream:
    """Every record of a branch, and as the last line the cursor that goes on from there."""
    said = call.said
    return Stream(_with_cursor(call.graph.feed.baseline_lines(branch=said.branch, **_chosen(said))), LINES)


def _with_cursor(lines: Generator[bytes, None, Baseline]) -> Iterator[bytes]:
    made = yield from lines
    yield orjson.dumps({"baseline": made.to_dict()}) + b"\n"


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
    return document(call.graph.blame(said.type, key_of(said), at=said.at).to_dict())


def tags(call: Call[Nothing]) -> Answer:
    """All tags."""
    return document({"tags": call.graph.tags.list()})


def preview(call: Call[bodies.PreviewBody]) -> Answer:
    """What a merge would do now."""
    said = call.said
    found = call.graph.branches.preview(
        said.source, into=said.target, on_conflict=said.on_conflict, resolve=said.resolve
    )
    return document(found.to_dict())
