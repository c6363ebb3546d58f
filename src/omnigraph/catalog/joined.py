"""Two schemas of one graph as one: what names of the first mean, and names that only the second has."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TypeVar

from omnigraph.catalog.schema import Catalog, EdgeType, NodeType, TableType

Table = TypeVar("Table", NodeType, EdgeType)


def joined(own: Catalog, accepted: Catalog) -> Catalog:
    """The schema of a state, and by the names of the accepted one what the state calls otherwise or lacks.

    A name of the state's own schema keeps its meaning. Types and properties are the same where their
    identities are: such a type is found under both names and is called by its own, such a property is there
    twice. For reading only.
    """
    called = _own_names(own.nodes.values(), accepted.nodes.values())
    nodes = _joined_types(own.nodes, accepted.nodes.values())
    edges = _joined_types(own.edges, (_between(called, each) for each in accepted.edges.values()))
    known = {name: each for name, each in edges.items() if {each.source, each.target} <= set(nodes)}
    return replace(own, nodes=nodes, edges=known, interfaces={**accepted.interfaces, **own.interfaces})


def _own_names(own: Iterable[TableType], accepted: Iterable[TableType]) -> dict[str, str]:
    """What the state calls the types of the accepted schema that it has."""
    names = {each.type_id: each.name for each in own}
    return {each.name: names[each.type_id] for each in accepted if each.type_id in names}


def _between(called: Mapping[str, str], edge: EdgeType) -> EdgeType:
    return replace(
        edge, source=called.get(edge.source, edge.source), target=called.get(edge.target, edge.target)
    )


def _joined_types(own: Mapping[str, Table], accepted: Iterable[Table]) -> dict[str, Table]:
    by_identity = {each.type_id: each for each in own.values()}
    found = dict(own)
    for each in accepted:
        same = by_identity.get(each.type_id)
        if same is None:
            found.setdefault(each.name, each)
            continue
        both = _with_properties(same, each)
        found[same.name] = both
        if each.name not in own:
            found[each.name] = both
    return dict(sorted(found.items()))


def _with_properties(own: Table, accepted: Table) -> Table:
    """Every row of the state may lack what only the accepted type has: it is null then."""
    more = [replace(each, nullable=True) for each in accepted.properties if each.name not in own.by_name]
    if not more:
        return own
    return replace(own, properties=tuple(sorted((*own.properties, *more), key=lambda each: each.name)))
