"""The explain command."""

from typing import Annotated

import typer

from omnigraph.cli import output
from omnigraph.cli.opening import reading
from omnigraph.cli.options import At, Json, ReadBranch, Store, check_one_state, teach
from omnigraph.cli.parameters import (
    Param,
    Params,
    ParamsFile,
    QueryFile,
    QueryName,
    QueryText,
    naming,
    parameters,
    query_source,
)


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
    branch: ReadBranch = None,
    at: At = None,
    analyze: Annotated[bool, typer.Option("--analyze", help="Run the query and add what it did.")] = False,
    as_json: Json = False,
) -> None:
    """Show how a query gets its answer."""
    check_one_state(branch, at)
    source = query_source(name, file, text)
    values = parameters(params, params_file, param)
    with reading(store) as graph, naming(file, param):
        found = graph.explain(source, values, name=name, analyze=analyze, branch=branch, at=at)
    if as_json:
        output.document(found.to_dict())
    else:
        output.line(str(found))
