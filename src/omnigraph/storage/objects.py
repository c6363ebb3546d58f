"""Text objects: the control files of a graph on local disk, in memory and on S3, with one meaning everywhere.

Names are relative to the root the adapter was opened at. A reader sees an object whole, old or new. Local
writes go through temporary names `name#<digits>`; listings hide them and nobody can address them.
"""

# ruff: noqa: D102  the methods of the adapters keep the contracts written at StorageAdapter

import contextlib
import fcntl
import hashlib
import itertools
import os
import shutil
import socket
import threading
import time
from collections.abc import Generator
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Literal, cast
from urllib.parse import urlsplit

from omnigraph.core.errors import StorageConfiguration
from omnigraph.core.events import DurableOperation, StorageCall, emit, listening
from omnigraph.storage.adapter import TEMPORARY, PreparedText, StorageAdapter, VersionedText
from omnigraph.storage.durability import DurabilityMode, sync_directories
from omnigraph.storage.failures import object_failure, os_failure, translated
from omnigraph.storage.layout import canonical_uri

if TYPE_CHECKING:
    from obstore.store import ObjectStore

REACHABLE_SECONDS_MAX: Final = 2.0
"""Wait for a connection that only tells "unreachable" from "refused the request"."""


class LocalAdapter(StorageAdapter):
    """Text objects in a directory of this machine.

    The operating system is called directly: obstore's local store offers neither syncing nor replacement on
    condition, and a sidecar that is not on the device protects nothing.
    """

    def __init__(self, root: str, durability: DurabilityMode = DurabilityMode.FULL) -> None:
        super().__init__(root)
        self._durability = durability
        self._numbers = itertools.count(1)

    def read_text_if_exists(self, name: str) -> str | None:
        path = self._path(name)
        emit(StorageCall("read_text", path))
        with translated(path):
            try:
                with open(path, encoding="utf-8", newline="") as file:
                    return file.read()
            except (FileNotFoundError, NotADirectoryError):
                return None

    def read_bytes(self, name: str) -> bytes:
        path = self._path(name)
        emit(StorageCall("read_bytes", path))
        with translated(path), open(path, "rb") as file:
            return file.read()

    def write_text(self, name: str, text: str) -> None:
        self.place_text(self.prepare_text(name, text))

    def prepare_text(self, name: str, text: str) -> PreparedText:
        with translated(self._path(name)):
            return PreparedText(name, text, self._write_temporary(self._path(name), text))

    def place_text(self, prepared: PreparedText) -> None:
        path = self._path(prepared.name)
        emit(StorageCall("write_text", path))
        with self._durable_step("write_text", path):
            try:
                self._replace(prepared.place, path)
            except FileNotFoundError:
                # Somebody took it for a dead writer's: the wait for a turn may be long.
                self._replace(self._write_temporary(path, prepared.text), path)
            self._sync_directory_of(path)

    def discard_text(self, prepared: PreparedText) -> None:
        _unlink_if_there(prepared.place)

    def unfinished(self, name: str, *, age_s_min: float) -> tuple[PreparedText, ...]:
        path = self._path(name)
        emit(StorageCall("list_dir", path))
        latest = time.time() - age_s_min
        found: list[PreparedText] = []
        with translated(path), contextlib.suppress(FileNotFoundError, NotADirectoryError):
            with os.scandir(path) as entries:
                hidden = [entry for entry in entries if TEMPORARY.search(entry.name)]
            for entry in hidden:
                with contextlib.suppress(FileNotFoundError):  # its writer has just placed or dropped it
                    if entry.is_file(follow_symlinks=False) and entry.stat().st_mtime <= latest:
                        intended = f"{name}/{TEMPORARY.sub('', entry.name)}"
                        found.append(PreparedText(intended, "", entry.path))
        return tuple(found)

    def write_text_if_absent(self, name: str, text: str) -> bool:
        path = self._path(name)
        emit(StorageCall("write_text_if_absent", path))
        with self._durable_step("write_text", path):
            if os.path.lexists(path):
                return False
            temporary = self._write_temporary(path, text)
            try:
                # A link never replaces: of many creators exactly one succeeds, and the object appears whole.
                os.link(temporary, path)
            except FileExistsError:
                return False
            finally:
                _unlink_if_there(temporary)
            self._sync_directory_of(path)
            return True

    def exists(self, name: str) -> bool:
        path = self._path(name)
        emit(StorageCall("exists", path))
        with translated(path):
            try:
                mode = os.stat(path)
            except (FileNotFoundError, NotADirectoryError):
                return False
            if not os.path.isdir(path):
                return bool(mode.st_mode)
            return any(_files_below(path))

    def identity(self, name: str) -> str | None:
        path = f"{self.uri}/{name}"
        if listening():
            emit(StorageCall("probe", path))
        try:
            found = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise os_failure(error, path) from error
        return f"{found.st_ino}-{found.st_mtime_ns}-{found.st_size}"

    def identities(self, names: tuple[str, ...]) -> tuple[object, ...]:
        if listening():
            for name in names:
                emit(StorageCall("probe", f"{self.uri}/{name}"))
        root, stat = self.uri, os.stat
        tokens: list[object] = []
        for name in names:
            try:
                found = stat(f"{root}/{name}")
            except (FileNotFoundError, NotADirectoryError):
                tokens.append(None)
                continue
            except OSError as error:
                raise os_failure(error, f"{root}/{name}") from error
            tokens += found.st_ino, found.st_mtime_ns, found.st_size
        return tuple(tokens)

    def rename_text(self, source: str, target: str) -> None:
        old, new = self._path(source), self._path(target)
        emit(StorageCall("rename_text", old))
        with self._durable_step("rename_text", new):
            self._make_directory(os.path.dirname(new))
            with self._directory_locked(new):
                os.replace(old, new)
            self._sync_directory_of(new)
            if os.path.dirname(old) != os.path.dirname(new):
                self._sync_directory_of(old)

    def delete(self, name: str, *, durable: bool = False) -> None:
        path = self._path(name)
        emit(StorageCall("delete", path))
        with self._durable_step("delete", path):
            # Usually not synced: readers can deal with a sidecar that comes back after a power cut.
            _unlink_if_there(path)
            if durable and os.path.isdir(os.path.dirname(path)):
                self._sync_directory_of(path)

    def list_dir(self, name: str) -> list[str]:
        path = self._path(name) if name.strip("/") else self.uri
        emit(StorageCall("list_dir", path))
        with translated(path):
            try:
                with os.scandir(path) as entries:
                    return [e.name for e in entries if e.is_file() and not TEMPORARY.search(e.name)]
            except (FileNotFoundError, NotADirectoryError):
                return []

    def read_text_versioned(self, name: str) -> VersionedText | None:
        text = self.read_text_if_exists(name)
        return None if text is None else VersionedText(text, _content_token(text))

    def write_text_if_match(self, name: str, text: str, token: str) -> str | None:
        path = self._path(name)
        emit(StorageCall("write_text_if_match", path))
        with self._durable_step("write_text", path):
            temporary = self._write_temporary(path, text)
            try:
                with self._directory_locked(path):
                    current = self.read_text_if_exists(name)
                    if current is None or _content_token(current) != token:
                        return None
                    os.replace(temporary, path)
            finally:
                _unlink_if_there(temporary)
            self._sync_directory_of(path)
            return _content_token(text)

    def delete_prefix(self, name: str) -> None:
        path = self._path(name)
        emit(StorageCall("delete_prefix", path))
        with self._durable_step("delete_prefix", path):
            if os.path.isdir(path) and not os.path.islink(path):
                shutil.rmtree(path)
            else:
                _unlink_if_there(path)
            if os.path.isdir(os.path.dirname(path)):
                self._sync_directory_of(path)

    def _path(self, name: str) -> str:
        return f"{self.uri}/{self._checked(name)}"

    @contextlib.contextmanager
    def _durable_step(self, kind: str, path: str) -> Generator[None]:
        with translated(path):
            emit(DurableOperation(kind, path, "before"))
            yield
            emit(DurableOperation(kind, path, "after"))

    def _replace(self, temporary: str, path: str) -> None:
        try:
            with self._directory_locked(path):
                os.replace(temporary, path)
        except BaseException:
            _unlink_if_there(temporary)
            raise

    def _write_temporary(self, path: str, text: str) -> str:
        """Write the text, synced, under a temporary name beside the path."""
        self._make_directory(os.path.dirname(path))
        while True:
            # The process id keeps two processes apart; a leftover of a dead one is stepped over.
            temporary = f"{path}#{os.getpid()}{next(self._numbers):06d}"
            try:
                descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
                break
            except FileExistsError:
                continue
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(text.encode())
                file.flush()
                if self._durability is not DurabilityMode.OS:
                    emit(DurableOperation("sync_file", temporary, "before"))
                    os.fsync(file.fileno())
                    emit(DurableOperation("sync_file", temporary, "after"))
        except BaseException:
            _unlink_if_there(temporary)
            raise
        return temporary

    def _make_directory(self, directory: str) -> None:
        if os.path.isdir(directory):
            return
        missing: list[str] = []
        current = directory
        while not os.path.isdir(current):
            missing.append(current)
            current = os.path.dirname(current)
        for path in reversed(missing):
            with contextlib.suppress(FileExistsError):
                os.mkdir(path)
            self._sync_directory_of(path)

    def _sync_directory_of(self, path: str) -> None:
        if self._durability is DurabilityMode.OS:
            return
        sync_directories([os.path.dirname(path)], self._durability)

    @contextlib.contextmanager
    def _directory_locked(self, path: str) -> Generator[None]:
        """Order the visible step of replacements, so that a compare and its write are one step."""
        descriptor = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


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
            client["allow_http"] = value.lower() in {"1", "true", "yes"}
        elif plain == "client_max_retries":
            retries["max_retries"] = int(value)
        elif plain == "client_retry_timeout":
            retries["retry_timeout"] = timedelta(seconds=int(value))
        elif plain in {"timeout", "connect_timeout", "proxy_url", "user_agent"}:
            client[plain] = value
        else:
            config[plain] = value
    with translated(address):
        return from_url(
            address,
            config=cast("Any", config),
            client_options=cast("Any", client),
            retry_config=cast("Any", retries or None),
        )


def _content_token(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _unlink_if_there(path: str) -> None:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        os.unlink(path)


def _files_below(path: str) -> Generator[str]:
    """Objects at any depth below a directory, temporary names left out."""
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _files_below(entry.path)
            elif not TEMPORARY.search(entry.name):
                yield entry.path


__all__ = ["LocalAdapter", "ObjectAdapter", "PreparedText", "StorageAdapter", "VersionedText", "open_adapter"]
