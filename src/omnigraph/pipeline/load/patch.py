"""Patch: properties a record does not mention keep the value the committed row has."""

import dataclasses

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from omnigraph.arrays.keys import string_array
from omnigraph.catalog.canonical import node_ids
from omnigraph.catalog.schema import NodeType
from omnigraph.pipeline.input.records import ParsedRows
from omnigraph.pipeline.load.known_edges import places
from omnigraph.pipeline.plan import LoadPlan
from omnigraph.storage.fragments import open_pinned
from omnigraph.storage.tables import TableStorage


def filled_from_committed(rows: ParsedRows, plan: LoadPlan, store: TableStorage) -> ParsedRows:
    """The rows with every unmentioned property of an existing id taken from the committed row.

    Properties filled in are no longer marked absent, so that defaults only reach new rows.
    Cost: one lookup of the ids and one read of the rows found, per call.
    """
    ids = _known_ids(rows)
    asked = ids.drop_null()
    target = plan.target(rows.type)
    if len(asked) == 0 or target.rows == 0 or not any(flags.any() for flags in rows.absent.values()):
        return rows
    handle = open_pinned(store, target.table_key, target.location, target.branch, target.version)
    addresses = store.addresses_of(handle, asked)
    if len(addresses) == 0:
        return rows
    names = ["id", *(name for name, flags in rows.absent.items() if flags.any())]
    committed = store.take(handle, addresses, names)
    place, found = places(ids, string_array(committed.column("id")))
    columns, absent = dict(rows.columns), dict(rows.absent)
    at = pa.array(np.where(found, place, 0).astype(np.int64))
    for name in names[1:]:
        from_committed = rows.absent[name] & found
        if not from_committed.any():
            continue
        former = committed.column(name).combine_chunks().take(at).cast(columns[name].type)
        columns[name] = _chosen(from_committed, former, columns[name])
        absent[name] = rows.absent[name] & ~found
    return dataclasses.replace(rows, columns=columns, absent=absent)


def _known_ids(rows: ParsedRows) -> pa.StringArray:
    if isinstance(rows.type, NodeType) and rows.type.key:
        return node_ids(pa.table(dict(rows.columns)), rows.type)
    return rows.ids


def _chosen(mask: NDArray[np.bool_], former: pa.Array, given: pa.Array) -> pa.Array:
    """`former` where the mask is true; by position, because a nested type cannot be chosen by condition."""
    both = pa.concat_arrays([given, former])
    count = len(given)
    return both.take(pa.array(np.where(mask, np.arange(count) + count, np.arange(count))))
