"""Verbs of the schema language."""

import json

import pyarrow as pa

from cases.runner import Step, World, step
from omnigraph.catalog.build import resolve_schema, schema_error
from omnigraph.catalog.canonical import node_ids
from omnigraph.catalog.diff import plan_schema
from omnigraph.catalog.ir import from_json, schema_hash, shape_hash, to_json
from omnigraph.core.errors import OmnigraphError, SchemaError
from omnigraph.language.diagnostics import Severity, sentence
from omnigraph.language.format_schema import format_schema


@step("schema")
def schema(world: World, current: Step) -> None:
    """Checks the text of the block as a new schema."""
    _check(world, current.block)


@step("fragment")
def fragment(world: World, current: Step) -> None:
    """Checks members as the body of `node T`."""
    _check(world, f"node T {{ {current.argument or current.block} }}")


def _check(world: World, text: str) -> None:
    world.clear("catalog", "error")
    checked = resolve_schema(text)
    world["diagnostics"] = checked.diagnostics
    if checked.catalog is None:
        world["error"] = schema_error(checked.diagnostics)
    else:
        world["catalog"] = checked.catalog
        assert from_json(to_json(checked.catalog)) == checked.catalog


@step("ok")
def ok(world: World, current: Step) -> None:
    """The text was accepted; with `without warnings`, also silently."""
    assert world.get("error") is None, str(world.get("error"))
    if current.argument == "without warnings":
        assert world["diagnostics"] == ()


@step("error")
def error(world: World, current: Step) -> None:
    """`error Class [code]`: the text was refused with this class, and one finding has the code."""
    name, _, code = current.argument.partition(" ")
    raised = world.get("error")
    assert raised is not None, "the schema was accepted"
    assert type(raised).__name__ == name, f"{type(raised).__name__}: {raised}"
    if code:
        codes = [d.code for d in world["diagnostics"]]
        assert code in codes, f"found {codes}"


@step("errors")
def errors(world: World, current: Step) -> None:
    """`errors 3`: how many errors the run reported."""
    found = [d for d in world["diagnostics"] if d.severity is Severity.ERROR]
    assert len(found) == int(current.argument), [sentence(d) for d in found]


@step("at")
def at(world: World, current: Step) -> None:
    """`at 3:14`: where the reported error stands."""
    place = world["error"].source_error
    assert f"{place.line}:{place.column}" == current.argument, f"{place.line}:{place.column}"


@step("says")
def says(world: World, current: Step) -> None:
    """The error, a finding or a refusal of the plan contains this text."""
    texts = _texts(world)
    assert any(current.argument in text for text in texts), texts


@step("silent")
def silent(world: World, current: Step) -> None:
    """`silent parameter`: nothing that was said contains this text."""
    texts = _texts(world)
    assert not any(current.argument in text for text in texts), texts


def _texts(world: World) -> list[str]:
    texts = [str(world["error"])] if world.get("error") is not None else []
    texts += [sentence(d) for d in world.get("diagnostics", ())]
    texts += [hint for d in world.get("diagnostics", ()) if (hint := d.hint)]
    if world.get("plan") is not None:
        texts += [s.message for s in world["plan"].steps if s.kind == "unsupported_change"]
    return texts


@step("warning")
def warning(world: World, current: Step) -> None:
    """`warning P901`: a warning with this code was reported."""
    found = [d.code for d in world["diagnostics"] if d.severity is Severity.WARNING]
    assert current.argument in found, found


@step("types")
def types(world: World, current: Step) -> None:
    """`types 3`: how many types the schema declares."""
    catalog = world["catalog"]
    assert len(catalog.nodes) + len(catalog.edges) + len(catalog.interfaces) == int(current.argument)


def _type_of(world: World, name: str):
    catalog = world["catalog"]
    found = catalog.node(name) or catalog.edge(name) or catalog.interfaces.get(name)
    assert found is not None, f"no type {name}"
    return found


def _named(argument: str) -> tuple[str, str]:
    name, _, rest = argument.partition(": ")
    return name, rest.strip()


@step("columns")
def columns(world: World, current: Step) -> None:
    """`columns Boat: id, crew, hull`: the columns of the table in order."""
    name, expected = _named(current.argument)
    assert ", ".join(_type_of(world, name).arrow_schema.names) == expected


