"""Text objects: the control files of a graph on local disk, in memory and on S3, with one meaning everywhere.

Names are relative to the root the adapter was opened at. A reader sees an object whole, old or new. What a
directory of this machine needs is in `local_objects`.
"""

# ruff: noqa: D102  the methods of the adapters keep the contracts written at StorageAdapter

import contextlib
import itertools
import os
import socket
import threading
from collections.abc import Generator, Iterable, Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Literal, cast
from urllib.parse import urlsplit

from omnigraph.core.errors import StorageConfiguration
from omnigraph.core.events import DurableOperation, StorageCall, emit
from omnigraph.storage.adapter import (
    CHUNK_BYTES,
    TEMPORARY,
    PreparedText,
    StorageAdapter,
    StoredObject,
    VersionedText,
)
from omnigraph.storage.durability import DurabilityMode
from omnigraph.storage.failures import object_failure, translated
from omnigraph.storage.layout import canonical_uri
from omnigraph.storage.local_objects import LocalAdapter

if TYPE_CHECKING:
    from obstore.store import ObjectStore

REACHABLE_SECONDS_MAX: Final = 2.0
"""Wait for a connection that only tells "unreachable" from "refused the request"."""


class ObjectAdapter(StorageAdapter):
    """Text objects in an obstore store (memory, S3), where an acknowledged write is durable."""

    def __init__(self, uri: str, store: "ObjectStore", endpoint: tuple[str, int] | None = None) -> None:
        super().__init__(uri)
        self._store = store
        self._endpoint = endpoint

    def read_text_if_exists(self, name: str) -> str | None:
        found = self.read_text_versioned(name)
        return None if found is None else found.text

    def write_text(self, name: str, text: str) -> None:
        self._put(name, text, "overwrite")

    def write_text_if_absent(self, name: str, text: str) -> bool:
        from obstore.exceptions import AlreadyExistsError  # noqa: PLC0415

        try:
            self._put(name, text, "create")
        except AlreadyExistsError:
            return False
        return True

    def exists(self, name: str) -> bool:
        import obstore  # noqa: PLC0415

        path = self._checked(name)
        emit(StorageCall("exists", self.address(path)))
        with translated(self.address(path), self._reachable):
            try:
                obstore.head(self._store, path)
            except FileNotFoundError:
                listing = obstore.list(self._store, prefix=f"{path}/", chunk_size=1)
                return any(True for _ in listing)
            return True

    def identity(self, name: str) -> str | None:
        import obstore  # noqa: PLC0415

        address = self.address(name)
        emit(StorageCall("probe", address))
        with translated(address, self._reachable):
            try:
                found = obstore.head(self._store, name)
            except FileNotFoundError:
                return None
            return str(found["e_tag"] or found["last_modified"])

    def rename_text(self, source: str, target: str) -> None:
        import obstore  # noqa: PLC0415

        old, new = self._checked(source), self._checked(target)
        emit(StorageCall("rename_text", self.address(old)))
        with self._durable_step("rename_text", new):
            obstore.copy(self._store, old, new)
            obstore.delete(self._store, old)

    def delete(self, name: str, *, durable: bool = False) -> None:  # noqa: ARG002  an object store always is
        import obstore  # noqa: PLC0415

        path = self._checked(name)
        emit(StorageCall("delete", self.address(path)))
        with self._durable_step("delete", path), contextlib.suppress(FileNotFoundError):
            obstore.delete(self._store, path)

    def list_dir(self, name: str) -> list[str]:
        import obstore  # noqa: PLC0415

        path = self._checked(name) if name.strip("/") else ""
        emit(StorageCall("list_dir", self.address(path)))
        with translated(self.address(path), self._reachable):
            listed = obstore.list_with_delimiter(self._store, prefix=f"{path}/" if path else None)
            names = [str(entry["path"]).rsplit("/", 1)[-1] for entry in listed["objects"]]
        return [name for name in names if not TEMPORARY.search(name)]

    def read_text_versioned(self, name: str) -> VersionedText | None:
        import obstore  # noqa: PLC0415

        path = self._checked(name)
        emit(StorageCall("read_text", self.address(path)))
        with translated(self.address(path), self._reachable):
            try:
                got = obstore.get(self._store, path)
                return VersionedText(bytes(got.bytes()).decode(), str(got.meta["e_tag"]))
            except FileNotFoundError:
                return None

    def write_text_if_match(self, name: str, text: str, token: str) -> str | None:
        from obstore.exceptions import PreconditionError  # noqa: PLC0415

        try:
            return self._put(name, text, {"e_tag": token})
        except (PreconditionError, FileNotFoundError):
            return None

    def delete_prefix(self, name: str) -> None:
        import obstore  # noqa: PLC0415

        path = self._checked(name)
        emit(StorageCall("delete_prefix", self.address(path)))
        with self._durable_step("delete_prefix", path):
            for page in obstore.list(self._store, prefix=f"{path}/"):
                obstore.delete(self._store, [entry["path"] for entry in page])
        self.delete(name)

    def write_bytes(self, name: str, data: bytes) -> None:
        """Create or replace an object of bytes: for what a running load hands from task to task."""
        import obstore  # noqa: PLC0415

        path = self._checked(name)
        emit(StorageCall("write_bytes", self.address(path)))
        with translated(self.address(path), self._reachable):
            obstore.put(self._store, path, data)

    def read_bytes(self, name: str) -> bytes:
        import obstore  # noqa: PLC0415

        path = self._checked(name)
        emit(StorageCall("read_bytes", self.address(path)))
        with translated(self.address(path), self._reachable):
            return bytes(obstore.get(self._store, path).bytes())

    def read_chunks(self, name: str) -> Iterator[bytes]:
        import obstore  # noqa: PLC0415

        path = self._checked(name)
        emit(StorageCall("read_bytes", self.address(path)))
        with translated(self.address(path), self._reachable):
            for chunk in obstore.get(self._store, path).stream(min_chunk_size=CHUNK_BYTES):
                yield bytes(chunk)

    def write_chunks(self, name: str, chunks: Iterable[bytes]) -> int:
        import obstore  # noqa: PLC0415

        path = self._checked(name)
        emit(StorageCall("write_bytes", self.address(path)))
        pieces = iter(chunks)
        first, second = next(pieces, b""), next(pieces, None)
        with translated(self.address(path), self._reachable):
            if second is None:  # one request instead of three
                obstore.put(self._store, path, first)
                return len(first)
            obstore.put(self._store, path, itertools.chain([first, second], pieces))
            return int(obstore.head(self._store, path)["size"])

    def sizes(self, name: str = "") -> dict[str, int]:
        import obstore  # noqa: PLC0415

        top = f"{self._checked(name)}/" if name else None
        emit(StorageCall("list_below", self.address(name)))
        with translated(self.address(name), self._reachable):
            pages = obstore.list(self._store, prefix=top)
            return {str(entry["path"]): int(entry["size"]) for page in pages for entry in page}

    def stored(self) -> dict[str, StoredObject]:
        import obstore  # noqa: PLC0415

        emit(StorageCall("list_below", self.uri))
        with translated(self.uri, self._reachable):
            return {
                str(entry["path"]): StoredObject(
                    int(entry["size"]), int(entry["last_modified"].timestamp() * 1_000_000)
                )
                for page in obstore.list(self._store)
                for entry in page
            }

    def remove(self, names: Sequence[str]) -> None:
        import obstore  # noqa: PLC0415

        emit(StorageCall("delete", self.uri))
        with self._durable_step("delete", self.uri):
            try:
                obstore.delete(self._store, list(names))
            except FileNotFoundError:  # some stores mind that one is gone already
                for name in names:
                    with contextlib.suppress(FileNotFoundError):
                        obstore.delete(self._store, name)

    @contextlib.contextmanager
    def _durable_step(self, kind: str, path: str) -> Generator[None]:
        address = self.address(path)
        with translated(address, self._reachable):
            emit(DurableOperation(kind, address, "before"))
            yield
            emit(DurableOperation(kind, address, "after"))

    def _reachable(self) -> bool:
        """Whether the store's endpoint accepts connections right now."""
        if self._endpoint is None:
            return True
        try:
            socket.create_connection(self._endpoint, timeout=REACHABLE_SECONDS_MAX).close()
        except OSError:
            return False
        return True

    def _put(self, name: str, text: str, mode: Literal["create", "overwrite"] | dict[str, str]) -> str:
        """Write; the new token. A refusal the caller asked for passes through as obstore raised it."""
        import obstore  # noqa: PLC0415
        from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError  # noqa: PLC0415

        path = self._checked(name)
        address = self.address(path)
        emit(StorageCall("write_text", address))
        emit(DurableOperation("write_text", address, "before"))
        try:
            put = obstore.put(self._store, path, text.encode(), mode=cast("Any", mode))
        except (AlreadyExistsError, PreconditionError, FileNotFoundError) as error:
            if mode == "overwrite":
                raise object_failure(error, address, self._reachable) from error
            raise
        except (BaseError, OSError) as error:
            raise object_failure(error, address, self._reachable) from error
        emit(DurableOperation("write_text", address, "after"))
        return str(put["e_tag"])


