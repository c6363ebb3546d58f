"""The file that names the graphs of a server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import yaml
from msgspec import Meta

from omnigraph.core.errors import BadRequest, IoFailure
from omnigraph.server.served import GraphToServe
from omnigraph.server.stored import read_queries

if TYPE_CHECKING:
    from collections.abc import Callable

    from omnigraph.core.permission import Policy

Text = Annotated[str, Meta(min_length=1)]


class _Graph(msgspec.Struct, forbid_unknown_fields=True):
    store: Text
    policy: Text | None = None
    queries: Text | tuple[Text, ...] = ()
    read_only: bool = False


class _File(msgspec.Struct, forbid_unknown_fields=True):
    graphs: Annotated[dict[str, _Graph], Meta(min_length=1)]


def _listed(paths: str | tuple[str, ...]) -> tuple[str, ...]:
    return (paths,) if isinstance(paths, str) else paths


def read_server_file(path: str, policy_of: Callable[[str | None], Policy]) -> list[GraphToServe]:
    """What the file names, `graphs: {id: {store, queries, policy, read_only}}`.

    Paths are seen from its directory. `policy_of` gives the policy of a file, or the one of graphs that have
    none. Raises BadRequest, IoFailure, and the errors of query texts.
    """
    place = Path(path)
    try:
        said = msgspec.convert(yaml.safe_load(place.read_text(encoding="utf-8")), _File)
    except OSError as error:
        raise IoFailure(f"'{path}' cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BadRequest(f"'{path}' is not UTF-8 text") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = "" if mark is None else f" at line {mark.line + 1}"
        raise BadRequest(f"'{path}' is not valid YAML{where}") from error
    except msgspec.ValidationError as error:
        raise BadRequest(
            f"'{path}': {error}",
            hint="write graphs: { id: { store: URI, queries: FILE, policy: FILE, read_only: false } }",
        ) from error
    return [
        GraphToServe(
            graph_id,
            each.store if "://" in each.store else str(place.parent / each.store),
            policy_of(None if each.policy is None else str(place.parent / each.policy)),
            read_only=each.read_only,
            queries=read_queries([str(place.parent / path) for path in _listed(each.queries)]),
        )
        for graph_id, each in said.graphs.items()
    ]
