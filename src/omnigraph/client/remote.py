"""A graph behind a server, with the methods of `Graph` that make sense there."""

from __future__ import annotations

import math
import os
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, Self, Unpack, cast
from urllib.parse import quote, urlsplit

import httpx2
import orjson

from omnigraph.api.arguments import text_checked_methods
from omnigraph.api.at import GraphAt
from omnigraph.api.texts import source_text
from omnigraph.client import reports
from omnigraph.client.link import Link, Part, check_caller, fits_header, given, key_header, refuse_local
from omnigraph.client.parts import RemoteBranches, RemoteCommits, RemoteFeed, RemoteTags
from omnigraph.client.stored import RemoteQueries
from omnigraph.client.wire import ARROW, LINES, load_of, merge_of, mutation_of, rows_of, told
from omnigraph.core.errors import BadRequest, IoFailure, NotRemote, TargetConflict

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
    from datetime import timedelta
    from types import TracebackType

    from omnigraph.api.graph import Graph
    from omnigraph.api.loads import LoadWords
    from omnigraph.branching.blame import Blame
    from omnigraph.branching.history import Diff
    from omnigraph.branching.merge_report import MergeReport
    from omnigraph.core.bounds import CallLimits
    from omnigraph.engine.entities.blob_cells import Blob
    from omnigraph.engine.entities.lookup import Entity
    from omnigraph.engine.evolve.apply import AppliedSchema
    from omnigraph.engine.read.explain import Explanation
    from omnigraph.engine.read.result import Rows
    from omnigraph.engine.write.requests import MutationResult
    from omnigraph.maintenance.cleanup_report import CleanupReport
    from omnigraph.maintenance.index_report import IndexesReport
    from omnigraph.maintenance.optimize import OptimizeReport
    from omnigraph.maintenance.stats import StatsReport
    from omnigraph.manifest.state import Snapshot
    from omnigraph.pipeline.load.load import Sources
    from omnigraph.pipeline.report import LoadReport
    from omnigraph.planning.keys import EntityKey

CONNECT_S_MAX: Final = 10.0
PIECE_BYTES: Final = 1 << 20
_PACKED: Final = (".gz", ".zst")
_LINES: Final = (".jsonl", ".ndjson", ".json")


def connect(url: str, *, graph: str, token: str | None = None, timeout_s: float = 300.0) -> RemoteGraph:
    """A graph behind a server. Nothing is sent yet.

    ```python
    with omnigraph.connect("http://127.0.0.1:8080", graph="default", token="secret") as graph:
        print(graph.branches.list())
    ```

    Reads are sent again when the error says that this may help; writes only with an `idempotency_key`.
    `timeout_s` is how long the server may be silent; what it did not answer by then is not sent again.
    """
    if not graph:
        raise BadRequest("the id of a graph is not blank", hint="GET /graphs of the server lists them")
    return RemoteGraph(_linked(url, f"/graphs/{quote(graph, safe='')}", token, timeout_s))


def served_graphs(url: str, *, token: str | None = None, timeout_s: float = 300.0) -> list[str]:
    """The ids of the graphs of a server that the holder of the token may read."""
    link = _linked(url, "", token, timeout_s)
    with link.client:
        return told(link.get("/graphs"), lambda said: [str(each["graph_id"]) for each in said["graphs"]])


def _linked(url: str, path: str, token: str | None, timeout_s: float) -> Link:
    _check_address(url)
    secret = None if token is None else token.strip()
    if secret is not None and not fits_header(secret):
        raise BadRequest("a token is one word of printable ASCII characters")
    if not (timeout_s > 0 and math.isfinite(timeout_s)):
        raise BadRequest("a timeout is a number of seconds above 0")
    return Link(
        httpx2.Client(
            base_url=f"{url.rstrip('/')}{path}",
            headers={} if secret is None else {"Authorization": f"Bearer {secret}"},
            timeout=httpx2.Timeout(timeout_s, connect=min(timeout_s, CONNECT_S_MAX)),
            follow_redirects=False,
            trust_env=False,
            # Without TLS there is nothing to verify, and reading certificates takes longer than a request.
            verify=urlsplit(url).scheme == "https",
        )
    )