_memory_stores: dict[str, Any] = {}
_memory_lock: Final = threading.Lock()


def open_adapter(
    uri: str | os.PathLike[str],
    storage_options: dict[str, str] | None = None,
    *,
    durability: DurabilityMode = DurabilityMode.FULL,
) -> StorageAdapter:
    """The adapter for a local path, `memory://<name>` (shared within the process) or `s3://bucket/prefix`."""
    address = canonical_uri(uri)
    if "://" not in address:
        return LocalAdapter(address, durability)
    scheme = address.split("://", 1)[0]
    if scheme == "memory":
        from obstore.store import MemoryStore  # noqa: PLC0415

        with _memory_lock:
            return ObjectAdapter(address, _memory_stores.setdefault(address, MemoryStore()))
    if scheme not in {"s3", "gs", "az"}:
        raise StorageConfiguration(f"{address}: addresses of the form '{scheme}://' are not supported")
    return _remote_adapter(address, storage_options or {})


def _remote_adapter(address: str, storage_options: dict[str, str]) -> StorageAdapter:
    store = open_store(address, storage_options)
    config = {name.lower(): value for name, value in storage_options.items()}
    named = config.get("aws_endpoint") or config.get("aws_endpoint_url") or config.get("endpoint") or ""
    parts = urlsplit(named)
    endpoint = (
        (parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)) if parts.hostname else None
    )
    return ObjectAdapter(address, store, endpoint)