@step("column")
def column(world: World, current: Step) -> None:
    """`column T.v: fixed_size_list<item: float>[3]`: the Arrow field, with `not null` when required."""
    where, expected = _named(current.argument)
    owner, name = where.split(".")
    found = _type_of(world, owner).arrow_schema.field(name)
    assert str(found) == f"pyarrow.Field<{name}: {expected}>", str(found)


@step("property")
def property_(world: World, current: Step) -> None:
    """`property T.k: enum(a, b)?`: the type in canonical spelling."""
    where, expected = _named(current.argument)
    owner, name = where.split(".")
    assert _type_of(world, owner).property_named(name).type_text == expected


@step("fact")
def fact(world: World, current: Step) -> None:
    """`fact A.n description: "text"` or `fact A card_max: 1`: one fact of a property or type as JSON."""
    where, expected = _named(current.argument)
    path, name = where.split(" ")
    owner, _, prop = path.partition(".")
    holder = _type_of(world, owner)
    if prop:
        holder = holder.property_named(prop)
    found = getattr(holder, name)
    if name == "default":
        found = found and found.value
    elif name == "embed":
        found = found and [found.source, found.model]
    elif name == "ranges":
        found = [[r.property, r.minimum and str(r.minimum), r.maximum and str(r.maximum)] for r in found]
    elif name == "annotations":
        found = [a.name for a in found]
    elif name == "index_specs":
        found = [spec.name for spec in found]
    assert json.loads(json.dumps(found, default=str)) == json.loads(expected), found


@step("numbers")
def numbers(world: World, current: Step) -> None:
    """`numbers Z=1 Z.p=5 incarnations=7,8 next=9`: the stable identities."""
    catalog = world["catalog"]
    found: dict[str, str] = {"next": str(catalog.next_id)}
    every = [*catalog.interfaces.values(), *catalog.nodes.values(), *catalog.edges.values()]
    for type_ in every:
        found[type_.name] = str(type_.type_id)
        found |= {f"{type_.name}.{p.name}": str(p.property_id) for p in type_.properties}
    tables = sorted(catalog.tables(), key=lambda t: t.type_id)
    found["incarnations"] = ",".join(str(t.incarnation_id) for t in tables)
    expected = dict(pair.split("=") for pair in current.argument.split())
    assert {name: found.get(name) for name in expected} == expected


def _column(values: list, type_: pa.DataType) -> pa.Array:
    """The values as stored; a date is given as its day number."""
    wide = pa.array(values, pa.int32()) if pa.types.is_date32(type_) else pa.array(values)
    return wide.cast(type_, safe=False)


@step("ids")
def ids(world: World, current: Step) -> None:
    """`ids T` with lines `{"a": "x"} => id`: the ids that the key gives to rows."""
    node = _type_of(world, current.argument)
    pairs = [line.split(" => ") for line in current.block.splitlines()]
    rows = [json.loads(row) for row, _ in pairs]
    wanted = [f for f in node.arrow_schema if f.name in node.key]
    table = pa.table({f.name: _column([r[f.name] for r in rows], f.type) for f in wanted})
    assert node_ids(table, node).to_pylist() == [expected for _, expected in pairs]


@step("attempt")
def attempt(world: World, current: Step) -> None:
    """Runs the statements of the argument on main and keeps a refusal for `denied`. `with` gives parameters."""
    world.clear("denied")
    statement, _, given = current.argument.partition(" with ")
    declared, _, values = given.partition(" = ")
    try:
        world["graph"].mutate(f"query change({declared}) {{ {statement} }}", json.loads(values or "{}"))
    except OmnigraphError as failure:
        world["denied"] = failure


@step("done")
def done(world: World, current: Step) -> None:
    """The last attempt was not refused."""
    assert world.get("denied") is None, str(world.get("denied"))


# Evolution


@step("accepted")
def accepted(world: World, current: Step) -> None:
    """The block is the schema the graph has."""
    _check(world, current.block)
    ok(world, Step("ok", "", "", current.line))
    world["accepted"] = world["catalog"]
    world["accepted text"] = current.block


@step("desired")
def desired(world: World, current: Step) -> None:
    """Plans the change from the accepted schema to the block; `allow data loss` makes drops hard."""
    _plan(world, current.block, current.argument)


