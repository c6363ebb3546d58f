"""What the reads of a process share: images of tables, prepared queries, and structures made from them."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import field, replace
from typing import TYPE_CHECKING, Final

from omnigraph.catalog.joined import joined
from omnigraph.core.errors import SourceFailure
from omnigraph.core.late_dataclass import dataclass
from omnigraph.engine.edges.adjacency import AdjacencyCache
from omnigraph.engine.plans import PLANS_KEPT_MAX, TEXT_KEPT_CHARS_MAX
from omnigraph.engine.read.measures import TableMeasures
from omnigraph.engine.read.prepared import Prepared, counted_terms, prepare
from omnigraph.engine.readable import seen_as
from omnigraph.engine.tables.column_cache import ColumnCache
from omnigraph.engine.tables.derived import DerivedCache
from omnigraph.engine.tables.images import TableImage
from omnigraph.engine.tables.layout import load_layout

if TYPE_CHECKING:
    import weakref
    from collections.abc import Mapping

    from omnigraph.catalog.schema import Catalog
    from omnigraph.catalog.table_changes import ColumnMap
    from omnigraph.core.ids import TableKey
    from omnigraph.engine.edges.endpoints import EdgeTables
    from omnigraph.engine.edges.traverse import Neighbours
    from omnigraph.engine.read.reading import Reading
    from omnigraph.engine.session import GraphSession
    from omnigraph.engine.tables.layout import Layout
    from omnigraph.manifest.state import Snapshot, TableEntry
    from omnigraph.planning import ir
    from omnigraph.planning.steps import Direction

COLUMN_SHARE: Final = 0.25
DERIVED_SHARE: Final = 0.25
"""Shares of the cache budget; the key indexes have the rest."""
IMAGES_KEPT_MAX: Final = 512
PREPARED_KEPT_MAX: Final = 512
VIEWS_KEPT_MAX: Final = 16
"""Snapshots whose queries are found without looking anything up; they hold on to images of their tables."""


@dataclass(slots=True, eq=False)
class View:
    """What the queries of one handle at one snapshot share: found once, right as long as it is kept.

    Thread-safety: may be shared; two threads may find the same thing twice.
    """

    session: GraphSession
    snapshot: Snapshot
    catalog: Catalog
    schema_hash: str
    columns: Mapping[TableKey, ColumnMap] = field(default_factory=dict["TableKey", "ColumnMap"])
    """Tables whose columns are not those of their types: the snapshot follows another schema."""
    accepted: View | None = None
    """The same snapshot with the names of the accepted schema, too, once a query asked for one."""
    images: dict[str, TableImage] = field(default_factory=dict[str, TableImage])
    """By table key."""
    edge_tables: dict[str, EdgeTables] = field(default_factory=dict[str, "EdgeTables"])
    """By the table key of the edge."""
    queries: dict[tuple[str, str | None], Prepared] = field(
        default_factory=dict[tuple[str, str | None], Prepared]
    )
    """By text and name."""
    indexes: dict[tuple[str, Direction], tuple[weakref.ref[Neighbours], float]] = field(
        default_factory=dict[tuple[str, "Direction"], "tuple[weakref.ref[Neighbours], float]"]
    )
    """Indexes in memory, by edge table and direction, and until when they may be used unasked: the cache must
    hear from time to time that they are in use. They are not held here."""


class ReadCaches:
    """What reads of a process share, all named by the contents of the tables."""

    def __init__(self, cache_bytes: int) -> None:
        self.columns = ColumnCache(int(cache_bytes * COLUMN_SHARE))
        self.derived = DerivedCache(int(cache_bytes * DERIVED_SHARE))
        self.adjacency = AdjacencyCache(self.derived)
        self._images: OrderedDict[tuple[str, str, str], TableImage] = OrderedDict()
        self._prepared: OrderedDict[int, Prepared] = OrderedDict()
        self._ordered: OrderedDict[int, tuple[tuple[int, ...], Prepared]] = OrderedDict()
        """By the identity of the plan, with the state of the tables that the order was found for."""
        self._layouts: dict[tuple[str, str], Layout] = {}
        self._views: OrderedDict[int, View] = OrderedDict()
        self._lock = threading.Lock()

    def view_at_hand(self, session: GraphSession, snapshot: Snapshot) -> View | None:
        """What queries of a handle at a snapshot share, once one of them has made it."""
        found = self._views.get(id(snapshot))
        same = found is not None and found.snapshot is snapshot and found.session is session
        return found if same else None

    def view(self, session: GraphSession, snapshot: Snapshot) -> View:
        """What queries of a handle at a snapshot share. Found by identity: an unchanged branch shows the
        same object again.
        """
        found = self.view_at_hand(session, snapshot)
        if found is not None:
            return found
        made = View(session, snapshot, session.catalog_of(snapshot), snapshot.schema_hash)
        with self._lock:
            self._views[id(snapshot)] = made
            while len(self._views) > VIEWS_KEPT_MAX:
                self._views.popitem(last=False)
        return made

    def find(
        self, session: GraphSession, snapshot: Snapshot, text: str, name: str | None
    ) -> tuple[View, Prepared]:
        """A query and what it reads: the snapshot with its own schema, and where that lacks a name of the
        query, by the accepted one. Raises as compiling against its own schema does.
        """
        view = self.view(session, snapshot)
        try:
            return view, self.query(view, text, name)
        except SourceFailure:
            accepted = _with_accepted(view)
            if accepted is None:
                raise
            try:
                return accepted, self.query(accepted, text, name)
            except SourceFailure:
                pass
            raise

    def query(self, view: View, text: str, name: str | None) -> Prepared:
        """A query of a text, ready to run at the view's snapshot. Raises as compiling does."""
        found = view.queries.get((text, name))
        if found is None:
            found = self.prepared(view.session.plans.read(text, name, view.catalog, view.schema_hash))
            if len(text) <= TEXT_KEPT_CHARS_MAX and len(view.queries) < PLANS_KEPT_MAX:
                view.queries[text, name] = found
        return found

    def prepared(self, plan: ir.ReadPlan) -> Prepared:
        """What follows from a plan. Found by identity: the plan cache hands out one object per query."""
        found = self._prepared.get(id(plan))
        if found is not None and found.plan is plan:
            return found
        made = prepare(plan)
        with self._lock:
            self._prepared[id(plan)] = made
            while len(self._prepared) > PREPARED_KEPT_MAX:
                self._prepared.popitem(last=False)
        return made

    def ordered(self, reading: Reading, prepared: Prepared) -> Prepared:
        """A query with its clauses in the order that costs least at this snapshot. Kept until so much has
        changed that another order may be the best.
        """
        plan, measures = prepared.plan, TableMeasures(reading)
        state = measures.state(plan)
        found = self._ordered.get(id(plan))
        if found is not None and found[0] == state and found[1].plan is plan:
            return found[1]
        made = prepare(plan, measures.order)
        why = measures.reasons[0]
        terms = counted_terms(plan, measures)
        if terms:
            why = f"{why}; what is excluded is counted and taken away"
        made = replace(made, order=why, terms=terms)
        with self._lock:
            self._ordered[id(plan)] = state, made
            while len(self._ordered) > PREPARED_KEPT_MAX:
                self._ordered.popitem(last=False)
        return made

    def image(self, session: GraphSession, entry: TableEntry, columns: ColumnMap | None = None) -> TableImage:
        """The image of one table version; the same object while it is in use.

        With `columns` the table is seen as another type; whoever asks keeps that image.
        """
        if columns is not None:
            handle = session.storage.seen_as(session.open_entry(entry), columns)
            return TableImage(session.root.identity, session.storage, handle, session.keys, self.columns)
        key = (session.root.identity, entry.location, entry.transaction_uuid)
        with self._lock:
            found = self._images.get(key)
            if found is not None and found.handle.version == entry.version:
                self._images.move_to_end(key)
                return found
        place = (session.root.identity, entry.location)
        layout = self._layouts.get(place)
        if layout is None:
            layout = load_layout(session.cache_files, entry.location)
        made = TableImage(
            identity=session.root.identity,
            storage=session.storage,
            handle=session.open_entry(entry),
            keys=session.keys,
            cache=self.columns,
            layout=layout,
        )
        with self._lock:
            self._layouts[place] = made.layout
            self._images[key] = made
            while len(self._images) > IMAGES_KEPT_MAX:
                self._images.popitem(last=False)
        return made


def _with_accepted(view: View) -> View | None:
    """The snapshot of a view with the names of the accepted schema, too; None where it follows that one."""
    contract = view.session.schemas.latest()
    if contract.hash == view.schema_hash:
        return None
    both = f"{view.schema_hash}+{contract.hash}"
    if view.accepted is None or view.accepted.schema_hash != both:
        seen = seen_as(view.session, view.snapshot, joined(view.catalog, contract.catalog), both)
        view.accepted = View(view.session, seen.snapshot, seen.catalog, both, seen.columns)
    return view.accepted