def open_store(address: str, storage_options: dict[str, str]) -> "ObjectStore":
    """A client of an object store, with the options Lance takes."""
    from obstore.store import from_url  # noqa: PLC0415

    # obstore wants what concerns the HTTP client apart.
    client: dict[str, Any] = {}
    config: dict[str, str] = {}
    retries: dict[str, Any] = {}
    for name, value in storage_options.items():
        plain = name.lower()
        if plain.removeprefix("aws_") == "allow_http":
            client["allow_http"] = _is_true(value)
        elif plain == "client_max_retries":
            retries["max_retries"] = int(value)
        elif plain == "client_retry_timeout":
            retries["retry_timeout"] = timedelta(seconds=int(value))
        elif plain in {"timeout", "connect_timeout", "proxy_url", "user_agent"}:
            client[plain] = value
        else:
            config[plain] = value
    if client and "AWS_ALLOW_HTTP" in os.environ:
        # Any option given here makes obstore forget those of the environment.
        client.setdefault("allow_http", _is_true(os.environ["AWS_ALLOW_HTTP"]))
    with translated(address):
        return from_url(
            address,
            config=cast("Any", config),
            client_options=cast("Any", client or None),
            retry_config=cast("Any", retries or None),
        )


def _is_true(value: str) -> bool:
    return value.lower() in {"1", "true", "yes"}


__all__ = ["LocalAdapter", "ObjectAdapter", "PreparedText", "StorageAdapter", "VersionedText", "open_adapter"]
