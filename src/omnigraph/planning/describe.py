"""What a query returns, takes, reads and writes, said without running it."""

from typing import Any, Final

from omnigraph.catalog.schema import Catalog, EdgeType, NodeType
from omnigraph.catalog.types import PropertyType, ScalarKind
from omnigraph.core.late_dataclass import dataclass
from omnigraph.planning import ir

_KINDS: Final = {
    ScalarKind.STRING: "string",
    ScalarKind.BOOL: "bool",
    ScalarKind.I32: "int",
    ScalarKind.U32: "int",
    ScalarKind.I64: "bigint",
    ScalarKind.U64: "bigint",
    ScalarKind.F32: "float",
    ScalarKind.F64: "float",
    ScalarKind.DATE: "date",
    ScalarKind.DATETIME: "datetime",
    ScalarKind.BLOB: "blob",
}


@dataclass(frozen=True, slots=True)
class FieldDescription:
    """A result column or a parameter in the words of the service: `kind`, of elements `item_kind`."""

    name: str
    kind: str
    nullable: bool
    item_kind: str | None = None
    vector_dim: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """The JSON form, without absent members."""
        form: dict[str, Any] = {"name": self.name, "kind": self.kind}
        if self.item_kind is not None:
            form["item_kind"] = self.item_kind
        if self.vector_dim is not None:
            form["vector_dim"] = self.vector_dim
        form["nullable"] = self.nullable
        return form


@dataclass(frozen=True, slots=True)
class Operation:
    """Result columns in order, and the types read and written: nodes before edges, each sorted by name."""

    result: tuple[FieldDescription, ...]
    reads: tuple[NodeType | EdgeType, ...]
    writes: tuple[NodeType | EdgeType, ...]

    def to_dict(self) -> dict[str, Any]:
        """The `operation` object of lint and of the catalogue of stored queries."""
        return {
            "result": [column.to_dict() for column in self.result],
            "reads": [_type_form(type_) for type_ in self.reads],
            "writes": [_type_form(type_) for type_ in self.writes],
        }


def _type_form(type_: NodeType | EdgeType) -> dict[str, str]:
    return {"kind": type_.kind.value, "type_name": type_.name}


def describe(plan: ir.Plan, catalog: Catalog) -> Operation:
    """The operation descriptor of a plan."""
    match plan:
        case ir.ReadPlan():
            result = tuple(describe_field(c.name, c.type, nullable=c.nullable) for c in plan.columns)
            return Operation(result, _read_types(plan.match, catalog).in_order(), ())
        case ir.MutationPlan():
            return _describe_mutation(plan, catalog)


def describe_field(name: str, type_: PropertyType, *, nullable: bool) -> FieldDescription:
    """One typed name."""
    if type_.vector_dim is not None:
        return FieldDescription(name, "vector", nullable, vector_dim=type_.vector_dim)
    if type_.is_list:
        return FieldDescription(name, "list", nullable, item_kind=_KINDS[type_.kind])
    return FieldDescription(name, _KINDS[type_.kind], nullable)


class _Types(dict[str, NodeType | EdgeType]):
    """Types by table: hashing a whole type would cost as much as it has properties."""

    def note(self, *types: NodeType | EdgeType) -> None:
        for type_ in types:
            self[type_.table_key] = type_

    def in_order(self) -> tuple[NodeType | EdgeType, ...]:
        return tuple(sorted(self.values(), key=lambda type_: (isinstance(type_, EdgeType), type_.name)))


def _read_types(match: ir.Block, catalog: Catalog) -> _Types:
    found = _Types()
    for block in match.walk():
        found.note(*(node.type for node in block.nodes))
        for traversal in block.traversals:
            found.note(traversal.edge, *_endpoints(traversal.edge, catalog))
    return found


def _endpoints(edge: EdgeType, catalog: Catalog) -> tuple[NodeType, NodeType]:
    return catalog.nodes[edge.source], catalog.nodes[edge.target]


def _describe_mutation(plan: ir.MutationPlan, catalog: Catalog) -> Operation:
    reads, writes = _Types(), _Types()
    for statement in plan.statements:
        owner = statement.type
        writes.note(owner)
        match statement:
            case ir.InsertOp() if isinstance(owner, EdgeType):
                reads.note(*_endpoints(owner, catalog))
            case ir.DeleteOp() if isinstance(owner, NodeType):
                writes.note(*catalog.edges_of(owner.name))
            case _:
                pass
    reads.update(writes)
    return Operation((), reads.in_order(), writes.in_order())