@step("change")
def change(world: World, current: Step) -> None:
    """`change OLD => NEW`: plans the accepted text with one piece replaced."""
    old, _, new = current.argument.partition(" => ")
    text = world["accepted text"]
    assert text.count(old) == 1, f"'{old}' occurs {text.count(old)} times"
    _plan(world, text.replace(old, new.removesuffix("(nothing)")), current.block)


@step("hard")
def hard(world: World, current: Step) -> None:
    """Plans the same desired text again, with data loss allowed."""
    _plan(world, world["desired text"], "allow data loss")


def _plan(world: World, text: str, option: str) -> None:
    world.clear("plan", "error", "diagnostics")
    world["desired text"] = text
    try:
        plan = plan_schema(world["accepted"], text, allow_data_loss=option == "allow data loss")
    except SchemaError as failure:
        world["error"] = failure
        world["diagnostics"] = failure.diagnostics
    else:
        world["plan"] = plan
        world["diagnostics"] = plan.diagnostics
        world["catalog"] = plan.desired


@step("plan")
def plan(world: World, current: Step) -> None:
    """`plan supported` or `plan unsupported` with the steps in the block; `plan empty` has none."""
    assert world.get("error") is None, str(world.get("error"))
    found = world["plan"]
    lines = [_step_line(s.to_dict()) for s in found.steps]
    assert lines == current.block.splitlines(), "\n".join(lines)
    if current.argument == "empty":
        assert found.is_empty
        assert shape_hash(found.desired) == shape_hash(world["accepted"])
        assert schema_hash(found.desired) == schema_hash(world["accepted"])
    else:
        assert found.supported is (current.argument == "supported")


def _step_line(form: dict) -> str:
    """`kind key=value …`; the sentence of a refusal is checked by `says`."""
    shown = []
    for name, value in form.items():
        if name in {"kind", "reason"}:
            continue
        text = value if isinstance(value, str) else json.dumps(value)
        shown.append(f"{name}={text}")
    return " ".join([form["kind"], *shown])


@step("apply")
def apply(world: World, current: Step) -> None:
    """The planned schema becomes the accepted one, as far as the catalog is concerned."""
    assert world["plan"].supported
    world["accepted"] = world["plan"].desired
    world["accepted text"] = world["desired text"]


@step("additive")
def additive(world: World, current: Step) -> None:
    """`additive yes|no`: whether the plan may be applied beside live branches."""
    assert world["plan"].is_additive is (current.argument == "yes")


@step("same")
def same(world: World, current: Step) -> None:
    """`same shape`: the planned text and the accepted schema say the same."""
    assert current.argument == "shape"
    assert shape_hash(world["catalog"]) == shape_hash(world["accepted"])


@step("reshape")
def reshape(world: World, current: Step) -> None:
    """`reshape [FILL]`: makes the block the schema of the graph, and keeps a refusal for `denied`."""
    world.clear("denied")
    fills = [current.argument] if current.argument else []
    try:
        world["reshaped"] = world["graph"].apply_schema(current.block + "\n", fills=fills)
    except OmnigraphError as failure:
        world["denied"] = failure


@step("generation")
def generation(world: World, current: Step) -> None:
    """`generation review 1`: the schema a branch follows."""
    name, number = current.argument.split()
    found = {each.name: each.generation for each in world["graph"].branches.details()}
    assert found[name] == int(number), found


@step("reads")
def reads(world: World, current: Step) -> None:
    """`reads review Tour guide: null`: the values of one property on a branch, as a set in JSON."""
    where, expected = _named(current.argument)
    name, owner, prop = where.split()
    rows = world["graph"].query(
        f"query q() {{ match {{ $t: {owner} }} return {{ $t.{prop} }} }}", branch=name
    )
    found = sorted({json.dumps(row[f"t.{prop}"]) for row in rows})
    assert found == sorted(json.dumps(each) for each in json.loads(f"[{expected}]")), found


# Format


@step("format")
def format_(world: World, current: Step) -> None:
    """Formats the block as a schema."""
    formatted = format_schema(current.block)
    assert isinstance(formatted, str), [sentence(d) for d in formatted]
    assert format_schema(formatted) == formatted
    world["formatted"] = formatted


@step("formatted")
def formatted(world: World, current: Step) -> None:
    """The formatted text is the block, with a line break at its end."""
    assert world["formatted"] == current.block + "\n", world["formatted"]
