"""How a search gets its answer: from memory, from a pass over the table, or from an index of the table.

The choice decides the speed only. What an index cannot answer exactly as the language says is not asked of
it: its relevance counts deleted documents and knows nothing of fragments it does not cover, and its near
spellings are cut off; so those are always worked out from the text itself. It has no phrases either, but it
can name the rows with all their tokens.
"""

from __future__ import annotations

from dataclasses import field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

import pyarrow.compute as pc

from omnigraph.catalog.texts import is_indexable
from omnigraph.core.late_dataclass import dataclass
from omnigraph.core.limits import MIB
from omnigraph.engine.search.fulltext import texts
from omnigraph.engine.search.segments import are_kept, are_ready
from omnigraph.engine.search.vectors import VECTORS
from omnigraph.language.query_tree import Function
from omnigraph.planning import ir
from omnigraph.planning.access import Choice
from omnigraph.storage.search import VectorProbe

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from omnigraph.arrays.types import Ordinals
    from omnigraph.catalog.schema import Property
    from omnigraph.engine.read.reading import Reading
    from omnigraph.engine.tables.images import TableImage
    from omnigraph.storage.indexes import IndexCoverage

MEMORY_SHARE: Final = 2
"""One column may fill the cache of derived structures divided by this; a larger one is read in parts."""
FETCHED_ROWS_MAX: Final = 256
"""Up to this many vectors are fetched by themselves when the column is not in memory."""
EXACT_ROWS_MAX: Final = 20_000
"""Up to this many candidates, comparing all of them is faster than asking an index."""
INDEX_USES_MAX: Final = 2
"""How many text searches of one state an index answers before its text is analysed and kept in memory."""
COMPARED_BYTES_MAX: Final = 64 * MIB
"""Up to this many bytes of vectors in memory are compared in the time an index takes to answer at all."""
USES_KEPT_MAX: Final = 4096
POSTINGS_BYTES_PER_LETTER: Final = 4
SAMPLE_ROWS: Final = 512
INDEXED_FUNCTIONS: Final = frozenset({Function.SEARCH, Function.MATCH_TEXT})
"""Text searches that a full-text index answers, alone or with a look at the rows it names."""
SPARE_ROWS: Final = 8
"""An index is asked for at least this many more rows than wanted: it compares in single precision."""


class Path(StrEnum):
    """Where an answer comes from."""

    MEMORY = "memory"
    PASS = "pass over the table"  # noqa: S105
    FETCH = "fetch"
    INDEX = "index"


@dataclass(frozen=True, slots=True)
class Access:
    """One way to answer a search."""

    path: Path
    how: str
    why: str
    exact: bool = True
    """Whether the answer is certainly the one brute force gives."""


@dataclass(slots=True)
class _Uses:
    """How often an index answered for a state of a column."""

    counts: dict[Any, int] = field(default_factory=dict[Any, int])
    nbytes: int = 0


@dataclass(frozen=True, slots=True)
class _Partitions:
    """Into how many parts a vector index divides its rows."""

    number: int
    nbytes: int = 8


def search_index(image: TableImage, prop: Property) -> IndexCoverage | None:
    """The index of a property that could serve searches. Cost: metadata.

    A full-text index that makes other words than the schema says, because it was built for another one,
    answers nothing.
    """
    for index in image.indexes(prop.name):
        if prop.type.is_vector:
            if index.kind.upper().startswith("IVF"):
                return index
        elif is_indexable(prop.text) and index.makes_words(prop.text):
            return index
    return None


def coverage_of(reading: Reading, reference: ir.PropertyRef) -> dict[str, Any]:
    """What the search index of a property covers, as `explain` shows it.

    An exact search of vectors and a search of folded words use none, so they miss none.
    """
    image, prop = reading.image(reference.owner), reference.prop
    index = search_index(image, prop)
    if index is None or index.uncovered:
        if prop.type.is_vector and reading.session.settings.vector_probes is None:
            return {"state": "NotNeeded", "reason": "exact search"}
        if not prop.type.is_vector and not is_indexable(prop.text):
            return {"state": "NotNeeded", "reason": f"{prop.text} words are searched in memory"}
    if index is None:
        named = "vector index" if prop.type.is_vector else f"full-text index of {prop.text} words"
        return {"state": "Degraded", "reason": f"no {named} on {prop.name}"}
    if not index.uncovered:
        return {"state": "Indexed", "index": index.name}
    total = len(index.covered) + len(index.uncovered)
    reason = f"{len(index.uncovered)} of {total} fragments are not covered"
    return {"state": "Degraded", "index": index.name, "reason": reason}


def search_choice(reading: Reading, search: ir.SearchExpr) -> Choice[Access]:
    """How a search is answered, by the number of candidates that are compared."""
    if isinstance(search, ir.Nearest):
        return _vector_choice(reading, search.property)
    membership = isinstance(search, ir.Search) and search.function in INDEXED_FUNCTIONS
    return Choice.of(_text_access(reading, search.property, membership=membership))


def exact_way(choice: Choice[Access], candidates: int) -> Access:
    """The way to compare every one of this many candidates."""
    exact = [(rows_max, way) for rows_max, way in choice.ways if way.exact]
    return next(
        (way for rows_max, way in exact if rows_max is None or candidates <= rows_max),
        exact[-1][1],
    )


