"""A graph behind a server, with the methods of `Graph` that make sense there."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, NoReturn, Self, cast
from urllib.parse import quote, urlsplit

import httpx2
import orjson

from omnigraph.api.arguments import text_checked_methods
from omnigraph.api.texts import source_text
from omnigraph.client.wire import (
    ARROW,
    LINES,
    commit_of,
    creation_of,
    deletion_of,
    failure_of,
    load_of,
    merge_of,
    mutation_of,
    rows_of,
    told,
)
from omnigraph.core.errors import BadRequest, IoFailure, NetworkError, NotRemote, OmnigraphError, Retry

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence
    from types import TracebackType

    from omnigraph.api.branches import BranchCreation
    from omnigraph.branching.branches import BranchDeletion
    from omnigraph.branching.merge_report import MergeReport
    from omnigraph.engine.read.result import Rows
    from omnigraph.engine.write.requests import MutationResult
    from omnigraph.manifest.commit_record import CommitRecord
    from omnigraph.pipeline.report import LoadReport

ATTEMPTS_MAX: Final = 4
"""How often a request is sent at most, when its error says that the same request may help."""
PAUSE_S: Final = 0.05
PAUSE_S_MAX: Final = 5.0
CONNECT_S_MAX: Final = 10.0
COMMITS_AT_ONCE: Final = 1_000
PIECE_BYTES: Final = 1 << 20
_AGAIN: Final = frozenset({Retry.SAME_REQUEST, Retry.AFTER_DELAY})
_NEVER_SENT: Final = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)


def connect(url: str, *, graph: str, token: str | None = None, timeout_s: float = 300.0) -> RemoteGraph:
    """A graph behind a server. Nothing is sent yet.

    ```python
    with omnigraph.connect("http://127.0.0.1:8080", graph="default", token="secret") as graph:
        print(graph.branches.list())
    ```

    Reads are sent again when the error says that this may help; writes only with an `idempotency_key`.
    `timeout_s` is how long the server may be silent; what it did not answer by then is not sent again.
    """
    _check_address(url)
    if not graph:
        raise BadRequest("the id of a graph is not blank", hint="GET /graphs of the server lists them")
    secret = None if token is None else token.strip()
    if secret is not None and not _fits_header(secret):
        raise BadRequest("a token is one word of printable ASCII characters")
    if not (timeout_s > 0 and math.isfinite(timeout_s)):
        raise BadRequest("a timeout is a number of seconds above 0")
    client = httpx2.Client(
        base_url=f"{url.rstrip('/')}/graphs/{quote(graph, safe='')}",
        headers={} if secret is None else {"Authorization": f"Bearer {secret}"},
        timeout=httpx2.Timeout(timeout_s, connect=min(timeout_s, CONNECT_S_MAX)),
        follow_redirects=False,
        trust_env=False,
    )
    return RemoteGraph(_Link(client))


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


def _fits_header(text: str) -> bool:
    return text.isascii() and text.isprintable() and text == text.strip() and text != ""


class _Link:
    """Requests of one graph, sent again where that is safe."""

    def __init__(self, client: httpx2.Client) -> None:
        self.client: Final = client

    def ask(self, method: str, path: str, *, writes: bool, again: bool, **named: Any) -> bytes:
        """The answer. `again`: sending it twice does it once. Raises the error that the server told."""
        sent = _as_json(named)
        self.check_open()
        lost: httpx2.RequestError | None = None
        for attempt in range(ATTEMPTS_MAX):
            last = attempt + 1 == ATTEMPTS_MAX or not again
            pause = min(PAUSE_S * 2**attempt, PAUSE_S_MAX)
            try:
                answer = self.client.request(method, path, **sent)
            except httpx2.RequestError as error:
                if not isinstance(error, _NEVER_SENT):
                    lost = error
                # A server that is silent may still be at work: asking again would make it work twice.
                if last or isinstance(error, (httpx2.ReadTimeout, httpx2.WriteTimeout)):
                    raise _network(lost or error, writing=writes, again=again) from error
            else:
                if answer.is_success:
                    return answer.content
                failure = failure_of(answer.status_code, answer.content)
                if failure.retry not in _AGAIN or (last and (lost is None or not writes)):
                    raise failure
                if last and lost is not None:
                    # An earlier attempt may have been carried out; what this one met says nothing of that.
                    raise _network(lost, writing=writes, again=again) from failure
                pause = max(pause, _told_pause(answer))
            time.sleep(pause)
        raise AssertionError("the last attempt returns or raises")

    def check_open(self) -> None:
        """Raise `BadRequest` on a closed handle."""
        if self.client.is_closed:
            raise BadRequest("the graph is closed")

    def get(self, path: str, **params: Any) -> bytes:
        """The answer of a read."""
        return self.ask("GET", path, writes=False, again=True, params=_given(params))

    def post(self, path: str, body: Mapping[str, Any]) -> bytes:
        """The answer of a write that is sent once."""
        return self.ask("POST", path, writes=True, again=False, json=_given(body))

    def remove(self, path: str) -> bytes:
        """The answer of a deletion."""
        return self.ask("DELETE", path, writes=True, again=False)

    @contextmanager
    def stream(self, path: str, body: Mapping[str, Any]) -> Generator[httpx2.Response]:
        """An answer that is read as it comes. Raises NetworkError when it ends before its end."""
        self.check_open()
        try:
            with self.client.stream("POST", path, **_as_json({"json": _given(body)})) as answer:
                if not answer.is_success:
                    raise failure_of(answer.status_code, answer.read())
                yield answer
        except httpx2.RequestError as error:
            raise _network(error, writing=False, again=True) from error


def _given(body: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if value is not None}


def _as_json(named: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a request, its object as JSON: dates and times are texts there."""
    if "json" not in named:
        return named
    rest = {name: value for name, value in named.items() if name != "json"}
    headers = {**rest.pop("headers", {}), "Content-Type": "application/json"}
    if not _finite(named["json"]):
        raise BadRequest("a parameter cannot be sent: it is or holds NaN or an infinity")
    try:
        return {**rest, "content": orjson.dumps(named["json"]), "headers": headers}
    except TypeError as error:
        raise BadRequest(f"a parameter cannot be sent: {error}") from error


