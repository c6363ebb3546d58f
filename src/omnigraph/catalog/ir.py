"""The compiled schema as JSON: the contract stored as `_schema.ir.json`, and the hashes of a schema."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from decimal import Decimal
from typing import Any, cast

from omnigraph.catalog.schema import (
    Annotation,
    Catalog,
    CheckRule,
    Constraint,
    ConstraintForm,
    ConstraintKind,
    Default,
    DefaultValue,
    EdgeType,
    Embedding,
    Interface,
    NodeType,
    Property,
    RangeRule,
    TableType,
)
from omnigraph.catalog.texts import PLAIN
from omnigraph.catalog.types import PropertyType, ScalarKind
from omnigraph.core.errors import FormatTooNew, SchemaDrift
from omnigraph.core.formats import IR_FORMAT

Json = dict[str, Any]


def to_json(catalog: Catalog) -> str:
    """The stored form: one JSON object, members in a fixed order, ending with a line break."""
    form = {"format": IR_FORMAT, "source_hash": catalog.source_hash, **_content(catalog)}
    return json.dumps(form, indent=1, ensure_ascii=False) + "\n"


def from_json(text: str) -> Catalog:
    """The catalog of a stored form.

    Raises FormatTooNew for a format number this version does not know, SchemaDrift for anything else that
    is not a compiled schema.
    """
    try:
        form = json.loads(text)
        _require_format(form["format"])
        return Catalog(
            nodes={n["name"]: _read_node(n) for n in form["nodes"]},
            edges={e["name"]: _read_edge(e) for e in form["edges"]},
            interfaces={i["name"]: _read_interface(i) for i in form["interfaces"]},
            next_id=int(form["next_id"]),
            generation=int(form.get("generation", 1)),
            parent=form.get("parent"),
            source_hash=str(form["source_hash"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        raise SchemaDrift(f"the compiled schema cannot be read: {type(error).__name__}: {error}") from error


def _require_format(found: object) -> None:
    if not isinstance(found, int) or found < 1:
        raise ValueError(f"format {found!r}")
    if found > IR_FORMAT:
        raise FormatTooNew(found=found, supported=IR_FORMAT)


def schema_hash(catalog: Catalog) -> str:
    """The content hash of the schema with its identities: comments, order and rename hints do not count.

    Two schemas with this hash share data: the same names, the same rules, the same stable numbers.
    """
    return _digest(_content(catalog))


def shape_hash(catalog: Catalog) -> str:
    """The hash of what a schema text says, without identities.

    A text and the accepted schema agree when their shapes do, whatever the history of the graph is.
    """
    return _digest(_without_identities(_content(catalog)))


def _digest(form: Json) -> str:
    text = json.dumps(form, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _without_identities(form: Any) -> Any:
    if isinstance(form, dict):
        members = cast("Json", form)
        hidden = {"id", "incarnation", "next_id", "generation", "parent"}
        return {k: _without_identities(v) for k, v in members.items() if k not in hidden}
    if isinstance(form, list):
        return [_without_identities(item) for item in cast("list[Any]", form)]
    return form


def _content(catalog: Catalog) -> Json:
    return {
        "next_id": catalog.next_id,
        **_present(generation=catalog.generation if catalog.parent else None, parent=catalog.parent),
        "interfaces": [_interface(i) for i in catalog.interfaces.values()],
        "nodes": [_node(n) for n in catalog.nodes.values()],
        "edges": [_edge(e) for e in catalog.edges.values()],
    }


def _present(**members: Any) -> Json:
    """The members that say something: absent values and empty lists are left out."""
    return {k: v for k, v in members.items() if v is not None and v != []}


# Writing


def _interface(interface: Interface) -> Json:
    return {
        "name": interface.name,
        "id": interface.type_id,
        "properties": [_property(p) for p in interface.properties],
        **_present(constraints=[_constraint(c) for c in interface.constraints]),
    }


def _node(node: NodeType) -> Json:
    return {**_table(node), **_present(interfaces=list(node.interfaces))}


def _edge(edge: EdgeType) -> Json:
    return {
        **_table(edge),
        "source": edge.source,
        "target": edge.target,
        "card_min": edge.card_min,
        "card_max": edge.card_max,
    }


def _table(type_: TableType) -> Json:
    return {
        "name": type_.name,
        "id": type_.type_id,
        "incarnation": type_.incarnation_id,
        "properties": [_property(p) for p in type_.properties],
        **_present(
            constraints=[_constraint(c) for c in type_.constraints],
            description=type_.description,
            instruction=type_.instruction,
            merge="entity" if type_.merges_whole else None,
            annotations=[_annotation(a) for a in type_.annotations],
        ),
    }


def _property(prop: Property) -> Json:
    return {
        "name": prop.name,
        "id": prop.property_id,
        "type": _type(prop.type),
        "nullable": prop.nullable,
        **_present(
            default=None if prop.default is None else default_json(prop.default.value),
            embed=None
            if prop.embed is None
            else {"source": prop.embed.source, **_present(model=prop.embed.model)},
            description=prop.description,
            annotations=[_annotation(a) for a in prop.annotations],
            inherited_from=list(prop.inherited_from),
            text=None if prop.text == PLAIN else prop.text,
        ),
    }


def _type(type_: PropertyType) -> Json:
    return {
        "kind": type_.kind.value,
        **_present(
            list=True if type_.is_list else None,
            vector_dim=type_.vector_dim,
            enum_values=None if type_.enum_values is None else list(type_.enum_values),
        ),
    }


def default_json(value: DefaultValue) -> str | bool | int | float:
    """A default value in JSON: dates and moments in ISO 8601, moments in UTC with milliseconds."""
    if isinstance(value, dt.datetime):
        return value.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    if isinstance(value, dt.date):
        return value.isoformat()
    return value


def _annotation(annotation: Annotation) -> Json:
    return {
        "name": annotation.name,
        **_present(value=annotation.value, keywords=[list(pair) for pair in annotation.keywords]),
    }


def _constraint(constraint: Constraint) -> Json:
    form: Json = {
        "kind": constraint.kind.value,
        "properties": list(constraint.properties),
        "form": constraint.form.value,
    }
    if constraint.range is not None:
        low, high = constraint.range.minimum, constraint.range.maximum
        form["minimum"] = None if low is None else _bound(low)
        form["maximum"] = None if high is None else _bound(high)
    if constraint.check is not None:
        form["pattern"] = constraint.check.pattern
    return form


def _bound(value: Decimal) -> str:
    """A bound in one spelling: `1.50` and `1.5` are the same rule."""
    if value == 0:
        return "0"
    text = format(value, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


# Reading


def _read_interface(form: Json) -> Interface:
    return Interface(
        name=form["name"],
        type_id=int(form["id"]),
        properties=tuple(_read_property(p) for p in form["properties"]),
        constraints=tuple(_read_constraint(c) for c in form.get("constraints", ())),
    )


def _read_table(form: Json) -> Json:
    return {
        "name": str(form["name"]),
        "type_id": int(form["id"]),
        "incarnation_id": int(form["incarnation"]),
        "properties": tuple(_read_property(p) for p in form["properties"]),
        "constraints": tuple(_read_constraint(c) for c in form.get("constraints", ())),
        "description": form.get("description"),
        "instruction": form.get("instruction"),
        "merges_whole": form.get("merge") == "entity",
        "annotations": tuple(_read_annotation(a) for a in form.get("annotations", ())),
    }


def _read_node(form: Json) -> NodeType:
    return NodeType(**_read_table(form), interfaces=tuple(form.get("interfaces", ())))


def _read_edge(form: Json) -> EdgeType:
    return EdgeType(
        **_read_table(form),
        source=str(form["source"]),
        target=str(form["target"]),
        card_min=int(form["card_min"]),
        card_max=None if form["card_max"] is None else int(form["card_max"]),
    )


def _read_property(form: Json) -> Property:
    type_ = _read_type(form["type"])
    embed = form.get("embed")
    return Property(
        name=str(form["name"]),
        property_id=int(form["id"]),
        type=type_,
        nullable=bool(form["nullable"]),
        default=None if "default" not in form else Default(_read_default(form["default"], type_.kind)),
        embed=None if embed is None else Embedding(embed["source"], embed.get("model")),
        description=form.get("description"),
        annotations=tuple(_read_annotation(a) for a in form.get("annotations", ())),
        inherited_from=tuple(form.get("inherited_from", ())),
        text=str(form.get("text", PLAIN)),
    )


def _read_type(form: Json) -> PropertyType:
    values = form.get("enum_values")
    return PropertyType(
        ScalarKind(form["kind"]),
        is_list=bool(form.get("list", False)),
        vector_dim=form.get("vector_dim"),
        enum_values=None if values is None else tuple(values),
    )


def _read_default(value: Any, kind: ScalarKind) -> DefaultValue:
    match kind:
        case ScalarKind.DATE:
            return dt.date.fromisoformat(value)
        case ScalarKind.DATETIME:
            return dt.datetime.fromisoformat(value)
        case ScalarKind.F32 | ScalarKind.F64:
            return float(value)
        case _:
            return value


def _read_annotation(form: Json) -> Annotation:
    keywords = tuple((str(name), str(value)) for name, value in form.get("keywords", ()))
    return Annotation(str(form["name"]), form.get("value"), keywords)


def _read_constraint(form: Json) -> Constraint:
    kind = ConstraintKind(form["kind"])
    properties = tuple(str(name) for name in form["properties"])
    range_ = check = None
    if kind is ConstraintKind.RANGE:
        low, high = form["minimum"], form["maximum"]
        range_ = RangeRule(
            properties[0], None if low is None else Decimal(low), None if high is None else Decimal(high)
        )
    elif kind is ConstraintKind.CHECK:
        check = CheckRule(properties[0], str(form["pattern"]))
    return Constraint(kind, properties, ConstraintForm(form["form"]), range_, check)
