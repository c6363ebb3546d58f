"""The command that serves graphs over HTTP."""

import os
import sys
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from omnigraph.cli import output
from omnigraph.cli.addressing import settings as effective_settings
from omnigraph.cli.options import Json, teach
from omnigraph.core.errors import UsageError
from omnigraph.core.limits import DRAIN_S_DEFAULT, SERVER_READ_ROWS_MAX, SERVER_READ_S_MAX

if TYPE_CHECKING:
    from collections.abc import Mapping

    from omnigraph.core.permission import Policy
    from omnigraph.server.served import GraphToServe, ServedGraph, ServedGraphs
    from omnigraph.server.tokens import Tokens


class Default(StrEnum):
    """What the holder of any token may do where no policy says it."""

    READ = "read"
    WRITE = "write"


ServerFile = Annotated[
    str | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="Several graphs: {graphs: {ID: {store, queries, policy, read_only}}}.",
    ),
]
DrainTimeout = Annotated[
    int, typer.Option("--drain-timeout", metavar="SECONDS", help="How long streams may go on at the end.")
]
ReadOnly = Annotated[
    bool, typer.Option("--read-only", help="Never write, not even to finish an interrupted write.")
]
ReadTimeout = Annotated[
    float, typer.Option("--read-timeout", metavar="SECONDS", min=0.001, help="How long a read may take.")
]
ReadRows = Annotated[
    int, typer.Option("--read-rows", metavar="N", min=1, help="How many rows a read may give.")
]
ReadMemory = Annotated[
    int | None,
    typer.Option(
        "--read-memory",
        metavar="BYTES",
        min=1,
        help="What a read may hold at once; else as settings say.",
    ),
]
Queries = Annotated[
    list[str] | None,
    typer.Option(
        "--queries", metavar="PATH", help="Stored queries: a file, or a directory of them. Repeatable."
    ),
]
AllowedHosts = Annotated[
    list[str] | None,
    typer.Option("--allowed-host", metavar="NAME", help="A name of this server. Repeatable."),
]


def register(app: typer.Typer) -> None:
    """Add the commands of this module to the tree."""
    app.command(
        "serve",
        help=teach(
            "Serve a graph over HTTP.",
            "omnigraph serve kb.omni --default write",
            "omnigraph serve kb.omni --unauthenticated --bind 127.0.0.1:0",
            "omnigraph serve --config server.yaml",
            more=(
                "Tokens come from OMNIGRAPH_SERVER_BEARER_TOKEN, or from the JSON object of actors and tokens"
                " in OMNIGRAPH_SERVER_BEARER_TOKENS_FILE or OMNIGRAPH_SERVER_BEARER_TOKENS_JSON. One line on"
                " stdout names the address; the log is on stderr. SIGHUP reads tokens, policies, stored"
                " queries and the file of --config again."
            ),
        ),
    )(serve)


def serve(
    store: Annotated[str | None, typer.Argument(metavar="STORE", help="The graph to serve.")] = None,
    config: ServerFile = None,
    require_all: Annotated[
        bool, typer.Option("--require-all-graphs", help="Refuse to start without one of them.")
    ] = False,
    graph_id: Annotated[
        str, typer.Option("--graph-id", metavar="ID", help="What the graph is called in addresses.")
    ] = "default",
    bind: Annotated[
        str,
        typer.Option("--bind", metavar="HOST:PORT", envvar="OMNIGRAPH_BIND", help="Port 0 is any free one."),
    ] = "127.0.0.1:8080",
    default: Annotated[
        Default | None, typer.Option("--default", help="What every holder of a token may do.")
    ] = None,
    policy_file: Annotated[
        str | None, typer.Option("--policy", metavar="FILE", help="The policy of the graph.")
    ] = None,
    queries: Queries = None,
    unauthenticated: Annotated[
        bool, typer.Option("--unauthenticated", help="Serve without tokens: everybody may do everything.")
    ] = False,
    read_only: ReadOnly = False,
    allowed_host: AllowedHosts = None,
    read_s: ReadTimeout = SERVER_READ_S_MAX,
    read_rows: ReadRows = SERVER_READ_ROWS_MAX,
    read_memory: ReadMemory = None,
    drain_s: DrainTimeout = DRAIN_S_DEFAULT,
    as_json: Json = False,
) -> None:
    """Serve a graph over HTTP."""
    del as_json  # it says how a failure to start is told
    try:
        from omnigraph.server.app import LOOPBACK, Application
        from omnigraph.server.requests import ReadLimits
        from omnigraph.server.serving import Server, listening
    except ImportError as missing:
        raise UsageError("the server is not installed", hint="pip install 'omnigraph[server]'") from missing
    stored = tuple(queries or ())
    asked = _Asked(
        store, graph_id, config, policy_file, stored, default, unauthenticated, read_only, require_all
    )
    hosts = None if _open_to_others(bind) and not allowed_host else LOOPBACK | {*(allowed_host or ())}
    graphs, tokens = asked.read_again()
    limits = ReadLimits(read_s, read_rows, read_memory)
    application = Application(graphs, tokens, hosts=hosts, limits=limits, read_again=asked.read_again)
    try:
        with listening(bind) as sock:
            host, port = sock.getsockname()[:2]
            output.begin()
            output.line(f"OMNIGRAPH_LISTEN_ADDR={host}:{port}")
            sys.stdout.flush()
            Server(application, drain_s=drain_s).run(sockets=[sock])
    finally:
        application.close()


