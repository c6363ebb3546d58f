"""The ends of edges as ids: a node is named by its id, or by its key in the key's own type.

The rule for single values stands in `planning.keys`; here it is applied to whole columns.
"""

from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from omnigraph.catalog.canonical import canonical_text
from omnigraph.catalog.schema import Catalog, EdgeType, Property
from omnigraph.catalog.types import INTEGER_BOUNDS
from omnigraph.pipeline.input.csv_cells import from_cells
from omnigraph.planning.keys import own_type

_CANONICAL_WHOLE: Final = r"^(0|-?[1-9]\d*)$"


@dataclass(frozen=True, slots=True)
class EdgeKeys:
    """The key of the nodes at each end, where it is one property and no String."""

    source: Property | None
    target: Property | None

    @classmethod
    def of(cls, edge: EdgeType, catalog: Catalog) -> "EdgeKeys":
        """What the ends of this type are named by."""
        return cls(own_key(catalog, edge.source), own_key(catalog, edge.target))

    @property
    def typed(self) -> bool:
        """Whether an end may be something else than a text."""
        return self.source is not None or self.target is not None


def own_key(catalog: Catalog, node_name: str) -> Property | None:
    """The key property of a node type whose ids are the texts of something else than texts."""
    node = catalog.nodes[node_name]
    return None if own_type(node) is None else node.property_named(node.key[0])


def ids_of_texts(texts: pa.StringArray, key: Property | None) -> pa.StringArray:
    """The ids that texts name: the id of the key that a text spells, else the text itself."""
    if key is None or not len(texts):
        return texts
    if key.type.kind in INTEGER_BOUNDS:
        regular = pc.match_substring_regex(texts, _CANONICAL_WHOLE)
        if pc.all(regular).as_py() is not False:  # most are, and reading them costs more than looking
            return texts
    return pc.coalesce(canonical_text(from_cells(texts, key).column, key.type), texts)
