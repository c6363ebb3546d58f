"""The compiled schema: frozen values that every room above reads.

Names are labels; `type_id`, `property_id` and `incarnation_id` are the stable identities. The values hold no
reference to the text they were compiled from, pickle small, and are safe to share between threads.
"""

from __future__ import annotations

from dataclasses import field
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from omnigraph.catalog.texts import PLAIN, is_indexable
from omnigraph.catalog.types import IndexKind, PropertyType, arrow_type, node_prop_index_kind
from omnigraph.core.late_dataclass import dataclass

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Mapping
    from decimal import Decimal

    import pyarrow as pa


class TypeKind(StrEnum):
    """The three namespaces of a schema."""

    INTERFACE = "interface"
    NODE = "node"
    EDGE = "edge"


class ConstraintKind(StrEnum):
    """Constraints over properties; `@card` is a fact of the edge itself."""

    KEY = "key"
    UNIQUE = "unique"
    INDEX = "index"
    RANGE = "range"
    CHECK = "check"


class ConstraintForm(StrEnum):
    """Where a constraint was written. Part of the shape: moving it is a schema change."""

    PROPERTY = "property"
    BODY = "body"


@dataclass(frozen=True, slots=True)
class Embedding:
    """`@embed`: the vector was computed from `source`, by `model` when recorded."""

    source: str
    model: str | None = None


@dataclass(frozen=True, slots=True)
class Annotation:
    """An annotation without effect, kept as metadata. Values are text as the schema spells them."""

    name: str
    value: str | None = None
    keywords: tuple[tuple[str, str], ...] = ()


DefaultValue: TypeAlias = "str | bool | int | float | dt.date | dt.datetime"


@dataclass(frozen=True, slots=True)
class Default:
    """`@default`: what an omitted property takes on insert and on load; an explicit null does not take it."""

    value: DefaultValue


@dataclass(frozen=True, slots=True)
class Property:
    """One declared property of a type, after interface injection."""

    name: str
    property_id: int
    type: PropertyType
    nullable: bool
    default: Default | None = None
    embed: Embedding | None = None
    description: str | None = None
    annotations: tuple[Annotation, ...] = ()
    inherited_from: tuple[str, ...] = ()
    """The interfaces that injected the property; empty when the type declares it itself."""
    text: str = PLAIN
    """How its text becomes words for search, one of `TEXT_ANALYSES`."""

    @property
    def required(self) -> bool:
        """True when a row without a value for it is an error."""
        return not self.nullable

    @property
    def type_text(self) -> str:
        """The type as a schema spells it, with `?` when nullable."""
        return self.type.text(nullable=self.nullable)

    @property
    def enum_values(self) -> tuple[str, ...] | None:
        """The allowed values of an enum, sorted; None for other types."""
        return self.type.enum_values

    def arrow_field(self) -> pa.Field:
        """The column of this property."""
        import pyarrow as pa  # noqa: PLC0415

        return pa.field(self.name, arrow_type(self.type), nullable=self.nullable)


@dataclass(frozen=True, slots=True)
class RangeRule:
    """`@range`: inclusive bounds, compared exactly. At least one bound is set and minimum <= maximum."""

    property: str
    minimum: Decimal | None
    maximum: Decimal | None


@dataclass(frozen=True, slots=True)
class CheckRule:
    """`@check`: an RE2 pattern searched for anywhere in the value."""

    property: str
    pattern: str


@dataclass(frozen=True, slots=True)
class Constraint:
    """One declared constraint. `properties` is a set in name order; on an edge also `src` and `dst`."""

    kind: ConstraintKind
    properties: tuple[str, ...]
    form: ConstraintForm
    range: RangeRule | None = None
    check: CheckRule | None = None


@dataclass(frozen=True, slots=True)
class IndexSpec:
    """One physical index that a table should have. One column each; names are fixed."""

    column: str
    kind: IndexKind
    text: str = PLAIN
    """How a full-text index makes words."""

    @property
    def name(self) -> str:
        """`<column>_btree`, `<column>_fts` or `<column>_vec`."""
        match self.kind:
            case IndexKind.BTREE:
                suffix = "btree"
            case IndexKind.INVERTED:
                suffix = "fts"
            case IndexKind.VECTOR:
                suffix = "vec"
        return f"{self.column}_{suffix}"


