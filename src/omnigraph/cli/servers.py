"""Commands about servers: log in, log out, and which graphs one has."""

import sys
from typing import Annotated

import typer

from omnigraph.cli import config, credentials, output
from omnigraph.cli.addressing import addressed, resolve
from omnigraph.cli.options import Json, teach
from omnigraph.core.errors import BadRequest, UsageError

Name = Annotated[str, typer.Argument(metavar="NAME", help="A server of config.yaml.")]


def register(app: typer.Typer, graphs_app: typer.Typer, queries_app: typer.Typer) -> None:
    """Add the commands of this module to the tree."""
    app.command(
        "login",
        help=teach(
            "Keep the token of a server.",
            "omnigraph login quay",
            "omnigraph login quay < token.txt",
            more="The token is one line of stdin; on a terminal it is asked for and not shown.",
        ),
    )(login)
    app.command("logout", help=teach("Forget the token of a server.", "omnigraph logout quay"))(logout)
    graphs_app.command(
        "list",
        help=teach("List the graphs of a server that you may read.", "omnigraph graphs list --server quay"),
    )(graphs_list)
    queries_app.command(
        "list",
        help=teach(
            "List the stored queries of a graph on a server.",
            "omnigraph queries list --server quay --graph kb",
        ),
    )(queries_list)


def login(
    name: Name,
    token: Annotated[
        str | None,
        typer.Option("--token", metavar="TOKEN", help="The token; it stays in the history of your shell."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Keep a token."""
    secret = (_asked(name) if token is None else token).strip()
    if not secret:
        raise BadRequest("the token is blank", hint="send it as one line of stdin")
    if not (secret.isascii() and secret.isprintable()) or " " in secret:
        raise BadRequest("a token is one word of printable ASCII characters")
    _check_name(name)
    credentials.write({**credentials.read(), name: secret})
    _tell(name, "logged in to", as_json=as_json)


def _asked(name: str) -> str:
    if not sys.stdin.isatty():
        return sys.stdin.readline()
    from getpass import getpass

    return getpass(f"token of {name}: ")


def _check_name(name: str) -> None:
    if not name.strip() or not name.isprintable() or {*name} & {*"[]"} or "://" in name:
        raise UsageError(
            "a token belongs to the name of a server", hint="name it under servers in config.yaml"
        )


def logout(name: Name, as_json: Json = False) -> None:
    """Forget a token. Without one nothing happens."""
    known = credentials.read()
    if known.pop(name, None) is not None:
        credentials.write(known)
    _tell(name, "logged out of", as_json=as_json)


def _tell(name: str, done: str, *, as_json: bool) -> None:
    declared = name in config.load().servers
    if not declared:
        output.note(f"note: config.yaml has no server '{name}' yet")
    if as_json:
        place = str(credentials.path())
        output.document({"server": name, "credentials_path": place, "declared": declared})
    else:
        output.line(f"{done} {name}")


def graphs_list(as_json: Json = False) -> None:
    """List the graphs of a server."""
    from omnigraph.client.remote import served_graphs

    scope = resolve(None)
    if scope is None or scope.kind != "server":
        raise UsageError("`graphs list` asks a server", hint="pass --server URL, or the name of one")
    url = config.load().server(scope.target)
    found = [
        {"graph_id": each, "uri": f"{url}/graphs/{each}"}
        for each in served_graphs(url, token=credentials.token_for(url))
    ]
    if as_json:
        output.document({"graphs": found})
        return
    for each in found:
        output.line(f"{each['graph_id']}\t{each['uri']}")


def queries_list(as_json: Json = False) -> None:
    """List the stored queries of a graph."""
    from omnigraph.client.remote import connect

    address = addressed(None)
    if address.server is None:
        raise UsageError("a store has no stored queries", hint="pass --server URL, or the name of one")
    token = credentials.token_for(address.server)
    with connect(address.server, graph=address.graph, token=token) as graph:
        found = graph.queries.list()
    if as_json:
        output.document({"queries": [each.to_dict() for each in found]})
        return
    for each in found:
        output.line(
            f"{'mutate' if each.mutation else 'query'}\t{each.signature}\t{each.description or ''}".rstrip()
        )
