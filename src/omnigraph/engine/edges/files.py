"""Adjacency as cache files: the ends of a state, and its indexes per direction.

A file names the exact contents of the three tables it was made from. The ends also say at which versions and
in which order of fragments that was, so that a later process can follow them to its own state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from omnigraph.core.errors import OmnigraphError
from omnigraph.core.ids import TableKey
from omnigraph.engine.edges.endpoints import EdgeTables, Endpoints
from omnigraph.engine.edges.traverse import Incidence, Neighbours
from omnigraph.engine.tables.cache_files import mark, name_of
from omnigraph.engine.tables.layout import layout_facts, layout_of, save_layout

if TYPE_CHECKING:
    from omnigraph.arrays.pairs import Packed
    from omnigraph.engine.tables.cache_files import CacheFiles, Stored
    from omnigraph.engine.tables.images import TableImage
    from omnigraph.planning.steps import Direction


def _place(tables: EdgeTables, kind: str, direction: Direction | None) -> str:
    way = "" if direction is None else f"-{direction}"
    return f"{kind}{way}-{mark(tables.edges.handle.location)}"


def _state(tables: EdgeTables) -> str:
    """The contents of the three tables; the same wherever the graph lies."""
    return name_of(tables.key()[1:])


# --- ends ------------------------------------------------------------------------------------------------


def save_ends(files: CacheFiles, tables: EdgeTables, ends: Endpoints) -> bool:
    """Keep the ends of a state."""
    images = (tables.edges, tables.sources, tables.targets)
    for image in images:
        save_layout(files, image.handle.location, image.layout)
    facts = {"dangling": ends.dangling, "tables": [_described(image) for image in images]}
    arrays = {"sources": ends.sources, "targets": ends.targets}
    return files.save(_place(tables, "ends", None), _state(tables), facts, arrays)


def _described(image: TableImage) -> dict[str, Any]:
    return {
        "table_key": image.handle.table_key,
        "location": image.handle.location,
        "branch": image.handle.branch,
        "version": image.handle.version,
        "layout": layout_facts(image.layout),
        "contents": image.contents[1].hex(),
    }


def load_ends(files: CacheFiles, tables: EdgeTables) -> Endpoints | None:
    """The ends of exactly this state."""
    stored = files.load(_place(tables, "ends", None), _state(tables))
    if stored is None:
        return None
    return Endpoints(stored.arrays["sources"], stored.arrays["targets"], stored.facts["dangling"])


def load_base(
    files: CacheFiles, tables: EdgeTables, kind: str, direction: Direction | None
) -> EdgeTables | None:
    """The tables of a state that files have a structure of: exactly this one, or the latest other one."""
    if files.load(_place(tables, kind, direction), _state(tables)) is not None:
        return tables
    if kind != "ends":
        return None
    for stored in files.newest(_place(tables, kind, direction)):
        base = _tables_of(stored, tables)
        if base is not None:
            return base
    return None


def _tables_of(stored: Stored, now: EdgeTables) -> EdgeTables | None:
    """The tables as they were when a file was made; None when a version of them is gone."""
    images: list[TableImage] = []
    for described, image in zip(stored.facts["tables"], (now.edges, now.sources, now.targets), strict=True):
        earlier = _image_of(described, image)
        if earlier is None:
            return None
        images.append(earlier)
    return EdgeTables(images[0], images[1], images[2])


def _image_of(described: dict[str, Any], image: TableImage) -> TableImage | None:
    wanted = (described["location"], bytes.fromhex(described["contents"]))
    if image.contents == wanted:
        return image
    try:
        handle = image.storage.open_version(
            TableKey(described["table_key"]), described["location"], described["branch"], described["version"]
        )
    except OmnigraphError:
        return None  # the version was cleaned away, or its branch is gone
    earlier = image.at(handle, layout_of(described["layout"]))
    return earlier if earlier.contents == wanted else None


# --- indexes ---------------------------------------------------------------------------------------------


def save_neighbours(
    files: CacheFiles, tables: EdgeTables, direction: Direction, index: Neighbours, repeats: Packed
) -> bool:
    """Keep the neighbours of a state."""
    arrays = {"offsets": index.offsets, "tails": index.tails, "repeats": repeats}
    return files.save(_place(tables, "neighbours", direction), _state(tables), {}, arrays)


def load_neighbours(
    files: CacheFiles, tables: EdgeTables, direction: Direction
) -> tuple[Neighbours, Packed] | None:
    """The neighbours of exactly this state, and the pairs that several edges make."""
    stored = files.load(_place(tables, "neighbours", direction), _state(tables))
    if stored is None:
        return None
    arrays = stored.arrays
    return Neighbours(arrays["offsets"], arrays["tails"]), arrays["repeats"]


def save_incidence(files: CacheFiles, tables: EdgeTables, direction: Direction, index: Incidence) -> bool:
    """Keep the edges of a state."""
    arrays = {"offsets": index.offsets, "tails": index.tails, "edges": index.edges}
    return files.save(_place(tables, "incidence", direction), _state(tables), {}, arrays)


def load_incidence(files: CacheFiles, tables: EdgeTables, direction: Direction) -> Incidence | None:
    """The edges of exactly this state."""
    stored = files.load(_place(tables, "incidence", direction), _state(tables))
    if stored is None:
        return None
    return Incidence(stored.arrays["offsets"], stored.arrays["tails"], stored.arrays["edges"])
