"""Loads with an idempotency key: what is asked for, and the answer when it has been carried out already."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from omnigraph.core.ids import show_branch
from omnigraph.core.load_options import LoadOptions
from omnigraph.engine.session import GraphSession
from omnigraph.manifest.commit_record import CommitRecord, RequestKey, TableSummary
from omnigraph.manifest.request_keys import request_key
from omnigraph.manifest.state import Snapshot
from omnigraph.pipeline.report import LoadReport, TypeCount

_NOT_ASKED_FOR = ("actor", "rejects", "idempotency_key")
"""Options that do not decide which rows are loaded; the actor is part of the key."""
_NODE = "node:"


def requested(options: LoadOptions, form: Sequence[object], inputs: Sequence[Any]) -> RequestKey | None:
    """The key of a load with a digest of what it is asked for. Raises BadRequest.

    Files are told by their names and sizes; of a stream and of frames only what is said about them counts:
    nobody has read them yet.
    """
    asked = {name: value for name, value in options.members().items() if name not in _NOT_ASKED_FOR}
    files = [(Path(each).name, Path(each).stat().st_size) for each in inputs]
    parts = (asked, options.rejects is not None, form, files)
    return request_key(options.idempotency_key, options.actor, *parts)


def counted(request: RequestKey, summary: TableSummary) -> RequestKey:
    """The key as the commit keeps it: with how many nodes and edges the load wrote."""
    totals = {True: 0, False: 0}
    for key, counts in summary.items():
        totals[key.startswith(_NODE)] += _written(counts)
    return replace(request, nodes=totals[True], edges=totals[False])


def answer(
    session: GraphSession, snapshot: Snapshot, options: LoadOptions, request: RequestKey | None
) -> LoadReport | None:
    """The report of a load that was carried out earlier, if one with this key was.

    Raises `IdempotencyMismatch` when that was another request.
    """
    found = None if request is None else session.request_keys.answer(snapshot, request)
    return None if found is None else _report(found[0], options)


def answer_of_key(session: GraphSession, snapshot: Snapshot, options: LoadOptions) -> LoadReport | None:
    """As `answer` where only the key is known: of a load that is to go on, and has left nothing to resume."""
    key = options.idempotency_key
    found = None if key is None else session.request_keys.find(snapshot, options.actor, key)
    return None if found is None else _report(found[0], options)


def _report(commit: CommitRecord, options: LoadOptions) -> LoadReport:
    counts = {
        key: TypeCount(
            name=key.partition(":")[2],
            entities_loaded=_written(each),
            inserted=each.get("inserted", 0),
            replaced=each.get("replaced", 0),
            superseded=0,
            refused=0,
        )
        for key, each in sorted(commit.summary.items())
        if _written(each)
    }
    return LoadReport(
        branch=show_branch(options.branch),
        base_branch=options.base,
        branch_created=False,
        mode="" if options.mode is None else options.mode.value,
        engine="none",
        nodes=tuple(each for key, each in counts.items() if key.startswith(_NODE)),
        edges=tuple(each for key, each in counts.items() if not key.startswith(_NODE)),
        records_read=0,
        records_refused=0,
        bytes_read=0,
        seconds={},
        actor=options.actor,
        commit=commit,
        repeated=True,
    )


def _written(counts: Mapping[str, int]) -> int:
    return counts.get("inserted", 0) + counts.get("replaced", 0)
