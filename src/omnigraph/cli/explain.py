"""The explain command."""

from typing import Annotated

import typer

from omnigraph.cli import output
from omnigraph.cli.options import Json, Store, teach
from omnigraph.cli.parameters import (
    Param,
    Params,
    ParamsFile,
    QueryFile,
    QueryName,
    QueryText,
    parameters,
    query_source,
)
from omnigraph.cli.targets import reading
from omnigraph.core.errors import AmbiguousTarget


def register(app: typer.Typer) -> None:
    """Add the command of this module to the tree."""
    app.command(
        "explain",
        help=teach(
            "Show how a query gets its answer.",
            "omnigraph explain document --query queries.gq -p slug=hello --store kb.omni",
            "omnigraph explain document --query queries.gq -p slug=hello --store kb.omni --analyze",
            more=(
                "Prints the operators, the way each gets its rows and why, and how many it should give."
                " With --analyze the query is run: rows, time, requests and bytes of each operator are"
                " added, and the recall of searches that are not exact."
            ),
        ),
    )(explain)


def explain(
    name: QueryName = None,
    file: QueryFile = None,
    text: QueryText = None,
    params: Params = None,
    params_file: ParamsFile = None,
    param: Param = None,
    store: Store = None,
    branch: Annotated[
        str | None, typer.Option("--branch", metavar="NAME", help="The branch to read; main if not given.")
    ] = None,
    snapshot: Annotated[
        str | None, typer.Option("--snapshot", "--at", metavar="ID", help="Read this commit or tag.")
    ] = None,
    analyze: Annotated[bool, typer.Option("--analyze", help="Run the query and add what it did.")] = False,
    as_json: Json = False,
) -> None:
    """Show how a query gets its answer."""
    if branch is not None and snapshot is not None:
        raise AmbiguousTarget("--branch and --snapshot exclude each other", hint="give one of them")
    source = query_source(file, text)
    values = parameters(params, params_file, param)
    with reading(store) as graph:
        found = graph.explain(source, values, name=name, analyze=analyze, branch=branch, at=snapshot)
    if as_json:
        output.document(found.to_dict())
    else:
        output.line(str(found))
