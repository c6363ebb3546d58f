"""Edges that a record names by its ends: an upsert of a type that is unique by them."""

import dataclasses

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from omnigraph.arrays.key_segments import KeySegment
from omnigraph.arrays.keys import hash_keys, string_array
from omnigraph.catalog.canonical import unique_tuples
from omnigraph.catalog.schema import EdgeType
from omnigraph.pipeline.input.records import ParsedRows
from omnigraph.pipeline.plan import LoadPlan
from omnigraph.storage.fragments import open_pinned
from omnigraph.storage.tables import TableStorage


def named_by_ends(rows: ParsedRows, filled: ParsedRows, plan: LoadPlan, store: TableStorage) -> ParsedRows:
    """The records with the id of the committed edge that has their ends, where they give no id.

    `filled` are the same records with their defaults. Cost: a look-up of the sources and one of the targets,
    and one read of the edges between them, per call.
    """
    edge, target = rows.type, plan.target(rows.type)
    if not isinstance(edge, EdgeType) or edge.identity is None or target.rows == 0:
        return rows
    nameless = _true(rows.ids.is_null())
    if rows.sources is None or rows.targets is None or not nameless.any():
        return rows
    handle = open_pinned(store, target.table_key, target.location, target.branch, target.version)
    wanted = pa.array(nameless)
    addresses = np.intersect1d(
        store.addresses_of(handle, string_array(rows.sources.filter(wanted).unique()), "src"),
        store.addresses_of(handle, string_array(rows.targets.filter(wanted).unique()), "dst"),
        assume_unique=True,
    )
    if len(addresses) == 0:
        return rows
    committed = store.take(handle, addresses, ["id", *edge.identity])
    given = pa.table({"src": rows.sources, "dst": rows.targets, **filled.columns})
    place, found = places(
        unique_tuples(given, edge.identity, edge), unique_tuples(committed, edge.identity, edge)
    )
    ids = string_array(committed.column("id")).take(pa.array(np.where(found, place, 0)))
    return dataclasses.replace(rows, ids=pc.if_else(pa.array(nameless & found), ids, rows.ids))


def places(wanted: pa.StringArray, committed: pa.StringArray) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Per key of a record: the position of the committed row that has it, and whether there is one."""
    filled = string_array(wanted.fill_null(""))
    segment = KeySegment(string_array(committed.fill_null("")), np.arange(len(committed), dtype=np.uint64))
    named, where = segment.find(filled, hash_keys(filled))
    return where.astype(np.int64), np.asarray(named, np.bool_) & _true(wanted.is_valid())


def _true(condition: pa.Array) -> NDArray[np.bool_]:
    return np.asarray(condition.to_numpy(zero_copy_only=False), np.bool_)
