"""Commands that create, change and read one graph."""

from typing import TYPE_CHECKING, Annotated, Any, cast

from omnigraph.cli import output, schema_changes
from omnigraph.cli.declared import Argument, Option
from omnigraph.cli.opening import reading, writing
from omnigraph.cli.options import (
    Actor,
    At,
    BlobSource,
    Branch,
    IdempotencyKey,
    Json,
    Quiet,
    ReadBranch,
    Store,
    Timeout,
    check_one_state,
    teach,
)
from omnigraph.cli.parameters import (
    ManyParamsFile,
    Param,
    Params,
    QueryFile,
    QueryName,
    QueryText,
    has_many_sets,
    is_stored,
    naming,
    parameter_lines,
    parameters,
    query_source,
)
from omnigraph.cli.sources import read_bytes, shown
from omnigraph.core.errors import BadRequest
from omnigraph.core.formats import INTERNAL_SCHEMA_VERSION

if TYPE_CHECKING:
    import typer

    from omnigraph.client.remote import RemoteGraph
    from omnigraph.engine.write.requests import MutationResult


def register(app: "typer.Typer", schema_app: "typer.Typer") -> None:
    """Add the commands of this module to the tree."""
    app.command(
        "init",
        help=teach("Create an empty graph with a schema.", "omnigraph init --schema schema.pg kb.omni"),
    )(init)
    app.command(
        "mutate",
        help=teach(
            "Run a query that inserts, updates or deletes, as one atomic commit.",
            "omnigraph mutate add_person --query queries.gq -p handle=ada -p 'name=Ada Lune' --store kb.omni",
            "omnigraph mutate -e 'query n() { insert Topic { name: \"maps\" } }' --store kb.omni",
            "omnigraph mutate add_person --query queries.gq --params-file people.jsonl --store kb.omni",
            "omnigraph mutate add_person -p handle=ada --server quay",
            more="A NAME alone is a stored query of the server."
            " With --if-commit it happens only while that commit is the branch head; else exit 4.",
        ),
    )(mutate)
    app.command(
        "snapshot",
        help=teach(
            "Show what a branch consists of: every type, its version and its size.",
            "omnigraph snapshot --store kb.omni",
            "omnigraph snapshot --at v1 --store kb.omni",
        ),
    )(snapshot)
    schema_app.command(
        "show",
        help=teach("Print the schema of a graph as it was written.", "omnigraph schema show --store kb.omni"),
    )(schema_show)
    schema_changes.register(schema_app)


def init(
    uri: Annotated[str, Argument(metavar="URI", help="Where: a directory or s3://bucket/prefix.")],
    schema: Annotated[str, Option("--schema", metavar="FILE", help="The schema; - for stdin.")],
    force: Annotated[
        bool, Option("--force", help="Take over schema files that an interrupted init left behind.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Create an empty graph."""
    from omnigraph.api.graph import init as create
    from omnigraph.api.texts import Text

    try:
        text = read_bytes(schema).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadRequest(f"'{shown(schema)}' is not UTF-8 text", hint="save the file as UTF-8") from error
    output.begin()
    with naming(schema), create(uri, schema=Text(text), force=force) as graph:
        head = graph.commits.head()
    if as_json:
        output.document(
            {"uri": uri, "graph_commit_id": head.id, "internal_schema_version": INTERNAL_SCHEMA_VERSION}
        )
    else:
        output.line(f"initialized {uri}")


def mutate(
    name: QueryName = None,
    file: QueryFile = None,
    text: QueryText = None,
    params: Params = None,
    params_file: ManyParamsFile = None,
    param: Param = None,
    store: Store = None,
    branch: Branch = "main",
    if_commit: Annotated[
        str | None, Option("--if-commit", metavar="ID", help="Only while this is the branch head.")
    ] = None,
    idempotency_key: IdempotencyKey = None,
    timeout: Timeout = None,
    blob_source: BlobSource = None,
    actor: Actor = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Run a query that changes the graph."""
    asked: dict[str, Any] = {"branch": branch, "actor": actor, "if_commit": if_commit}
    asked |= {"idempotency_key": idempotency_key, "timeout_s": timeout}
    if is_stored(name, file, text, store):
        values = parameters(params, params_file, param)
        with writing(store, "mutate", quiet=quiet, blob_sources=blob_source) as graph, naming(None, param):
            done = cast("RemoteGraph", graph).queries.mutate(str(name), values, **asked)
        _tell_mutation(done, as_json=as_json)
        return
    source = query_source(name, file, text)
    asked["name"] = name
    if params_file is not None and has_many_sets(params_file):
        many = parameter_lines(params, params_file, param)
        opened = writing(store, "mutate", quiet=quiet, blob_sources=blob_source)
        with opened as graph, naming(file, param), many.naming():
            done = graph.mutate_many(source, many.sets, **asked)
    else:
        values = parameters(params, params_file, param)
        opened = writing(store, "mutate", quiet=quiet, blob_sources=blob_source)
        with opened as graph, naming(file, param):
            done = graph.mutate(source, values, **asked)
    _tell_mutation(done, as_json=as_json)


def _tell_mutation(done: "MutationResult", *, as_json: bool) -> None:
    if as_json:
        output.document(done.to_dict())
        return
    output.line(str(done))


def snapshot(store: Store = None, branch: ReadBranch = None, at: At = None, as_json: Json = False) -> None:
    """Show what a branch consists of."""
    check_one_state(branch, at)
    with reading(store) as graph:
        shown_state = graph.snapshot(branch=branch, at=at).to_dict()
    if as_json:
        output.document(shown_state)
        return
    version = shown_state["graph_manifest_version"]
    output.line(f"branch {shown_state['graph_branch']} at version {version}")
    for table in shown_state["datasets"]:
        what = f"{table['entity_kind']} {table['type_name']}"
        output.line(f"{table['entity_count']:>12,}  {what} (version {table['published_dataset_version']})")


def schema_show(store: Store = None, as_json: Json = False) -> None:
    """Print the accepted schema."""
    with reading(store) as graph:
        text = graph.schema_source()
    if as_json:
        output.document({"schema_source": text})
    else:
        output.write(text if text.endswith("\n") else text + "\n")
