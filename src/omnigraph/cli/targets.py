"""Which graph a command means, and how it is opened."""

from contextlib import contextmanager
from typing import TYPE_CHECKING

from omnigraph.cli import output
from omnigraph.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Generator

    from omnigraph.api.graph import Graph


def addressed(store: str | None) -> str:
    """The storage URI of the graph a user named."""
    if not store:
        raise UsageError("no graph addressed", hint="pass --store URI, or set OMNIGRAPH_STORE")
    if store.startswith(("http://", "https://")):
        raise UsageError(
            f"'{store}' is a server, not a store", hint="pass the graph's storage URI as --store"
        )
    return store


def is_local(uri: str) -> bool:
    """Whether the graph lives in the file system: a bare path or file://."""
    return "://" not in uri or uri.startswith("file://")


def announce(command: str, uri: str, *, quiet: bool) -> None:
    """Name the target of a write on stderr before its first effect."""
    if not quiet:
        output.note(f"{command} -> {uri} (direct, {'local' if is_local(uri) else 'remote'})")


@contextmanager
def reading(store: str | None) -> "Generator[Graph]":
    """The addressed graph, opened so that nothing of it can change, not even by recovery."""
    from omnigraph.api.graph import open_read_only

    with open_read_only(addressed(store)) as graph:
        yield graph


@contextmanager
def writing(store: str | None, command: str, *, quiet: bool) -> "Generator[Graph]":
    """The addressed graph, opened for writing after its name was announced."""
    uri = addressed(store)
    announce(command, uri, quiet=quiet)
    from omnigraph.api.graph import open_graph

    with open_graph(uri) as graph:
        yield graph
