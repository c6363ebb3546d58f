"""All vectors of a property made again: on a branch of their own, compared with the former ones, then merged.

The work is one load of the texts that exist, without their vectors, so a run that dies goes on where it was:
what is staged is journaled, and the branch stays until it is merged.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from omnigraph.arrays.keys import string_array
from omnigraph.branching.ancestry import merge_bases
from omnigraph.branching.branches import delete_branch
from omnigraph.branching.merge import branch_merge, preview_merge
from omnigraph.catalog.schema import NodeType, Property
from omnigraph.core.errors import BadRequest, EmbedderError, LoadNotResumable
from omnigraph.core.errors.kinds import Retry
from omnigraph.core.events import tidying
from omnigraph.core.ids import Branch, BranchName, TableKey, show_branch
from omnigraph.core.load_options import LoadMode, LoadOptions
from omnigraph.core.permission import Action, Question
from omnigraph.engine.search.embedding import check_model
from omnigraph.engine.session import GraphSession
from omnigraph.engine.write.entering import entering_write
from omnigraph.manifest.branches import BranchStore
from omnigraph.pipeline.load.abandoned import JournaledLoads
from omnigraph.pipeline.load.journal import resumable_loads
from omnigraph.pipeline.load.known_edges import places
from omnigraph.pipeline.load.load import RunBy, load_files, load_spooled
from omnigraph.pipeline.load.vectors import embedder_of
from omnigraph.pipeline.report import LoadReport
from omnigraph.planning.filters import HasValue, filter_text

if TYPE_CHECKING:
    from omnigraph.branching.delta_engine import BulkDeltas

PIECE_ROWS: Final = 10_000
"""Texts of one piece of the work: what a run that dies has to do again."""
COMPARED_ROWS_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class Reembedded:
    """What became of the vectors of one property."""

    type_name: str
    property_name: str
    model: str
    branch: str
    """Whose rows were embedded again."""
    working_branch: str
    """Where; it is gone once it is merged."""
    rows: int
    """Rows with a text."""
    changed: int
    """Rows whose vector is another one now."""
    similarity: float | None
    """The mean cosine of former and new vectors, over at most a thousand rows that had one."""
    merged: bool
    commit: str | None
    """The commit that shows the new vectors; None where nothing changed."""

    def to_dict(self) -> dict[str, Any]:
        """JSON members."""
        return {
            "type": self.type_name,
            "property": self.property_name,
            "model": self.model,
            "branch": self.branch,
            "working_branch": self.working_branch,
            "rows": self.rows,
            "changed": self.changed,
            "similarity": self.similarity,
            "merged": self.merged,
            "commit": self.commit,
        }


def reembed(
    session: GraphSession,
    target: str,
    branch: Branch,
    by: RunBy,
    *,
    actor: str | None = None,
    merge: bool = True,
    bulk: "BulkDeltas | None" = None,
) -> Reembedded:
    """Embed every text behind `Type.property` again, with the embedder of the handle or with `by.model`.

    Called again after it was stopped, it goes on. Raises BadRequest for what is no `@embed` property,
    EmbedderError, and MergeConflicts when somebody changed a text or a vector of the branch meanwhile.
    """
    entering_write(session, actor, Question(Action.CHANGE, show_branch(branch)))
    node, prop = _meant(session, target)
    embedder, _ = embedder_of(session, by.model)
    if embedder is None:
        raise EmbedderError(
            "no embedder is configured, so nothing can be embedded",
            hint="set OMNIGRAPH_EMBED_PROVIDER, or give omnigraph.open an embedder",
            retry=Retry.NEVER,
        )
    check_model(embedder, node, prop)
    work = _working_branch(node, prop, branch)
    _ask(session, actor, work, branch, merge=merge)
    _begin(session, branch, work, by, actor)
    report = _embedded(session, node, prop, work, branch, by, embedder.model, actor)
    rows = _texts(session, node, prop, work)
    similarity = _similarity(session, node, prop, branch, work)
    commit = None if report.commit is None else report.commit.id
    if merge:
        done = branch_merge(session, source=work, target=branch, actor=actor, cancel=by.cancel, bulk=bulk)
        commit = commit if done.commit is None else done.commit.id
        stats = done.stats
        with tidying(f"the branch {work} remains"):
            delete_branch(session, work, actor)
    else:
        stats = preview_merge(session, source=work, target=branch, bulk=bulk).stats
    changed = stats.get(node.table_key, {}).get("updated", 0)
    return Reembedded(
        node.name,
        prop.name,
        embedder.model,
        show_branch(branch),
        work,
        rows,
        changed,
        similarity,
        merge,
        commit,
    )


def _meant(session: GraphSession, target: str) -> tuple[NodeType, Property]:
    type_name, _, name = target.partition(".")
    node = session.contract().catalog.nodes.get(type_name)
    prop = None if node is None else node.get(name)
    if node is None or prop is None or prop.embed is None:
        raise BadRequest(
            f"'{target}' is not a vector that is made from a text",
            hint="name Type.property of a Vector with @embed; `omnigraph schema show` has them",
        )
    return node, prop


def _working_branch(node: NodeType, prop: Property, branch: Branch) -> BranchName:
    of = "" if branch is None else f"-of-{branch}"
    return BranchName(f"embed-{node.name}-{prop.name}{of}")


def _ask(session: GraphSession, actor: str | None, work: BranchName, branch: Branch, *, merge: bool) -> None:
    """Ask for everything that is going to happen, so that nothing stops half-way."""
    shown = show_branch(branch)
    session.ask(actor, Question(Action.BRANCH_CREATE, shown, work), Question(Action.CHANGE, work))
    session.ask(actor, Question(Action.BRANCH_MERGE, shown, work))
    if merge:
        session.ask(actor, Question(Action.BRANCH_MERGE, work, shown))
        session.ask(actor, Question(Action.BRANCH_DELETE, None, work))


def _begin(session: GraphSession, branch: Branch, work: BranchName, by: RunBy, actor: str | None) -> None:
    """The working branch is there, and shows the branch unless it has vectors that are not merged yet."""
    if not session.manifest.branch_exists(work):
        with session.lease.hold() as hold:
            BranchStore(session.manifest).create(work, branch, fence=hold.check)
    elif _base(session, branch, work) == session.manifest.current(work).head:
        branch_merge(session, source=branch, target=work, actor=actor, cancel=by.cancel)


def _base(session: GraphSession, branch: Branch, work: BranchName) -> str:
    """The state that the working branch grew out of."""
    (base, *_) = merge_bases(session, session.manifest.current(work), session.manifest.current(branch))
    return base.head


# --- embedding -------------------------------------------------------------------------------------------


def _embedded(
    session: GraphSession,
    node: NodeType,
    prop: Property,
    work: BranchName,
    branch: Branch,
    by: RunBy,
    model: str,
    actor: str | None,
) -> LoadReport:
    """One load of all texts into the working branch: a new one, one that was stopped, or one that is done."""
    stopped = [each.id for each in resumable_loads(session) if each.branch == work]
    for load_id in stopped:
        try:
            return load_files(session, None, LoadOptions(), by, resume=load_id)
        except LoadNotResumable:
            if not JournaledLoads(session).discard(load_id):
                raise
    options = LoadOptions(
        mode=LoadMode.PATCH,
        branch=work,
        actor=actor,
        # Done and not merged yet, it is not done again.
        idempotency_key=f"embed {node.type_id} {prop.property_id} {model} {_base(session, branch, work)}",
    )

    def spooled(directory: Path) -> list[Path]:
        return _spool(session, node.name, prop.name, work, directory)

    return load_spooled(session, spooled, node.name, options, by)


def _texts(session: GraphSession, node: NodeType, prop: Property, work: BranchName) -> int:
    """How many rows have a text: also where a load that was recovered does not say so."""
    handle = session.open_entry(session.manifest.current(work).entries[TableKey(node.table_key)])
    source = node.embeds[prop.name].source
    return session.storage.count_rows(handle, filter_text(HasValue(source, wanted=True)))


def _spool(session: GraphSession, type_name: str, name: str, work: BranchName, directory: Path) -> list[Path]:
    """The texts, and what names their rows, in files of a few thousand rows each."""
    snapshot = session.manifest.current(work)
    node = session.catalog_of(snapshot).nodes[type_name]
    source = node.embeds[name].source
    columns = list(dict.fromkeys([*(node.key or ("id",)), source]))
    handle = session.open_entry(snapshot.entries[TableKey(node.table_key)])
    texts = filter_text(HasValue(source, wanted=True))
    files: list[Path] = []
    reader = session.storage.scan(handle, columns=columns, filter=texts, batch_rows=PIECE_ROWS)
    held: list[pa.RecordBatch] = []
    for batch in reader:
        held.append(batch)
        if sum(each.num_rows for each in held) >= PIECE_ROWS:
            files.append(_written(held, directory, len(files)))
            held = []
    if sum(each.num_rows for each in held):
        files.append(_written(held, directory, len(files)))
    return files


def _written(batches: list[pa.RecordBatch], directory: Path, number: int) -> Path:
    path = directory / f"texts-{number:06}.parquet"
    pq.write_table(pa.Table.from_batches(batches), path)
    return path


# --- comparing -------------------------------------------------------------------------------------------


def _similarity(
    session: GraphSession, node: NodeType, prop: Property, branch: Branch, work: BranchName
) -> float | None:
    """The mean cosine of former and new vectors, over the first rows that had one."""
    before, after = (
        session.open_entry(session.manifest.current(each).entries[TableKey(node.table_key)])
        for each in (branch, work)
    )
    had = filter_text(HasValue(prop.name, wanted=True))
    columns = ["id", prop.name]
    former = session.storage.read(before, columns=columns, filter=had, limit=COMPARED_ROWS_MAX)
    ids = string_array(former.column("id"))
    now = session.storage.take(after, session.storage.addresses_of(after, ids), columns)
    place, found = places(ids, string_array(now.column("id")))
    if not found.any():
        return None
    old = _matrix(former.column(prop.name).filter(pa.array(found)), prop)
    new = _matrix(now.column(prop.name).take(pa.array(place[found])), prop)
    lengths = np.linalg.norm(old, axis=1) * np.linalg.norm(new, axis=1)
    usable = lengths > 0
    cosines: NDArray[np.float64] = (old * new).sum(axis=1)[usable] / lengths[usable]
    return float(cosines.mean()) if len(cosines) else None


def _matrix(column: pa.ChunkedArray, prop: Property) -> NDArray[np.float64]:
    flat = cast("Any", column.combine_chunks()).flatten().to_numpy(zero_copy_only=False)
    return np.asarray(flat, np.float64).reshape(-1, prop.type.vector_dim or 1)
