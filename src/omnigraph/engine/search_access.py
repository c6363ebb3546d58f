"""How a search gets its answer: from memory, from a pass over the table, or from an index of the table.

The choice decides the speed only. What an index cannot answer exactly as the language says is not asked of
it: its relevance counts deleted documents and knows nothing of fragments it does not cover, it has no
phrases, and its near spellings are cut off; so those are always worked out from the text itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

import pyarrow.compute as pc

from omnigraph.engine.search_segments import are_ready
from omnigraph.engine.search_vectors import VECTORS
from omnigraph.storage.indexes import IndexKind
from omnigraph.storage.search import VectorProbe

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from omnigraph.engine.images import Ordinals, TableImage
    from omnigraph.engine.reading import Reading
    from omnigraph.engine.search_segments import SegmentKind
    from omnigraph.planning import ir
    from omnigraph.storage.indexes import IndexCoverage

MEMORY_SHARE: Final = 8
"""One column may fill the cache budget divided by this; a larger one is read in parts each time."""
EXACT_ROWS_MAX: Final = 20_000
"""Up to so many candidates comparing all of them is faster than asking an index."""
INDEX_USES_MAX: Final = 2
"""Text searches of one state that an index answers before its text is analysed and kept in memory."""
USES_KEPT_MAX: Final = 4096
POSTINGS_BYTES_PER_LETTER: Final = 4
SAMPLE_ROWS: Final = 512
REFINE: Final = 4
"""An index is asked for this many times the rows wanted; exact distances choose among them."""


class Path(StrEnum):
    """Where an answer comes from."""

    MEMORY = "memory"
    PASS = "pass over the table"  # noqa: S105
    INDEX = "index"


@dataclass(frozen=True, slots=True)
class Access:
    """The way chosen for one search, and what the index on its column covers."""

    path: Path
    how: str
    why: str
    exact: bool
    coverage: dict[str, Any]


@dataclass(slots=True)
class _Uses:
    """How often an index answered for a state of a column."""

    counts: dict[Any, int] = field(default_factory=dict[Any, int])
    nbytes: int = 0


def coverage_of(
    image: TableImage, column: str, kind: IndexKind
) -> tuple[IndexCoverage | None, dict[str, Any]]:
    """The index of a column that serves searches, and its coverage in words. Cost: metadata."""
    named = {IndexKind.INVERTED: "full-text", IndexKind.VECTOR: "vector"}[kind]
    for index in image.storage.index_coverage(image.handle, column):
        if _is_kind(index, kind):
            total = len(index.covered) + len(index.uncovered)
            if not index.uncovered:
                return index, {"state": "Indexed", "index": index.name}
            reason = f"{len(index.uncovered)} of {total} fragments are not covered by {index.name}"
            return index, {"state": "Degraded", "index": index.name, "reason": reason}
    return None, {"state": "Degraded", "reason": f"no {named} index on the column"}


def _is_kind(index: IndexCoverage, kind: IndexKind) -> bool:
    name = index.kind.upper()
    return name.startswith("IVF") if kind is IndexKind.VECTOR else name == kind.value


def vector_access(reading: Reading, reference: ir.PropertyRef, candidates: int) -> Access:
    """How the nearest of so many candidates are found."""
    image, column = reading.image(reference.owner), reference.prop.name
    index, coverage = coverage_of(image, column, IndexKind.VECTOR)
    probes = reading.session.settings.vector_probes
    if probes is not None and index is not None and index.covered and candidates > EXACT_ROWS_MAX:
        parts = image.storage.search.partitions(image.handle, index.name)
        if probes < parts:
            return Access(
                Path.INDEX,
                f"index {index.name}, {probes} of {parts} parts",
                f"vector_probes is {probes}; the nearest found are compared exactly",
                exact=False,
                coverage=coverage,
            )
    if candidates <= EXACT_ROWS_MAX:
        why = f"{candidates} vectors are compared"
    elif probes is None:
        why = f"{candidates} vectors are compared; an index would have to look at all of them too"
    else:
        why = f"{candidates} vectors are compared; no index of more than {probes} parts is there"
    size = image.row_count * (reference.prop.type.vector_dim or 0) * 4
    if _fits(reading, size) or are_ready(reading.caches.derived, image, column, VECTORS):
        return Access(Path.MEMORY, "vectors in memory", why, exact=True, coverage=coverage)
    how = f"a pass over {size >> 20} MiB of vectors"
    return Access(Path.PASS, how, f"{why}; they are too many to keep", exact=True, coverage=coverage)


def text_access(
    reading: Reading,
    reference: ir.PropertyRef,
    kind: SegmentKind[Any],
    *,
    membership: bool,
    used: bool = False,
) -> Access:
    """How a text search is answered. `membership`: it only asks which rows hold some of the tokens.

    `used`: the choice is about to be acted on, which counts.
    """
    image, column = reading.image(reference.owner), reference.prop.name
    index, coverage = coverage_of(image, column, IndexKind.INVERTED)
    rows = f"all {image.row_count} rows"
    if are_ready(reading.caches.derived, image, column, kind):
        return Access(
            Path.MEMORY, "text in memory", f"it is there, for {rows}", exact=True, coverage=coverage
        )
    fits = _fits(reading, _text_bytes(image, column))
    large = image.row_count > EXACT_ROWS_MAX
    if (membership and large and index is not None and index.covered) and (
        not fits or _uses(reading, image, column, count=used) < INDEX_USES_MAX
    ):
        why = "the text is not in memory" if fits else "the text is too much to keep"
        return Access(Path.INDEX, f"index {index.name}", why, exact=True, coverage=coverage)
    if fits:
        return Access(
            Path.MEMORY,
            "text in memory",
            f"analysed now for {rows}, then kept",
            exact=True,
            coverage=coverage,
        )
    why = f"the text of {rows} is too much to keep"
    return Access(Path.PASS, "a pass over the text", why, exact=True, coverage=coverage)


def indexed_nearest(
    reading: Reading,
    reference: ir.PropertyRef,
    query: NDArray[np.float32],
    wanted: Ordinals | None,
    depth: int,
) -> Ordinals:
    """Rows an index finds near a vector; more than wanted, without exact order."""
    image = reading.image(reference.owner)
    only = None if wanted is None else image.to_addresses(wanted)
    probe = VectorProbe(
        reference.prop.name, query, depth * REFINE, reading.session.settings.vector_probes or 1, only
    )
    return image.from_addresses(image.storage.search.nearest(image.handle, probe))


def indexed_matches(reading: Reading, reference: ir.PropertyRef, text: str) -> Ordinals:
    """The rows that hold a token of the text, as a full-text index finds them."""
    image = reading.image(reference.owner)
    return image.from_addresses(image.storage.search.matches(image.handle, reference.prop.name, text))


def _fits(reading: Reading, size: int) -> bool:
    return size <= reading.session.settings.cache_bytes // MEMORY_SHARE


def _text_bytes(image: TableImage, column: str) -> int:
    """What the postings of a column would hold, guessed from the first rows."""
    if image.row_count <= EXACT_ROWS_MAX:
        return 0
    sample = image.storage.read(image.handle, columns=[column], limit=SAMPLE_ROWS).column(column)
    letters = pc.mean(pc.binary_length(sample)).as_py() or 0
    return int(letters * image.row_count * POSTINGS_BYTES_PER_LETTER)


def _uses(reading: Reading, image: TableImage, column: str, *, count: bool) -> int:
    uses = reading.caches.derived.get(("uses of text indexes",), _Uses, _Uses)
    key = (image.contents, column)
    so_far = uses.counts.get(key, 0)
    if count:
        if len(uses.counts) >= USES_KEPT_MAX:
            uses.counts.clear()  # a forgotten count costs one more search by index
        uses.counts[key] = so_far + 1
    return so_far
