"""Commands over schema and query files: lint, fmt, schema plan."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from omnigraph.cli import output
from omnigraph.cli.declared import Argument, Option
from omnigraph.cli.opening import reading
from omnigraph.cli.options import Fill, Json, Store, teach
from omnigraph.cli.sources import STDIN, expand, read_bytes, replace_text, shown
from omnigraph.core.errors import (
    QuerySyntaxError,
    SchemaSyntaxError,
    SourceError,
    SourceFailure,
    UsageError,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    import typer

    from omnigraph.cli.lints import Linted
    from omnigraph.language.diagnostics import Diagnostic
    from omnigraph.language.source import Source

Queries = Annotated[
    list[str] | None,
    Option("--query", metavar="FILE", help="A .gq file, a directory, or - for stdin. Repeatable."),
]
SchemaFile = Annotated[
    str | None, Option("--schema", metavar="FILE", help="The .pg file to check against; - for stdin.")
]


def register(app: "typer.Typer", schema_app: "typer.Typer") -> None:
    """Add the commands of this module to the tree."""
    app.command(
        "lint",
        help=teach(
            "Check schema and query files and say everything that is wrong with them.",
            "omnigraph lint --schema schema.pg --query queries.gq",
            "omnigraph lint --schema schema.pg",
            more="Exit status 1 when there are errors, or more warnings than --max-warnings allows.",
        ),
    )(lint)
    app.command(
        "fmt",
        help=teach(
            "Put .pg and .gq files into their canonical form, in place.",
            "omnigraph fmt schema.pg queries.gq",
            "omnigraph fmt --check schema.pg",
            "omnigraph fmt - < schema.pg",
            more="With --check nothing is written and the exit status is 1 if a file would change.",
        ),
    )(fmt)
    schema_app.command(
        "plan",
        help=teach(
            "Show what a change of the schema would do, step by step.",
            "omnigraph schema plan --from old.pg --schema new.pg",
            "omnigraph schema plan --schema new.pg --store kb.omni --json",
        ),
    )(plan)


def lint(
    query: Queries = None,
    schema: SchemaFile = None,
    store: Store = None,
    max_warnings: Annotated[
        int | None, Option("--max-warnings", min=0, help="Fail when there are more warnings than this.")
    ] = None,
    as_json: Json = False,
) -> int:
    """Check schema and query files."""
    from omnigraph.cli import lints

    paths = expand(query or [], ".gq")
    if [*paths, schema].count(STDIN) > 1:
        raise UsageError("only one file can come from stdin")
    linted = _lint(paths, schema, store)
    if as_json:
        output.document(lints.to_json(linted))
    else:
        lints.show_text(linted)
    too_many = max_warnings is not None and linted.warnings > max_warnings
    return 1 if linted.errors or too_many else 0


def _lint(paths: list[str], schema: str | None, store: str | None) -> "Linted":
    from omnigraph.cli.lints import Linted, lint_files, lint_schema
    from omnigraph.planning.lint import LintReport

    names = tuple(map(shown, paths))
    if schema is not None:
        catalog, found = lint_schema(schema)
        # Without a schema nothing can be said about the queries.
        report = LintReport((), ()) if catalog is None else lint_files(paths, catalog)
        return Linted({"kind": "file", "path": shown(schema)}, found, names, report)
    if not paths:
        raise UsageError("`lint` needs something to check", hint="pass --query FILE, --schema FILE or both")
    with reading(store) as graph:
        return Linted({"kind": "graph", "uri": graph.uri}, (), names, lint_files(paths, graph.catalog()))


def fmt(
    files: Annotated[list[str], Argument(metavar="FILE...", help="Files, directories, or - for stdin.")],
    check: Annotated[bool, Option("--check", help="Change nothing; exit 1 if a file would.")] = False,
    language: Annotated[
        str | None,
        Option("--language", metavar="pg|gq", help="What the input holds, if it cannot be told."),
    ] = None,
    as_json: Json = False,
) -> int:
    """Put files into their canonical form."""
    if language not in {None, "pg", "gq"}:
        raise UsageError(f"unknown language '{language}'", hint="use pg or gq")
    if files.count(STDIN) and len(files) > 1:
        raise UsageError("stdin is formatted alone: its result goes to stdout")
    if files == [STDIN]:
        return _format_stdin(language, check=check)
    paths = [path for file in files for path in _formattable(file)]
    changed: list[str] = []
    findings: list[Diagnostic] = []
    for path in paths:
        before, after = formatted(path, language)
        if not isinstance(after, str):
            findings += after
        elif after != before:
            changed.append(path)
            if not check:
                replace_text(path, after)
    _report_formatted(paths, changed, check=check, as_json=as_json)
    if findings:
        raise _does_not_parse(findings)
    return 1 if check and changed else 0


def _format_stdin(language: str | None, *, check: bool) -> int:
    before, after = formatted(STDIN, language)
    if not isinstance(after, str):
        raise _does_not_parse(after)
    if check:
        return 1 if before != after else 0
    output.write(after)
    return 0


def _report_formatted(paths: list[str], changed: list[str], *, check: bool, as_json: bool) -> None:
    if as_json:
        output.document({"files": len(paths), "changed": changed, "written": not check})
        return
    for path in changed:
        output.line(f"{'would change' if check else 'formatted'} {path}")


def _formattable(file: str) -> list[str]:
    if Path(file).is_dir():
        return sorted(str(path) for path in Path(file).rglob("*") if path.suffix in {".pg", ".gq"})
    return [file]


def formatted(path: str, language: str | None) -> "tuple[str, str | Sequence[Diagnostic]]":
    """The text of a file and its canonical form, or the findings that prevent one."""
    from omnigraph.language.diagnostics import Diagnostic
    from omnigraph.language.format_query import format_queries
    from omnigraph.language.format_schema import format_schema
    from omnigraph.language.lexer import decode

    source = decode(read_bytes(path), shown(path))
    if isinstance(source, Diagnostic):
        return "", (source,)
    form = format_schema if (language or _language_of(path, source)) == "pg" else format_queries
    return source.text, form(source.text, source.file)


def _language_of(path: str, source: "Source") -> str:
    from omnigraph.language.lexer import lex

    suffix = Path(path).suffix
    if suffix in {".pg", ".gq"}:
        return suffix[1:]
    if path != STDIN:
        raise UsageError(
            f"'{path}' is neither a .pg nor a .gq file", hint="say what it holds with --language"
        )
    # Only a query file begins with the word `query`; what does not lex is reported alike by both languages.
    tokens = lex(source).tokens
    return "gq" if tokens and tokens[0].text == "query" else "pg"


def _does_not_parse(findings: "Sequence[Diagnostic]") -> SourceFailure:
    files = len({finding.file for finding in findings})
    first = findings[0]
    where = "the source does" if files == 1 else f"{files} sources do"
    cls = SchemaSyntaxError if first.code.startswith("P") else QuerySyntaxError
    return cls(f"{where} not parse", source_error=SourceError(**first.source_error()), diagnostics=findings)


def plan(
    schema: Annotated[str, Option("--schema", metavar="FILE", help="The schema wanted; - for stdin.")],
    old: Annotated[
        str | None,
        Option("--from", metavar="FILE", help="The schema to start from, if not a graph."),
    ] = None,
    allow_data_loss: Annotated[
        bool, Option("--allow-data-loss", help="Plan drops that reclaim the data at once.")
    ] = False,
    fill: Fill = None,
    store: Store = None,
    exit_code: Annotated[
        bool, Option("--exit-code", help="Exit with 0 no change, 10 supported change, 1 unsupported.")
    ] = False,
    as_json: Json = False,
) -> int:
    """Show what a change of the schema would do."""
    from omnigraph.catalog.build import compile_schema
    from omnigraph.catalog.diff import plan_schema
    from omnigraph.cli import schema_plans
    from omnigraph.engine.evolve.planned_fills import fill_texts

    if old is not None and store is not None:
        raise UsageError("--from and --store exclude each other")
    if old == STDIN == schema:
        raise UsageError("only one of the two schemas can come from stdin")
    text, costs, blocking = read_bytes(schema), (), ()
    origin: dict[str, object]
    if old is not None:
        origin = {"from": shown(old)}
        accepted = compile_schema(read_bytes(old), file=shown(old))
        planned = plan_schema(
            accepted, text, file=shown(schema), allow_data_loss=allow_data_loss, fills=fill_texts(fill or ())
        )
    else:
        with reading(store) as graph:
            origin = {"uri": graph.uri}
            found = graph.plan_schema(
                text, file=shown(schema), allow_data_loss=allow_data_loss, fills=fill or ()
            )
        planned, costs, blocking = found.plan, found.costs, found.blocking
        origin["blocking_branches"] = list(blocking)
    _show_findings(planned.diagnostics)
    if as_json:
        output.document({**origin, "schema": shown(schema), **schema_plans.to_json(planned, costs)})
    else:
        for number, step in enumerate(planned.steps):
            output.line(
                schema_plans.step_line(step) + (schema_plans.cost_line(costs[number]) if costs else "")
            )
        output.line(schema_plans.summary(planned))
        if blocking:
            output.line(f"in the way: {', '.join(blocking)}")
    if not exit_code or planned.is_empty:
        return 0
    return 10 if planned.supported else 1


def _show_findings(findings: "Sequence[Diagnostic]") -> None:
    """Warnings about an input go to stderr: they are not the result."""
    from omnigraph.language.diagnostics import render

    for finding in findings:
        output.note(f"{finding.severity.value}: {render(finding)}")