@dataclass(frozen=True)
class _Declared:
    """What all declared types share. Not slotted: derived facts are computed once and kept."""

    name: str
    type_id: int
    properties: tuple[Property, ...] = ()
    """In ascending byte order of the names: the column order."""

    @cached_property
    def by_name(self) -> Mapping[str, Property]:
        """The properties by name."""
        return {prop.name: prop for prop in self.properties}

    def property_named(self, name: str) -> Property:
        """The property called `name`; KeyError when the type has none."""
        return self.by_name[name]

    def get(self, name: str) -> Property | None:
        """The property called `name`, or None."""
        return self.by_name.get(name)


@dataclass(frozen=True)
class Interface(_Declared):
    """A set of property declarations; it has no table."""

    kind: ClassVar = TypeKind.INTERFACE

    constraints: tuple[Constraint, ...] = ()


@dataclass(frozen=True)
class _TableType(_Declared):
    incarnation_id: int = 0
    constraints: tuple[Constraint, ...] = ()
    description: str | None = None
    instruction: str | None = None
    merges_whole: bool = False
    """Whether two changes of one entity are a conflict also where they are about different properties."""
    annotations: tuple[Annotation, ...] = ()

    def _of_kind(self, kind: ConstraintKind) -> tuple[Constraint, ...]:
        return tuple(c for c in self.constraints if c.kind is kind)

    @cached_property
    def key(self) -> tuple[str, ...]:
        """The key properties in stable identity order, the order of a composite id; () without a key."""
        for constraint in self.constraints:
            if constraint.kind is ConstraintKind.KEY:
                return tuple(sorted(constraint.properties, key=lambda n: self.by_name[n].property_id))
        return ()

    @cached_property
    def unique(self) -> tuple[tuple[str, ...], ...]:
        """The distinct `@unique` groups that add something to the key, members in ascending name order."""
        key = tuple(sorted(self.key))
        groups = {c.properties for c in self._of_kind(ConstraintKind.UNIQUE)}
        return tuple(sorted(groups - {key}))

    @cached_property
    def indexes(self) -> tuple[tuple[str, ...], ...]:
        """The property groups declared by `@index` or implied by `@key`, sorted."""
        groups = {c.properties for c in self._of_kind(ConstraintKind.INDEX)}
        if self.key:
            groups.add(tuple(sorted(self.key)))
        return tuple(sorted(groups))

    @cached_property
    def indexed(self) -> frozenset[str]:
        """The properties that `@index` names; one of the key alone has an index, too, but nobody asked."""
        return frozenset(name for c in self._of_kind(ConstraintKind.INDEX) for name in c.properties)

    @cached_property
    def ranges(self) -> tuple[RangeRule, ...]:
        """The `@range` rules."""
        return tuple(c.range for c in self.constraints if c.range is not None)

    @cached_property
    def checks(self) -> tuple[CheckRule, ...]:
        """The `@check` rules."""
        return tuple(c.check for c in self.constraints if c.check is not None)

    @cached_property
    def defaults(self) -> Mapping[str, DefaultValue]:
        """Default values by property name."""
        return {p.name: p.default.value for p in self.properties if p.default is not None}

    @cached_property
    def embeds(self) -> Mapping[str, Embedding]:
        """The sources of vectors that are made from a text, by property name."""
        return {p.name: p.embed for p in self.properties if p.embed is not None}

    @cached_property
    def blob_columns(self) -> tuple[str, ...]:
        """The names of the blob properties."""
        return tuple(p.name for p in self.properties if p.type.is_blob)

    def _declared_index_specs(self) -> tuple[IndexSpec, ...]:
        specs: list[IndexSpec] = []
        for name in sorted({name for group in self.indexes for name in group}):
            prop = self.by_name.get(name)
            if prop is None:  # `src` and `dst` of an edge are always indexed
                continue
            kind = node_prop_index_kind(prop.type)
            # Equality on the key is the most common lookup and an inverted index never serves it.
            if kind is IndexKind.INVERTED and name in self.key:
                specs.append(IndexSpec(name, IndexKind.BTREE))
            if kind is IndexKind.INVERTED and not is_indexable(prop.text):
                continue
            if kind is not None:
                specs.append(IndexSpec(name, kind, prop.text))
        return tuple(specs)


