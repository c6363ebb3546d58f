"""Text objects in a directory of this machine.

Writes go through temporary names `name#<digits>`; listings hide them and nobody can address them.
"""

# ruff: noqa: D102  the methods of the adapter keep the contracts written at StorageAdapter

import contextlib
import fcntl
import hashlib
import itertools
import os
import time
from collections.abc import Generator, Iterable, Iterator, Sequence

from omnigraph.core.events import DurableOperation, StorageCall, emit, listening
from omnigraph.storage.adapter import (
    CHUNK_BYTES,
    TEMPORARY,
    PreparedText,
    StorageAdapter,
    StoredObject,
    VersionedText,
)
from omnigraph.storage.durability import DurabilityMode, sync_directories
from omnigraph.storage.failures import os_failure, translated


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

    def read_chunks(self, name: str) -> Iterator[bytes]:
        path = self._path(name)
        emit(StorageCall("read_bytes", path))
        with translated(path), open(path, "rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                yield chunk

    def write_chunks(self, name: str, chunks: Iterable[bytes]) -> int:
        path = self._path(name)
        emit(StorageCall("write_bytes", path))
        with translated(path):
            temporary = self._write_temporary(path, chunks, durable=False)
            size = os.path.getsize(temporary)
            self._replace(temporary, path)
        return size

    def sizes(self, name: str = "") -> dict[str, int]:
        top = self._path(name) if name else self.uri
        emit(StorageCall("list_below", top))
        found: dict[str, int] = {}
        with translated(top):
            for path in _files_below(top):
                with contextlib.suppress(FileNotFoundError):  # somebody has just removed or renamed it
                    found[path[len(self.uri) + 1 :]] = os.path.getsize(path)
        return found

    def stored(self) -> dict[str, StoredObject]:
        emit(StorageCall("list_below", self.uri))
        found: dict[str, StoredObject] = {}
        with translated(self.uri):
            for path in _files_below(self.uri, unfinished=True):
                with contextlib.suppress(FileNotFoundError):  # somebody has just removed or renamed it
                    seen = os.lstat(path)
                    found[path[len(self.uri) + 1 :]] = StoredObject(seen.st_size, seen.st_mtime_ns // 1_000)
        return found

    def remove(self, names: Sequence[str]) -> None:
        directories: set[str] = set()
        emit(StorageCall("delete", self.uri))
        with self._durable_step("delete", self.uri):
            for name in names:
                path = f"{self.uri}/{name}"
                _unlink_if_there(path)
                directories.add(os.path.dirname(path))
            # Nobody ever writes into the directory of an index again.
            for each in [each for each in directories if "/_indices/" in each]:
                with contextlib.suppress(OSError):
                    os.rmdir(each)
                    directories.discard(each)
                    directories.add(os.path.dirname(each))
            there = [each for each in directories if os.path.isdir(each)]
            sync_directories(there, self._durability)

    def write_text(self, name: str, text: str) -> None:
        self.place_text(self.prepare_text(name, text))

    def prepare_text(self, name: str, text: str) -> PreparedText:
        with translated(self._path(name)):
            return PreparedText(name, text, self._write_temporary(self._path(name), [text.encode()]))

    def place_text(self, prepared: PreparedText) -> None:
        path = self._path(prepared.name)
        emit(StorageCall("write_text", path))
        with self._durable_step("write_text", path):
            try:
                self._replace(prepared.place, path)
            except FileNotFoundError:
                # Somebody took it for a dead writer's: the wait for a turn may be long.
                self._replace(self._write_temporary(path, [prepared.text.encode()]), path)
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
            temporary = self._write_temporary(path, [text.encode()])
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
            temporary = self._write_temporary(path, [text.encode()])
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
        import shutil  # noqa: PLC0415  few processes delete a directory

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

    def _write_temporary(self, path: str, chunks: Iterable[bytes], *, durable: bool = True) -> str:
        """Write the content, synced if `durable`, under a temporary name beside the path."""
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
                for chunk in chunks:
                    file.write(chunk)
                file.flush()
                if durable and self._durability is not DurabilityMode.OS:
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


def _content_token(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _unlink_if_there(path: str) -> None:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        os.unlink(path)


def _files_below(path: str, *, unfinished: bool = False) -> Generator[str]:
    """Objects at any depth below a directory, with temporary names only if `unfinished`. A directory that is
    gone has none.
    """
    try:
        with os.scandir(path) as entries:
            found = list(entries)
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in found:
        if entry.is_dir(follow_symlinks=False):
            yield from _files_below(entry.path, unfinished=unfinished)
        elif unfinished or not TEMPORARY.search(entry.name):
            yield entry.path
