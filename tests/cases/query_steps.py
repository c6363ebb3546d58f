"""Verbs of the query language: everything that needs no data."""

import json

from cases.runner import CASES_DIR, Step, World, step
from omnigraph.catalog.build import compile_schema
from omnigraph.core.errors import OmnigraphError
from omnigraph.language.format_query import format_queries
from omnigraph.language.query_syntax import parse_queries
from omnigraph.language.source import Source
from omnigraph.planning import ir
from omnigraph.planning.compile import as_mutation, as_read, compile_query
from omnigraph.planning.describe import describe
from omnigraph.planning.lint import lint_sources
from omnigraph.planning.params import bind_params


@step("against")
def against(world: World, current: Step) -> None:
    """`against query/writers`: the schema in `query/writers.pg`."""
    file = CASES_DIR / f"{current.argument}.pg"
    world["catalog"] = compile_schema(file.read_text(encoding="utf-8"))
    world.clear("parameters")


@step("parameters")
def parameters(world: World, current: Step) -> None:
    """`parameters $b: I32?`: the declarations of the queries that follow."""
    world["parameters"] = current.argument


@step("body")
def body(world: World, current: Step) -> None:
    """Compiles a query with this body; the argument or the block."""
    text = current.argument or current.block
    _compile(world, f"query q({world.get('parameters', '')}) {{ {text} }}", compile_query)


@step("writers")
def writers(world: World, current: Step) -> None:
    """Compiles `match { $w: Writer … } return { $w.handle }` with these clauses."""
    text = f"match {{ $w: Writer {current.argument or current.block} }} return {{ $w.handle }}"
    _compile(world, f"query q({world.get('parameters', '')}) {{ {text} }}", compile_query)


@step("source")
def source(world: World, current: Step) -> None:
    """Compiles the only query of the block; with a name as argument that one."""
    _compile(world, current.block, compile_query, current.argument or None)


@step("source-read")
def source_read(world: World, current: Step) -> None:
    """Gives the block to the entry point for reads."""
    _compile(world, current.block, compile_query, current.argument or None, as_read)


@step("source-mutation")
def source_mutation(world: World, current: Step) -> None:
    """Gives the block to the entry point for mutations."""
    _compile(world, current.block, compile_query, current.argument or None, as_mutation)


def _compile(world: World, text: str, entry, name: str | None = None, kind=lambda plan: plan) -> None:
    world.clear("error", "compiled", "bound")
    world["diagnostics"] = ()
    formatted = format_queries(text)
    if isinstance(formatted, str):
        assert format_queries(formatted) == formatted
        assert parse_queries(formatted).queries == parse_queries(text).queries
    try:
        world["compiled"] = kind(entry(text, world["catalog"], name=name))
    except OmnigraphError as failure:
        world["error"] = failure
        world["diagnostics"] = getattr(failure, "diagnostics", ())


@step("codes")
def codes(world: World, current: Step) -> None:
    """`codes T6 T7 -`: the codes of all findings in source order; `-` is a finding without one."""
    found = [found.code or "-" for found in world["diagnostics"]]
    assert found == current.argument.split(), found


@step("bind")
def bind(world: World, current: Step) -> None:
    """`bind {"b": 3}`: binds parameter values to the compiled query."""
    world.clear("error", "bound")
    try:
        world["bound"] = bind_params(world["compiled"], json.loads(current.argument))
    except OmnigraphError as failure:
        world["error"] = failure


@step("bound")
def bound(world: World, current: Step) -> None:
    """`bound {"b": 3}`: the values after binding."""
    assert world.get("error") is None, str(world.get("error"))
    assert json.loads(json.dumps(world["bound"], default=str)) == json.loads(current.argument), world["bound"]


@step("result")
def result(world: World, current: Step) -> None:
    """`result w.name: String, n: I64`: the columns with their types."""
    assert world.get("error") is None, str(world.get("error"))
    found = ", ".join(f"{c.name}: {c.type.text(nullable=c.nullable)}" for c in world["compiled"].columns)
    assert found == current.argument, found


@step("operation")
def operation(world: World, current: Step) -> None:
    """The operation descriptor as JSON in the block."""
    found = describe(world["compiled"], world["catalog"]).to_dict()
    assert found == json.loads(current.block), json.dumps(found)


@step("traversal")
def traversal(world: World, current: Step) -> None:
    """`traversal w -Mentors-> x 1..3`: one traversal of the outermost block, turned to the edge's direction."""
    shown = [_traversal(item) for item in world["compiled"].match.traversals]
    assert current.argument in shown, shown


def _traversal(item: ir.Traversal) -> str:
    edge = f"{item.edge_variable}:{item.edge.name}" if item.edge_variable else item.edge.name
    arrow = f"-{edge}-" if item.undirected else f"-{edge}->"
    hops = f" {item.low}..{item.high}" if item.multi else ""
    return f"{item.source} {arrow} {item.target}{hops}"


@step("lint")
def lint(world: World, current: Step) -> None:
    """Lints the block."""
    world["lint"] = lint_sources([Source(current.block)], world["catalog"])


@step("status")
def status(world: World, current: Step) -> None:
    """`status error 2 errors 1 warnings`: the verdict and the counts of a lint."""
    report = world["lint"]
    assert f"{report.status} {report.errors} errors {report.warnings} warnings" == current.argument, (
        report.to_dict()
    )


@step("finding")
def finding(world: World, current: Step) -> None:
    """`finding warning L201 Writer.born: a, b`: a finding with its place in the schema and its queries."""
    shown = []
    for item in world["lint"].findings:
        where = f" {item.type_name}.{item.property}" if item.type_name else ""
        names = f": {', '.join(item.query_names)}" if item.query_names else ""
        shown.append(f"{item.severity.value} {item.code or '-'}{where}{names}")
    assert current.argument in shown, shown


@step("query-error")
def query_error(world: World, current: Step) -> None:
    """`query-error q T6 T7`: the codes of one query in a lint."""
    name, *expected = current.argument.split()
    (found,) = [item for item in world["lint"].results if item.name == name]
    assert [error.code for error in found.errors] == expected, found.to_dict()
    assert found.operation is None


@step("format-queries")
def format_queries_(world: World, current: Step) -> None:
    """Formats the block as queries."""
    formatted = format_queries(current.block)
    assert isinstance(formatted, str), [found.message for found in formatted]
    assert format_queries(formatted) == formatted
    assert parse_queries(formatted).queries == parse_queries(current.block).queries
    world["formatted"] = formatted