def _vector_choice(reading: Reading, reference: ir.PropertyRef) -> Choice[Access]:
    image, column = reading.image(reference.owner), reference.prop.name
    probes = reading.session.settings.vector_probes
    index = None if probes is None else search_index(image, reference.prop)
    if probes is None or index is None or not index.covered:
        return _exact_choice(reading, reference)
    parts = _partitions(reading, image, index)
    if probes >= parts:
        return _exact_choice(reading, reference)
    exact = _exact_choice(reading, reference)
    rows_max = EXACT_ROWS_MAX
    if are_ready(reading.caches.derived, image, column, VECTORS):
        # Comparing those in memory is as fast as asking the index.
        rows_max = max(rows_max, COMPARED_BYTES_MAX // (4 * (reference.prop.type.vector_dim or 1)))
    approximate = Access(
        Path.INDEX,
        f"index {index.name}, {probes} of {parts} parts",
        f"vector_probes is {probes}; what is found is compared exactly",
        exact=False,
    )
    few = tuple((rows_max if most is None else most, way) for most, way in exact.ways)
    return Choice((*few, (None, approximate)))


def _exact_choice(reading: Reading, reference: ir.PropertyRef) -> Choice[Access]:
    """How the vectors of candidates are compared, each of them."""
    image, column = reading.image(reference.owner), reference.prop.name
    why = "every candidate is compared"
    if are_ready(reading.caches.derived, image, column, VECTORS):
        return Choice.of(Access(Path.MEMORY, "vectors in memory", why))
    size = image.row_count * (reference.prop.type.vector_dim or 0) * 4
    if _fits(reading, size):
        many = Access(Path.MEMORY, "vectors in memory", f"{why}; read now, then kept")
    else:
        how = f"a pass over {size >> 20} MiB of vectors"
        many = Access(Path.PASS, how, f"{why}; they are too many to keep")
    if image.row_count <= EXACT_ROWS_MAX:
        return Choice.of(many)
    few = Access(Path.FETCH, "vectors of the candidates alone", why)
    return Choice(((FETCHED_ROWS_MAX, few), (None, many)))


def _text_access(reading: Reading, reference: ir.PropertyRef, *, membership: bool) -> Access:
    """How a text search is answered. `membership`: it only asks which rows hold some of the tokens."""
    image, column = reading.image(reference.owner), reference.prop.name
    rows, kind = f"all {image.row_count} rows", texts(reference.prop.text)
    if are_ready(reading.caches.derived, image, column, kind):
        return Access(Path.MEMORY, "text in memory", f"it is there, for {rows}")
    if image.row_count <= EXACT_ROWS_MAX:
        return Access(Path.MEMORY, "text in memory", f"analysed now, for {rows}")
    if are_kept(image, column, kind):
        return Access(Path.MEMORY, "text in a mapped file", f"it is there, for {rows}")
    fits = _fits(reading, _text_bytes(image, column))
    index = search_index(image, reference.prop) if membership else None
    if (index is not None and index.covered) and (
        not fits or _uses(reading).counts.get((image.contents, column), 0) < INDEX_USES_MAX
    ):
        why = "the text is not in memory" if fits else "the text is too much to keep"
        return Access(Path.INDEX, f"index {index.name}", f"{why}; finds {rows}")
    if fits:
        return Access(Path.MEMORY, "text in memory", f"analysed now for {rows}, then kept")
    return Access(Path.PASS, "a pass over the text", f"the text of {rows} is too much to keep")


def indexed_nearest(
    reading: Reading,
    reference: ir.PropertyRef,
    query: NDArray[np.float32],
    wanted: Ordinals | None,
    depth: int,
) -> tuple[Ordinals, Any]:
    """Rows an index finds near a vector, some more than wanted, and their vectors."""
    image = reading.image(reference.owner)
    only = None if wanted is None else image.to_addresses(wanted)
    probes = reading.session.settings.vector_probes or 1
    probe = VectorProbe(reference.prop.name, query, depth + max(depth, SPARE_ROWS), probes, only)
    addresses, vectors = image.storage.search.nearest(image.handle, probe)
    return image.from_addresses(addresses), vectors


def indexed_matches(
    reading: Reading, reference: ir.PropertyRef, text: str, *, every_token: bool = False
) -> Ordinals:
    """The rows that hold a token of the text, or every one, as a full-text index finds them. It counts."""
    image, column = reading.image(reference.owner), reference.prop.name
    counts, key = _uses(reading).counts, (image.contents, column)
    if len(counts) >= USES_KEPT_MAX:
        counts.clear()  # a forgotten count costs one more search by index
    counts[key] = counts.get(key, 0) + 1
    found = image.storage.search.matches(image.handle, column, text, every_token=every_token)
    return image.from_addresses(found)


def _partitions(reading: Reading, image: TableImage, index: IndexCoverage) -> int:
    handle = image.handle
    key = ("partitions", image.identity, handle.location, handle.branch, handle.version, index.name)

    def look() -> _Partitions:
        return _Partitions(image.storage.search.partitions(handle, index.name))

    return reading.caches.derived.get(key, _Partitions, look).number


def _fits(reading: Reading, size: int) -> bool:
    return size <= reading.caches.derived.bytes_max // MEMORY_SHARE


def _text_bytes(image: TableImage, column: str) -> int:
    """What the postings of a column would hold, guessed from the first rows."""
    sample = image.storage.read(image.handle, columns=[column], limit=SAMPLE_ROWS).column(column)
    letters = pc.mean(pc.binary_length(sample)).as_py() or 0
    return int(letters * image.row_count * POSTINGS_BYTES_PER_LETTER)


def _uses(reading: Reading) -> _Uses:
    return reading.caches.derived.get(("uses of text indexes",), _Uses, _Uses)