def _check_address(url: str) -> None:
    """The address may be shown, so what is wrong with it is said without it: it may hold a password."""
    try:
        parts = urlsplit(url)
        whole = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        raise BadRequest("the address of a server is not a URL") from None
    if not whole or not url.isascii() or not url.isprintable() or " " in url:
        raise BadRequest("the address of a server is like http://host:8080 or https://host")
    if parts.username is not None or parts.query or parts.fragment:
        raise BadRequest("the address of a server has no password and no parameters", hint="give a token")


@text_checked_methods
class RemoteGraph(Part):
    """One graph behind a server. Thread-safe; use it as a context manager or call `close`.

    The methods are those of `Graph`, with the same results and errors. The token says who writes, so no call
    takes an actor. What is not there over a server raises `NotRemote`.
    """

    def __init__(self, link: Link) -> None:
        super().__init__(link)
        self.branches: Final = RemoteBranches(link)
        self.commits: Final = RemoteCommits(link)
        self.tags: Final = RemoteTags(link)
        self.feed: Final = RemoteFeed(link)
        self.queries: Final = RemoteQueries(link)

    @property
    def uri(self) -> str:
        """The address of the graph on its server."""
        return str(self._link.client.base_url).rstrip("/")

    # --- reading -----------------------------------------------------------------------------------------

    def query(
        self,
        source: str | os.PathLike[str],
        params: Mapping[str, Any] | None = None,
        *,
        name: str | None = None,
        branch: str | None = None,
        at: str | None = None,
        **_limits: Unpack[CallLimits],
    ) -> Rows:
        """Run a read query. As `Graph.query`."""
        text = source_text(source)[0]
        body = {"query": text, "params": _plain(params), "name": name, "branch": branch, "at": at}
        return rows_of(self._link.look("/query", body, accept=ARROW))

    def query_document(
        self,
        source: str | os.PathLike[str],
        params: Mapping[str, Any] | None = None,
        *,
        name: str | None = None,
        branch: str | None = None,
        at: str | None = None,
        **_limits: Unpack[CallLimits],
    ) -> dict[str, Any]:
        """The result of a read query as one JSON object, as `Rows.envelope` gives it; Arrow is not loaded."""
        text = source_text(source)[0]
        body = {"query": text, "params": _plain(params), "name": name, "branch": branch, "at": at}
        return told(self._link.look("/query", body), lambda said: said)

    def explain(
        self,
        source: str | os.PathLike[str],
        params: Mapping[str, Any] | None = None,
        *,
        analyze: bool = False,
        name: str | None = None,
        branch: str | None = None,
        at: str | None = None,
        **_limits: Unpack[CallLimits],
    ) -> Explanation:
        """How a read query would be answered; with `analyze` it is run and measured."""
        text = source_text(source)[0]
        body = {"query": text, "params": _plain(params), "name": name, "branch": branch, "at": at}
        return told(self._link.look("/explain", {**body, "analyze": analyze}), reports.explanation_of)

    def at(
        self, reference: str | int, *, branch: str | None = None, **_limits: Unpack[CallLimits]
    ) -> GraphAt:
        """The graph as it was at a commit, a tag, or the present head of a branch; for reading."""
        if isinstance(reference, int):
            state = told(
                self._link.get("/snapshot", branch=branch or "main", version=reference), reports.snapshot_of
            )
            return GraphAt(cast("Graph", self), state.head)
        if branch is not None:
            raise TargetConflict("a branch is given with a version number only", hint="leave out branch")
        return GraphAt(cast("Graph", self), self.commits.show(reference).id)

    def diff(
        self,
        old: str,
        new: str,
        *,
        types: Sequence[str] | None = None,
        ops: Sequence[str] | None = None,
        kinds: Sequence[str] | None = None,
        **_limits: Unpack[CallLimits],
    ) -> Diff:
        """What differs between two states, each a branch, a tag or a commit id."""
        body = {"from": old, "to": new, "type": types, "op": ops, "kind": kinds}
        return told(self._link.look("/diff", body), reports.diff_of)

    def blame(
        self, type_name: str, entity_id: EntityKey, *, at: str = "main", **_limits: Unpack[CallLimits]
    ) -> Blame:
        """Which commit, actor and branch gave each property of an entity its present value."""
        return told(self._link.get("/blame", type=type_name, at=at, **_named(entity_id)), reports.blame_of)

    def entity(
        self,
        type_name: str,
        entity_id: EntityKey,
        *,
        branch: str | None = None,
        at: str | None = None,
        **_limits: Unpack[CallLimits],
    ) -> Entity:
        """One node or edge by its id, as a branch shows it or a commit or tag showed it."""
        params = {"type": type_name, "branch": branch, "at": at, **_named(entity_id)}
        answer = self._link.ask(
            "GET", "/entity", writes=False, again=True, params=given(params), headers={"Accept": ARROW}
        )
        return reports.entity_of(answer.content)

    def blob(
        self,
        type_name: str,
        entity_id: EntityKey,
        property_name: str,
        *,
        kind: str | None = None,
        branch: str | None = None,
        at: str | None = None,
        **_limits: Unpack[CallLimits],
    ) -> Blob:
        """One blob of one entity, with its bytes, or the address of an external one."""
        if kind not in {None, "node", "edge"}:
            raise BadRequest(f"unknown kind '{kind}'", hint="use node or edge")
        named = {"type": type_name, "property": property_name, "entity": kind, "branch": branch, "at": at}
        params = given({**named, **_named(entity_id)})
        return reports.blob_of(
            self._link.ask("GET", "/blob", writes=False, again=True, moved=True, params=params)
        )

    def snapshot(
        self, *, branch: str | None = None, at: str | None = None, **_limits: Unpack[CallLimits]
    ) -> Snapshot:
        """What a branch shows now, or showed at a commit or tag: the version and size of every table."""
        return told(self._link.get("/snapshot", branch=branch, at=at), reports.snapshot_of)

    def stats(
        self, *, branch: str | None = None, at: str | None = None, **_limits: Unpack[CallLimits]
    ) -> StatsReport:
        """How many rows, bytes, fragments, versions and index segments each table has on each branch."""
        return told(self._link.get("/stats", branch=branch, at=at), reports.stats_of)

    def indexes(
        self,
        *,
        branch: str | None = None,
        at: str | None = None,
        types: Sequence[str] | None = None,
        **_limits: Unpack[CallLimits],
    ) -> IndexesReport:
        """Which indexes are declared and built on which columns, what they cover, and what they take."""
        named = None if not types else list(types)
        return told(self._link.get("/indexes", branch=branch, at=at, type=named), reports.indexes_of)

    def schema_source(self) -> str:
        """The accepted schema, as it was written."""
        return told(self._link.get("/schema"), lambda said: str(said["schema_source"]))

    def export_chunks(
        self,
        *,
        branch: str | None = None,
        at: str | None = None,
        types: Sequence[str] | None = None,
        format: str = "jsonl",  # noqa: A002  the word of the command line,
        **_limits: Unpack[CallLimits],
    ) -> Iterator[bytes]:
        """The state of a branch or commit as chunks of JSON lines. As `Graph.export_chunks`.

        Raises NetworkError when the server stops before the end: what came by then is not the whole.
        """
        refuse_local(format=None if format == "jsonl" else format)
        body = {"branch": branch, "at": at, "type_names": None if types is None else list(types)}
        with self._link.stream("/export", body) as answer:
            yield from answer.iter_bytes()

    def export(
        self,
        target: IO[bytes] | None = None,
        *,
        branch: str | None = None,
        at: str | None = None,
        types: Sequence[str] | None = None,
        **_limits: Unpack[CallLimits],
    ) -> str:
        """The state of a branch as JSON lines. With `target` the lines go there and the result is empty."""
        chunks = self.export_chunks(branch=branch, at=at, types=types)
        if target is None:
            return b"".join(chunks).decode()
        for chunk in chunks:
            target.write(chunk)
        return ""

    # --- writing -----------------------------------------------------------------------------------------

    def mutate(
        self,
        source: str | os.PathLike[str],
        params: Mapping[str, Any] | None = None,
        *,
        name: str | None = None,
        branch: str = "main",
        actor: str | None = None,
        if_commit: str | None = None,
        idempotency_key: str | None = None,
        **_limits: Unpack[CallLimits],
    ) -> MutationResult:
        """Run a mutation as one commit, or change nothing. As `Graph.mutate`."""
        check_caller(actor)
        text = source_text(source)[0]
        body = {
            "query": text,
            "params": _plain(params),
            "name": name,
            "branch": branch,
            "if_commit": if_commit,
        }
        return told(self._link.post("/mutate", body, idempotency_key), mutation_of)

    def mutate_many(
        self,
        source: str | os.PathLike[str],
        parameter_sets: Iterable[Mapping[str, Any]],
        *,
        name: str | None = None,
        branch: str = "main",
        actor: str | None = None,
        if_commit: str | None = None,
        idempotency_key: str | None = None,
        **_limits: Unpack[CallLimits],
    ) -> MutationResult:
        """Run a mutation once for each set of parameters, in order, as one commit, or change nothing."""
        check_caller(actor)
        text, sets = source_text(source)[0], [dict(each) for each in parameter_sets]
        body = {"query": text, "parameter_sets": sets, "name": name, "branch": branch, "if_commit": if_commit}
        return told(self._link.post("/mutate/many", body, idempotency_key), mutation_of)

    def load(
        self,
        sources: Sources | None = None,
        *,
        mode: str = "",
        branch: str = "main",
        base: str | None = None,
        actor: str | None = None,
        engine: str = "local",
        replace_types: Sequence[str] = (),
        rejects: str | os.PathLike[str] | None = None,
        max_rejects: int | None = None,
        on_duplicate: str | None = None,
        resume: str | None = None,
        format: str | None = None,  # noqa: A002  the word of the command line
        type_name: str | None = None,
        if_commit: str | None = None,
        idempotency_key: str | None = None,
        spark: Any = None,
        **form: Unpack[LoadWords],
    ) -> LoadReport:
        """Load files or a stream of JSON lines as one commit, or change nothing. The server reads them in its
        own process, whatever the `engine`. With an `idempotency_key` files are sent again when an answer is
        lost; a stream, which can be read once, is not.
        """
        del engine
        check_caller(actor)
        other = None if format in {None, "jsonl"} else format
        refuse_local(rejects=rejects, max_rejects=max_rejects, resume=resume, spark=spark, format=other)
        refuse_local(type_name=type_name, **cast("dict[str, object]", form))
        if sources is None:
            raise BadRequest("a load needs an input")
        params = {
            "mode": mode,
            "branch": branch,
            "from": base,
            "if_commit": if_commit,
            "replace_types": list(replace_types) or None,
            "on_duplicate": on_duplicate,
        }
        headers = {"Content-Type": LINES, **key_header(idempotency_key)}
        records = _Records(sources)
        answer = self._link.ask(
            "POST",
            "/load",
            writes=True,
            again=idempotency_key is not None and records.again,
            params=given(params),
            headers=headers,
            content=records,
        )
        return told(answer.content, load_of)

    def revert(
        self,
        commit: str,
        *,
        branch: str = "main",
        parent: str | None = None,
        actor: str | None = None,
        **_limits: Unpack[CallLimits],
    ) -> MergeReport:
        """Take back what one commit did, as a new commit; later changes of other entities stay."""
        check_caller(actor)
        body = {"commit": commit, "branch": branch, "parent": parent}
        return told(self._link.post("/revert", body), merge_of)

    def apply_schema(
        self,
        schema: str | bytes | os.PathLike[str],
        *,
        file: str | None = None,
        actor: str | None = None,
        dry_run: bool = False,
        allow_data_loss: bool = False,
        fills: Sequence[str] = (),
        **_limits: Unpack[CallLimits],
    ) -> AppliedSchema:
        """Make a text the schema of the graph, as one commit of main, or change nothing."""
        check_caller(actor)
        if isinstance(schema, bytes):
            try:
                text = schema.decode()
            except UnicodeDecodeError:
                raise BadRequest("the schema is not UTF-8 text") from None
        else:
            text, named = source_text(schema)
            file = file or named
        body = {
            "schema_source": text,
            "file": file,
            "dry_run": dry_run,
            "allow_data_loss": allow_data_loss,
            "fills": list(fills),
        }
        return told(self._link.post("/schema/apply", body), reports.applied_of)

    def optimize(
        self,
        *,
        branch: str = "main",
        types: Sequence[str] | None = None,
        actor: str | None = None,
        **_limits: Unpack[CallLimits],
    ) -> OptimizeReport:
        """Write small fragments as few, drop deleted rows, and bring every index up to date."""
        check_caller(actor)
        body = {"branch": branch, "types": None if types is None else list(types)}
        return told(self._link.post("/optimize", body), reports.optimized_of)

    def cleanup(
        self,
        *,
        keep: int | None = None,
        older_than: timedelta | None = None,
        dry_run: bool = False,
        actor: str | None = None,
        **_limits: Unpack[CallLimits],
    ) -> CleanupReport:
        """Remove states that nobody wants any more, and every file that only they are read from."""
        check_caller(actor)
        age = None if older_than is None else int(older_than.total_seconds())
        body = {"keep": keep, "older_than_s": age, "dry_run": dry_run}
        return told(self._link.post("/cleanup", body), reports.cleanup_of)

    def close(self) -> None:
        """Let go of connections. Calling it again does nothing."""
        self._link.client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"RemoteGraph({self.uri!r})"