def _finite(value: object) -> bool:
    """Whether JSON has every number of the value; the others would arrive as nulls."""
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(map(_finite, cast("dict[object, object]", value).values()))
    if isinstance(value, (list, tuple)):
        return all(map(_finite, cast("Sequence[object]", value)))
    return True


def _told_pause(answer: httpx2.Response) -> float:
    said = answer.headers.get("retry-after", "")
    return min(float(said), PAUSE_S_MAX) if said.isdecimal() else 0.0


def _network(error: httpx2.RequestError, *, writing: bool, again: bool) -> OmnigraphError:
    if isinstance(error, _NEVER_SENT):
        return NetworkError(
            f"the server was not reached ({type(error).__name__})", writing=False, hint="check the address"
        )
    hint = "send it again"
    if writing:
        known = "send it again with the same idempotency key"
        hint = known if again else "look whether the write is there before sending it again"
    return NetworkError(
        f"the server did not answer, or the connection was lost ({type(error).__name__})",
        writing=writing,
        hint=hint,
    )


class _Part:
    """What a graph behind a server is made of: names that are not there say why."""

    def __init__(self, link: _Link) -> None:
        self._link: Final = link

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        raise NotRemote(
            f"'{name}' is not there over a server", hint="open the graph by its storage for what it needs"
        )


@text_checked_methods
class RemoteGraph(_Part):
    """One graph behind a server. Thread-safe; use it as a context manager or call `close`.

    The methods are those of `Graph`, with the same results and errors. The token says who writes, so no call
    takes an actor. What is not there over a server raises `NotRemote`.
    """

    def __init__(self, link: _Link) -> None:
        super().__init__(link)
        self.branches: Final = RemoteBranches(link)
        self.commits: Final = RemoteCommits(link)
        self.tags: Final = RemoteTags(link)

    @property
    def uri(self) -> str:
        """The address of the graph on its server."""
        return str(self._link.client.base_url).rstrip("/")

    def query(
        self,
        source: str | os.PathLike[str],
        params: Mapping[str, Any] | None = None,
        *,
        name: str | None = None,
        branch: str | None = None,
        at: str | None = None,
    ) -> Rows:
        """Run a read query. As `Graph.query`."""
        text = source_text(source)[0]
        body = {"query": text, "params": _plain(params), "name": name, "branch": branch, "at": at}
        return rows_of(
            self._link.ask(
                "POST", "/query", writes=False, again=True, json=_given(body), headers={"Accept": ARROW}
            )
        )

    def mutate(
        self,
        source: str | os.PathLike[str],
        params: Mapping[str, Any] | None = None,
        *,
        name: str | None = None,
        branch: str = "main",
        if_commit: str | None = None,
        idempotency_key: str | None = None,
    ) -> MutationResult:
        """Run a mutation as one commit, or change nothing. As `Graph.mutate`."""
        text = source_text(source)[0]
        if idempotency_key is not None and not _fits_header(idempotency_key):
            raise BadRequest(
                "an idempotency key that goes to a server is printable ASCII text",
                hint="use a random id per request, and send it again with the same request only",
            )
        body = {
            "query": text,
            "params": _plain(params),
            "name": name,
            "branch": branch,
            "if_commit": if_commit,
        }
        answer = self._link.ask(
            "POST",
            "/mutate",
            writes=True,
            again=idempotency_key is not None,
            json=_given(body),
            headers={} if idempotency_key is None else {"Idempotency-Key": idempotency_key},
        )
        return told(answer, mutation_of)

    def load(
        self,
        source: str | os.PathLike[str] | IO[bytes],
        *,
        mode: str,
        branch: str = "main",
        base: str | None = None,
        if_commit: str | None = None,
    ) -> LoadReport:
        """Load one file or stream of JSON lines as one commit, or change nothing."""
        params = _given({"mode": mode, "branch": branch, "from": base, "if_commit": if_commit})
        headers = {"Content-Type": LINES}
        with _opened(source) as records:
            answer = self._link.ask(
                "POST",
                "/load",
                writes=True,
                again=False,
                params=params,
                headers=headers,
                content=_pieces(records),
            )
        return told(answer, load_of)

    def export_chunks(
        self, *, branch: str | None = None, at: str | None = None, types: Sequence[str] | None = None
    ) -> Iterator[bytes]:
        """The state of a branch or commit as chunks of JSON lines. As `Graph.export_chunks`.

        Raises NetworkError when the server stops before the end: what came by then is not the whole.
        """
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
    ) -> str:
        """The state of a branch as JSON lines. With `target` the lines go there and the result is empty."""
        chunks = self.export_chunks(branch=branch, at=at, types=types)
        if target is None:
            return b"".join(chunks).decode()
        for chunk in chunks:
            target.write(chunk)
        return ""

    def schema_source(self) -> str:
        """The accepted schema, as it was written."""
        return told(self._link.get("/schema"), lambda said: str(said["schema_source"]))

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