@dataclass(frozen=True)
class NodeType(_TableType):
    """A node type: one table with `id` and the properties."""

    interfaces: tuple[str, ...] = ()

    kind: ClassVar = TypeKind.NODE

    @property
    def table_key(self) -> str:
        """`node:<name>`."""
        return f"node:{self.name}"

    @cached_property
    def arrow_schema(self) -> pa.Schema:
        """`id`, then the properties in name order."""
        import pyarrow as pa  # noqa: PLC0415

        system = [pa.field("id", pa.string(), nullable=False)]
        return pa.schema([*system, *(p.arrow_field() for p in self.properties)])

    @cached_property
    def index_specs(self) -> tuple[IndexSpec, ...]:
        """Every index the table should have: `id`, then the declared ones."""
        return (IndexSpec("id", IndexKind.BTREE), *self._declared_index_specs())


@dataclass(frozen=True)
class EdgeType(_TableType):
    """A directed edge type: one table with `id`, `src`, `dst` and the properties."""

    source: str = ""
    target: str = ""
    card_min: int = 0
    card_max: int | None = None

    kind: ClassVar = TypeKind.EDGE

    @property
    def table_key(self) -> str:
        """`edge:<name>`."""
        return f"edge:{self.name}"

    @cached_property
    def identity(self) -> tuple[str, ...] | None:
        """What names an edge beside its id: the smallest `@unique` group with both ends; None without one."""
        groups = [group for group in self.unique if {"src", "dst"} <= set(group)]
        return min(groups, key=lambda group: (len(group), group), default=None)

    @cached_property
    def arrow_schema(self) -> pa.Schema:
        """`id`, `src`, `dst`, then the properties in name order."""
        import pyarrow as pa  # noqa: PLC0415

        system = [pa.field(name, pa.string(), nullable=False) for name in ("id", "src", "dst")]
        return pa.schema([*system, *(p.arrow_field() for p in self.properties)])

    @cached_property
    def index_specs(self) -> tuple[IndexSpec, ...]:
        """Every index the table should have: `id`, `src`, `dst`, then the declared ones."""
        always = tuple(IndexSpec(name, IndexKind.BTREE) for name in ("id", "src", "dst"))
        return (*always, *self._declared_index_specs())


TableType: TypeAlias = NodeType | EdgeType


@dataclass(frozen=True)
class Catalog:
    """One whole compiled schema. Mappings are in ascending name order and are not to be changed."""

    nodes: Mapping[str, NodeType]
    edges: Mapping[str, EdgeType]
    interfaces: Mapping[str, Interface]
    next_id: int
    """The first identity that was never handed out."""
    generation: int = 1
    """How many schemas the graph has had, this one included. Schemas follow one another in one line."""
    parent: str | None = None
    """The hash of the schema this one followed; None for the first."""
    source_hash: str = field(default="", compare=False)
    """SHA-256 of the schema text; not part of the shape."""

    @cached_property
    def _edges_folded(self) -> Mapping[str, EdgeType]:
        return {name.lower(): edge for name, edge in self.edges.items()}

    def node(self, name: str) -> NodeType | None:
        """The node type called `name` (case-sensitive), or None."""
        return self.nodes.get(name)

    def edge(self, name: str) -> EdgeType | None:
        """The edge type called `name` in any case, or None."""
        return self._edges_folded.get(name.lower())

    def table_keys(self) -> tuple[str, ...]:
        """The keys of all tables, sorted."""
        return tuple(sorted(t.table_key for t in (*self.nodes.values(), *self.edges.values())))

    def type_of(self, table_key: str) -> TableType:
        """The type that owns the table; KeyError when there is none."""
        kind, _, name = table_key.partition(":")
        match kind:
            case "node":
                return self.nodes[name]
            case "edge":
                return self.edges[name]
            case _:
                raise KeyError(table_key)

    def tables(self) -> tuple[TableType, ...]:
        """All types that own a table, in table-key order."""
        return tuple(self.type_of(key) for key in self.table_keys())

    def edges_of(self, node_name: str) -> tuple[EdgeType, ...]:
        """The edge types with `node_name` at either end, in name order."""
        return tuple(e for e in self.edges.values() if node_name in (e.source, e.target))
