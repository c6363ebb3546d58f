"""Which graph a command means, and how it is opened."""

import sys
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, cast

from omnigraph.cli import output
from omnigraph.cli.addressing import Address, addressed, policy_for
from omnigraph.cli.addressing import settings as effective_settings
from omnigraph.cli.progress import reporting
from omnigraph.core.errors import ConfirmationRequired, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from omnigraph.api.graph import Graph
    from omnigraph.core.settings import Settings


def is_local(uri: str) -> bool:
    """Whether the graph lives in the file system: a bare path or file://."""
    return "://" not in uri or uri.startswith("file://")


def announce(command: str, uri: Address, *, quiet: bool, engine: str | None = None) -> None:
    """Name the target of a write on stderr before its first effect, and its engine, if chosen."""
    if quiet:
        return
    reached = "direct, local" if is_local(uri) else "direct, remote"
    if uri.server is not None:
        reached, engine = "server", None
    if engine is not None:
        reached = f"{reached} store; engine {engine}"
    output.note(f"{command} -> {uri} ({reached})")


def confirm(action: str, uri: str, *, yes: bool, as_json: bool) -> None:
    """Ask before a destructive action on a graph that is not local. Nothing has been opened yet.

    Raises ConfirmationRequired when the answer is not yes, or when nobody can be asked.
    """
    if is_local(uri) or yes:
        return
    if as_json or not sys.stdin.isatty():
        raise ConfirmationRequired(f"`{action}` on '{uri}' destroys data", hint="pass --yes to agree")
    sys.stderr.write(f"`{action}` on '{uri}' destroys data. Go on? [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
        raise ConfirmationRequired(f"`{action}` was not confirmed")


@contextmanager
def reading(
    store: str | None, *, settings: "Settings | None" = None, quiet: bool = False
) -> "Generator[Graph]":
    """The addressed graph, opened so that nothing of it can change, not even by recovery."""
    # Before anything heavy is imported: a graph that is not named fails at once.
    uri = addressed(store)
    if uri.server is not None:
        output.begin()
        with _connected(uri) as graph:
            yield graph
        return
    chosen = settings or effective_settings()
    output.begin()
    with reporting(quiet=quiet):
        from omnigraph.api.graph import open_read_only

        with open_read_only(uri, settings=chosen) as graph:
            yield graph


@contextmanager
def writing(
    store: str | None,
    command: str,
    *,
    quiet: bool,
    engine: str | None = None,
    settings: "Settings | None" = None,
    blob_sources: "list[str] | None" = None,
    before: "Callable[[], None] | None" = None,
) -> "Generator[Graph]":
    """The addressed graph, opened for writing after its name was announced, and after `before` was called.
    Where a policy is named, its writes ask it.

    Ctrl-C ends the command with a line about the outcome, as far as it is known.
    """
    uri = addressed(store)
    policy = policy_for(uri)
    announce(command, uri, quiet=quiet, engine=engine)
    known = output.NOT_BEGUN
    try:
        with ExitStack() as held:
            if uri.server is not None:
                if blob_sources:
                    raise UsageError("a server reads external blobs from its own places only")
                graph = held.enter_context(_connected(uri))
            else:
                chosen = settings or effective_settings()
                if before is not None:
                    before()
                from omnigraph.api.graph import open_graph

                held.enter_context(reporting(quiet=quiet))
                opened = open_graph(uri, settings=chosen, blob_sources=blob_sources, policy=policy)
                graph = held.enter_context(opened)
            known = "look at `omnigraph commit list` for what was done by then"
            yield graph
            known = "the command is complete"
    except KeyboardInterrupt as stop:
        # Here and not at the top: the parser would turn it into a bare exit status before.
        output.tell_interrupt(" ".join(getattr(stop, "__notes__", ())) or known)
        raise


@contextmanager
def _connected(uri: Address) -> "Generator[Graph]":
    """The graph behind a server. Its handle has the methods of a graph, or says what cannot be remote."""
    from omnigraph.cli.credentials import token_for
    from omnigraph.client.remote import connect

    with connect(str(uri.server), graph=uri.graph, token=token_for(str(uri.server))) as graph:
        yield cast("Graph", graph)