@dataclass(frozen=True, slots=True)
class _Asked:
    """What the command line says about the graphs."""

    store: str | None
    graph_id: str
    config: str | None
    policy_file: str | None
    queries: tuple[str, ...]
    default: Default | None
    unauthenticated: bool
    read_only: bool
    require_all: bool

    def read_again(self, before: "Mapping[str, ServedGraph] | None" = None) -> "tuple[ServedGraphs, Tokens]":
        """The graphs, open, and the tokens, as the files and the environment say now."""
        from omnigraph.server.served import open_all
        from omnigraph.server.tokens import read_tokens

        if (self.store is None) == (self.config is None):
            raise UsageError(
                "a server serves one STORE, or the graphs of a --config", hint="give one of them"
            )
        known = read_tokens(os.environ)
        wanted = self._wanted(tokens=bool(known))
        every = self.require_all or self.config is None
        return open_all(wanted, effective_settings(), all_of_them=every, before=before), known

    def _wanted(self, *, tokens: bool) -> "list[GraphToServe]":
        from omnigraph.server.served import GraphToServe
        from omnigraph.server.server_file import read_server_file
        from omnigraph.server.stored import read_queries

        def policy_of(file: str | None) -> "Policy":
            return _policy(file, self.default, unauthenticated=self.unauthenticated, tokens=tokens)

        if self.config is None:
            policy = policy_of(self.policy_file)
            stored = read_queries(self.queries)
            return [GraphToServe(self.graph_id, str(self.store), policy, self.read_only, stored)]
        if self.policy_file is not None or self.queries:
            raise UsageError(
                "the file of --config names policies and queries", hint="leave --policy and --queries out"
            )
        named = read_server_file(self.config, policy_of)
        return [replace(each, read_only=True) for each in named] if self.read_only else named


def _policy(file: str | None, default: Default | None, *, unauthenticated: bool, tokens: bool) -> "Policy":
    """What callers may do. Raises UsageError when nothing says it: that is never guessed."""
    from omnigraph.core.permission import READERS, WRITERS

    if file is not None and not tokens:
        raise UsageError(
            "a policy is given, and no token is set: nobody could ever be let in", hint="set one"
        )
    if file is not None and default is not None:
        raise UsageError("--policy and --default exclude each other", hint="give one of them")
    if not tokens and not unauthenticated:
        raise UsageError("no token is set", hint="set one, or pass --unauthenticated to let everybody in")
    if tokens and unauthenticated:
        raise UsageError("--unauthenticated and tokens exclude each other", hint="unset the tokens")
    if file is not None:
        from omnigraph.policy.decisions import load_policy

        return load_policy(file)
    if tokens and default is None:
        raise UsageError(
            "nothing says what holders of tokens may do",
            hint="pass --policy FILE, or --default read or write",
        )
    return READERS if default is Default.READ else WRITERS


def _open_to_others(bind: str) -> bool:
    from omnigraph.server.app import LOOPBACK

    return bind.rpartition(":")[0].strip("[]") not in LOOPBACK
