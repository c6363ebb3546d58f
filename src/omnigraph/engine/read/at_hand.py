"""Answers that are at hand: one node by its key, or few nodes around it, of tables that are in memory.

Such a query is done in less time than handing it to another thread takes, so who must not wait for anything
may ask here. It waits for no storage: what is not in memory already is for `run_query`, and so is everything
that could take long.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from omnigraph.core.errors import OmnigraphError
from omnigraph.core.limits import AT_HAND_BYTES_MAX, AT_HAND_NODES_MAX
from omnigraph.engine.edges.traverse import Neighbours
from omnigraph.engine.read.limits import Limits
from omnigraph.engine.read.project import few_wanted
from omnigraph.engine.read.query import read_caches
from omnigraph.engine.read.reading import Reading
from omnigraph.engine.read.result import Rows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from omnigraph.engine.read.chains import ChainAccess
    from omnigraph.engine.read.prepared import Prepared, References
    from omnigraph.engine.session import GraphSession
    from omnigraph.engine.tables.columns import Picker


def rows_at_hand(
    session: GraphSession, text: str, params: Mapping[str, Any] | None, *, name: str | None
) -> Rows | None:
    """The answer to a query at the head of main, when it is at hand; None for all others, wrong ones too.

    Cost: one look at a directory of the file system, then lookups in memory of at most `AT_HAND_NODES_MAX`
    nodes and `AT_HAND_BYTES_MAX` of their values.
    """
    try:
        session.begin_read()
        head = session.manifest.resting()
        if head is None:
            return None
        caches = read_caches(session)
        view = caches.view_at_hand(session, head.snapshot)
        prepared = None if view is None else view.queries.get((text, name))
        if view is None or prepared is None or not _is_a_chain(prepared):
            return None
        memory = session.settings.query_memory_bytes
        reading = Reading(view, prepared.bind(params), None, Limits(memory), caches)
        columns = _columns(reading, prepared)
    except OmnigraphError:
        return None  # whoever waits for it gets the error whole
    if columns is None:
        return None
    plan, commit = prepared.plan, head.snapshot.commit.id
    return Rows(columns, prepared.schema, plan.name, "main", None, commit, prepared.names)


def _is_a_chain(prepared: Prepared) -> bool:
    """Whether nothing but keys and edges decides which nodes are shown, and nothing but their values is."""
    chain, plan = prepared.chain, prepared.plan
    return (
        chain is not None
        and chain.is_untested
        and chain.steps == len(prepared.steps)
        and prepared.references is not None
        and not (prepared.searches or prepared.has_choice or plan.is_aggregate)
        and plan.limit_by is None
        and plan.offset_by is None
    )


def _columns(reading: Reading, prepared: Prepared) -> list[list[Any]] | None:
    """The values of few nodes, by column."""
    chain, references = prepared.chain, prepared.references
    if chain is None or references is None:
        return None
    pickers = _pickers(reading, references)
    view = reading.view
    image = view.images.get(chain.first_table)
    # Held on to until the end: nobody can take the keys out of memory meanwhile.
    keys = None if image is None else image.keys_at_hand()
    if pickers is None or keys is None or not all(each in view.edge_tables for each in chain.edge_tables):
        return None
    access = chain.access(reading)
    if access is None or not _in_memory(access, chain.steps):
        return None
    counts, nodes = chain.run(reading, access.indexes)
    if len(counts) < chain.steps or max(counts) > AT_HAND_NODES_MAX:
        return None
    wanted = few_wanted(prepared.plan, nodes)
    size = 0
    for picker in pickers:
        for ordinal in wanted:
            size += picker.size(ordinal)
            if size > AT_HAND_BYTES_MAX:
                return None
    return [picker.pick(wanted) for picker in pickers]


def _in_memory(access: ChainAccess, steps: int) -> bool:
    """Whether every edge it follows is in an index that needs no correction."""
    return access.steps == steps and all(isinstance(each, Neighbours) for each in access.indexes)


def _pickers(reading: Reading, references: References) -> Sequence[Picker] | None:
    """What gives the values of each column; None when one is not in memory."""
    found: list[Picker] = []
    for _, owner, column in references:
        image = reading.view.images.get(owner.table_key)
        picker = None if image is None else image.picker_at_hand(column)
        if picker is None:
            return None
        found.append(picker)
    return found
