"""Which committed key columns decide about a load."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from omnigraph.catalog.schema import EdgeType
from omnigraph.core.ids import node_table_key
from omnigraph.pipeline.plan import LoadMode, LoadPlan, constrained


@dataclass(slots=True)
class TableNeed:
    """What the checks want to know about the committed rows of one table."""

    ids: bool = False
    unique: bool = False
    ends: set[str] = field(default_factory=set[str])


def needs(plan: LoadPlan, touched: Iterable[str], given_ids: Mapping[str, int]) -> dict[str, TableNeed]:
    """Which committed key columns decide about this load. A table without rows is never read."""
    wanted: dict[str, TableNeed] = {}
    keys = set(touched)
    overwrite = plan.mode is LoadMode.OVERWRITE

    def need(key: str) -> TableNeed:
        return wanted.setdefault(key, TableNeed())

    for key in keys:
        table_type = plan.catalog.type_of(key)
        if not overwrite:
            need(key).ids |= given_ids.get(key, 0) > 0
            need(key).unique |= bool(table_type.unique)
        if isinstance(table_type, EdgeType):
            if constrained(table_type):
                need(key).ends.add("src")
            for name in (table_type.source, table_type.target):
                node = node_table_key(name)
                if not (overwrite and node in keys):
                    need(node).ids = True
    if overwrite:
        for edge in plan.catalog.edges.values():
            if edge.table_key in keys:
                continue
            for side, name in (("src", edge.source), ("dst", edge.target)):
                if node_table_key(name) in keys:
                    need(edge.table_key).ends.add(side)
    return {key: each for key, each in wanted.items() if each.ids or each.unique or each.ends}