def _plain(params: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return None if params is None else dict(params)


def _named(entity_id: EntityKey) -> dict[str, str]:
    """What names an entity, as parameters. Raises BadRequest."""
    if isinstance(entity_id, str):
        return {"id": entity_id}
    if isinstance(entity_id, date):
        return {"id": entity_id.isoformat()}
    try:
        return {"key": orjson.dumps(entity_id).decode()}
    except TypeError as error:
        raise BadRequest(f"a key cannot be sent: {error}") from error


class _Records:
    """The records of a load, piece by piece: of files as often as they are asked for, of a stream once."""

    def __init__(self, sources: Sources) -> None:
        self._files: list[Path] | None = None
        self._stream: IO[bytes] | None = None
        if hasattr(sources, "read"):
            self._stream = cast("IO[bytes]", sources)
        else:
            listed = [sources] if isinstance(sources, (str, os.PathLike)) else cast("Sequence[Any]", sources)
            self._files = [_file(each) for each in listed]

    @property
    def again(self) -> bool:
        """Whether they can be read once more."""
        return self._files is not None

    def __iter__(self) -> Iterator[bytes]:
        if self._stream is not None:
            yield from _pieces(self._stream)
            return
        for path in self._files or ():
            last = b"\n"
            with _opened(path) as file:
                for piece in _pieces(file):
                    last = piece
                    yield piece
            if not last.endswith(b"\n"):
                # The first record of the next file begins on a line of its own.
                yield b"\n"


def _file(source: str | os.PathLike[str]) -> Path:
    """One file of JSON lines. Raises NotRemote for another form, IoFailure for one that is not there."""
    path = Path(source)
    if path.name.endswith(_PACKED) or (path.suffix and path.suffix not in _LINES):
        raise NotRemote(
            f"'{path.name}' is not a file of JSON lines, and only those are sent to a server",
            hint="make JSON lines of it, or load it into the storage directly",
        )
    if path.is_dir():
        raise NotRemote(f"'{path}' is a directory; files are sent one by one", hint="name its files")
    with _opened(path):
        return path


@contextmanager
def _opened(path: Path) -> Generator[IO[bytes]]:
    try:
        file = path.open("rb")
    except OSError as error:
        raise IoFailure(f"'{path}' cannot be read: {error.strerror}") from error
    with file:
        yield file


def _pieces(records: IO[bytes]) -> Iterator[bytes]:
    """What is read, piece by piece. A failure cuts the request short, and the server then writes nothing."""
    while True:
        try:
            piece = cast("object", records.read(PIECE_BYTES))
        except OSError as error:
            raise IoFailure(f"the records cannot be read: {error.strerror}") from error
        if not isinstance(piece, bytes):
            raise BadRequest("a stream of records gives bytes", hint="open it in binary mode")
        if not piece:
            return
        yield piece