@text_checked_methods
class RemoteBranches(_Part):
    """The branches of a graph behind a server."""

    def list(self) -> list[str]:
        """All branches, main first, then by name."""
        names = told(self._link.get("/branches"), lambda said: [str(each) for each in said["branches"]])
        return sorted(names, key=lambda name: (name != "main", name))

    def create(self, name: str, *, from_branch: str = "main") -> BranchCreation:
        """Make a branch that shows what `from_branch` shows now."""
        return told(self._link.post("/branches", {"name": name, "from": from_branch}), creation_of)

    def delete(self, name: str) -> BranchDeletion:
        """Delete a branch."""
        return told(self._link.remove(f"/branches/{quote(name, safe='')}"), deletion_of)

    def merge(
        self, source: str, *, into: str = "main", on_conflict: str | Mapping[str, str] | None = None
    ) -> MergeReport:
        """Merge the head of `source` into another branch as one commit with two parents."""
        sides = dict(on_conflict) if isinstance(on_conflict, Mapping) else on_conflict
        body = {"source": source, "target": into, "on_conflict": sides}
        return told(self._link.post("/branches/merge", body), merge_of)


@text_checked_methods
class RemoteCommits(_Part):
    """The history of a graph behind a server."""

    def list(
        self,
        *,
        branch: str = "main",
        actor: str | None = None,
        limit: int | None = None,
        before: str | None = None,
        since_us: int | None = None,
        until_us: int | None = None,
    ) -> list[CommitRecord]:
        """Commits of a branch, newest first. As `Graph.commits.list`."""
        found: list[CommitRecord] = []
        while limit is None or len(found) < limit:
            wanted = COMMITS_AT_ONCE if limit is None else min(limit - len(found), COMMITS_AT_ONCE)
            answer = self._link.get(
                "/commits",
                branch=branch,
                actor=actor,
                limit=wanted,
                before=found[-1].id if found else before,
                since=since_us,
                until=until_us,
            )
            page = told(answer, lambda said: [commit_of(each) for each in said["commits"]])
            found += page
            if len(page) < wanted:
                break
        return found

    def show(self, reference: str) -> CommitRecord:
        """One commit: that of an id, a tag, or the head of a branch."""
        return told(self._link.get(f"/commits/{quote(reference, safe='')}"), commit_of)

    def head(self, *, branch: str = "main") -> CommitRecord:
        """The newest commit of a branch."""
        return told(
            self._link.get("/commits", branch=branch, limit=1), lambda said: commit_of(said["commits"][0])
        )


@text_checked_methods
class RemoteTags(_Part):
    """The tags of a graph behind a server."""

    def list(self) -> dict[str, str]:
        """Every tag and the commit it names."""
        return told(
            self._link.get("/tags"), lambda said: {str(name): str(at) for name, at in said["tags"].items()}
        )

    def create(self, name: str, *, at: str = "main") -> str:
        """Name a commit for good."""
        answer = self._link.post("/tags", {"name": name, "at": at})
        return told(answer, lambda said: str(said["graph_commit_id"]))

    def delete(self, name: str) -> None:
        """Forget a name; the commit stays."""
        self._link.remove(f"/tags/{quote(name, safe='')}")


def _plain(params: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return None if params is None else dict(params)


@contextmanager
def _opened(source: str | os.PathLike[str] | IO[bytes]) -> Generator[IO[bytes]]:
    if not isinstance(source, (str, os.PathLike)):
        yield source
        return
    try:
        file = Path(source).open("rb")  # noqa: SIM115  closed below; only its opening fails like this
    except OSError as error:
        raise IoFailure(f"'{source}' cannot be read: {error.strerror}") from error
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
