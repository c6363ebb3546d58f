"""Reading external blobs: only below allowed places, each object once, never more than a bound.

Thread-safe.
"""

import errno
import os
import stat
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from omnigraph.core.blob_uris import (
    FILE,
    WEB_PORTS,
    BlobUri,
    NotAnAddress,
    blob_base,
    blob_uri,
    shown_address,
)
from omnigraph.core.errors import BlobPolicyError, BlobSourceError, OmnigraphError, ResourceLimit
from omnigraph.core.events import StorageCall, emit
from omnigraph.core.limits import (
    EXTERNAL_BLOB_CACHE_BYTES,
    EXTERNAL_BLOB_OBJECT_BYTES_MAX,
    EXTERNAL_BLOB_THREADS,
    EXTERNAL_BLOB_URI_BYTES_MAX,
    EXTERNAL_BLOB_WAIT_S_MAX,
)
from omnigraph.storage.failures import object_failure
from omnigraph.storage.layout import GraphRoot
from omnigraph.storage.objects import open_store

if TYPE_CHECKING:
    from obstore.store import ObjectStore

Result = TypeVar("Result")
Outcome = OmnigraphError | int

SIZES_KEPT_MAX: Final = 16_384
"""Objects whose size is remembered."""


class _Source(Protocol):
    """One kind of place."""

    def size(self, uri: BlobUri) -> int | None:
        """The size of the object; None when only reading it tells. Raises BlobSourceError."""
        ...

    def read(self, uri: BlobUri) -> bytes:
        """The object, at most one byte more than the bound. Raises BlobSourceError."""
        ...


class BlobSources:
    """What a handle may read from outside of its graph: objects below `bases`, in their one spelling."""

    def __init__(self, bases: Sequence[str], root: GraphRoot) -> None:
        self._bases = tuple(blob_base(base) for base in bases)
        self._root = root
        self._sources: dict[str, _Source] = {}
        self._sizes: OrderedDict[BlobUri, Outcome] = OrderedDict()
        self._kept: OrderedDict[BlobUri, bytes] = OrderedDict()
        self._kept_bytes = 0
        self._lock = threading.Lock()

    def allowed(self, text: str) -> BlobUri:
        """The object that an address names. Raises ResourceLimit and BlobPolicyError; reads nothing."""
        size = len(text.encode("utf-8", "surrogatepass"))
        if size > EXTERNAL_BLOB_URI_BYTES_MAX:
            raise ResourceLimit(
                resource="external_blob_uri_bytes", limit=EXTERNAL_BLOB_URI_BYTES_MAX, actual=size
            )
        if not self._bases:
            raise BlobPolicyError(
                "external blob references are not allowed here",
                hint="supply the bytes as base64:<text>, or open the graph with blob_sources",
            )
        try:
            uri = blob_uri(text)
        except NotAnAddress as refused:
            raise BlobPolicyError(
                f"'{shown_address(text)}' is not the address of an external blob: {refused}",
                hint="supply bytes as base64:<text>",
            ) from None
        if not any(uri.lies_in(base) for base in self._bases):
            raise _outside(uri)
        return uri

    def sizes(self, uris: Iterable[BlobUri]) -> dict[BlobUri, Outcome]:
        """How many bytes each object has, or why it cannot be read. Cost: one request per object."""
        wanted = list(dict.fromkeys(uris))
        with self._lock:
            known = {uri: self._sizes[uri] for uri in wanted if uri in self._sizes}
        fresh = [uri for uri in wanted if uri not in known]
        found = dict(zip(fresh, self._on_threads(self._sized, fresh), strict=True))
        with self._lock:
            self._sizes.update(found)
            while len(self._sizes) > SIZES_KEPT_MAX:
                self._sizes.popitem(last=False)
        return known | found

    def contents(self, uris: Iterable[BlobUri]) -> dict[BlobUri, bytes]:
        """The bytes of each object. Raises BlobSourceError, BlobPolicyError, ResourceLimit."""
        wanted = list(dict.fromkeys(uris))
        with self._lock:
            held = {uri: self._kept[uri] for uri in wanted if uri in self._kept}
        fresh = [uri for uri in wanted if uri not in held]
        held.update(zip(fresh, self._on_threads(self._read, fresh), strict=True))
        with self._lock:
            for uri in fresh:
                self._keep(uri, held[uri])
        return held

    def _keep(self, uri: BlobUri, content: bytes) -> None:
        if uri in self._kept or len(content) > EXTERNAL_BLOB_CACHE_BYTES:
            return
        self._kept[uri] = content
        self._kept_bytes += len(content)
        while self._kept_bytes > EXTERNAL_BLOB_CACHE_BYTES:
            self._kept_bytes -= len(self._kept.popitem(last=False)[1])

    def _sized(self, uri: BlobUri) -> Outcome:
        emit(StorageCall("blob_size", shown_address(str(uri))))
        try:
            size = self._source(uri).size(uri)
        except OmnigraphError as refused:
            return refused
        if size is None:  # not known, so it counts as the largest allowed and is read alone
            return EXTERNAL_BLOB_OBJECT_BYTES_MAX
        return size if size <= EXTERNAL_BLOB_OBJECT_BYTES_MAX else _too_large(size)

    def _read(self, uri: BlobUri) -> bytes:
        emit(StorageCall("blob_read", shown_address(str(uri))))
        content = self._source(uri).read(uri)
        if len(content) > EXTERNAL_BLOB_OBJECT_BYTES_MAX:
            raise _too_large(len(content))
        return content

    def _on_threads(self, function: Callable[[BlobUri], Result], uris: Sequence[BlobUri]) -> list[Result]:
        """Apply the function to the objects, several at once where requests have to wait."""
        if len(uris) < 2 or all(uri.scheme == FILE for uri in uris):
            return [function(uri) for uri in uris]
        with ThreadPoolExecutor(min(EXTERNAL_BLOB_THREADS, len(uris)), "omnigraph-blobs") as pool:
            return list(pool.map(function, uris))

    def _source(self, uri: BlobUri) -> _Source:
        # An address of Azure names the account, then the container.
        depth = 1 if uri.scheme == "az" else 0
        place = f"{uri.scheme}://{'/'.join((uri.authority, *uri.segments[:depth]))}"
        with self._lock:
            source = self._sources.get(place)
            if source is None:
                source = self._sources[place] = self._opened(uri.scheme, place, depth)
            return source

    def _opened(self, scheme: str, place: str, depth: int) -> _Source:
        if scheme == FILE:
            return _Files([base for base in self._bases if base.scheme == FILE])
        if scheme in WEB_PORTS:
            return _Web()
        # The options of the graph tell how to reach stores of its kind; for others there is the environment.
        same = self._root.uri.startswith(f"{scheme}://")
        return _Objects(open_store(place, self._root.storage_options if same else {}), depth)


def _outside(uri: BlobUri) -> BlobPolicyError:
    return BlobPolicyError(
        f"'{shown_address(str(uri))}' is outside the allowed blob sources",
        hint="open the graph with blob_sources that cover it, or supply the bytes as base64:<text>",
    )


def _too_large(size: int) -> ResourceLimit:
    return ResourceLimit(
        resource="external_blob_object_bytes", limit=EXTERNAL_BLOB_OBJECT_BYTES_MAX, actual=size
    )


def _unreadable(uri: BlobUri, reason: str) -> BlobSourceError:
    shown = shown_address(str(uri))
    return BlobSourceError(
        f"the external blob '{shown}' cannot be read: {reason}",
        details={"external_blob_source": {"uri": shown, "reason": reason}},
    )


class _Files:
    """Files of this machine. A link that leads out of every allowed directory is refused."""

    def __init__(self, bases: Sequence[BlobUri]) -> None:
        self._places = [os.path.realpath("/" + "/".join(base.segments)) for base in bases]

    def size(self, uri: BlobUri) -> int | None:
        number, size = self._open(uri)
        os.close(number)
        return size

    def read(self, uri: BlobUri) -> bytes:
        number, _ = self._open(uri)
        with open(number, "rb") as file:
            try:
                return file.read(EXTERNAL_BLOB_OBJECT_BYTES_MAX + 1)
            except OSError as error:
                raise _unreadable(uri, os.strerror(error.errno or errno.EIO)) from None

    def _open(self, uri: BlobUri) -> tuple[int, int]:
        """A descriptor of the file, and its size."""
        path = os.path.realpath("/" + "/".join(uri.segments))
        if not any(path == place or path.startswith(place.rstrip("/") + "/") for place in self._places):
            raise _outside(uri)
        try:
            number = _open_without_links(path)
        except OSError as error:
            raise _unreadable(uri, os.strerror(error.errno or errno.EIO)) from None
        found = os.fstat(number)
        if not stat.S_ISREG(found.st_mode):
            os.close(number)
            raise _unreadable(uri, "it is not a file")
        return number, found.st_size


_STEP: Final = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def _open_without_links(path: str) -> int:
    """A descriptor of the file at a real path: none of the steps to it may be a link.

    The path was judged before. Whoever may write to an allowed directory could put a link in the place of any
    directory in between; each step is therefore taken from the directory before it, and refused there.
    """
    *steps, last = path.strip("/").split("/")
    directory = os.open("/", _STEP)
    try:
        for step in steps:
            outer, directory = directory, os.open(step, _STEP, dir_fd=directory)
            os.close(outer)
        # Does not wait for the writer of a pipe.
        return os.open(last, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    finally:
        os.close(directory)


class _Objects:
    """Objects of one bucket or container."""

    def __init__(self, store: "ObjectStore", depth: int) -> None:
        self._store = store
        self._depth = depth

    def size(self, uri: BlobUri) -> int | None:
        import obstore  # noqa: PLC0415

        return int(self._asked(uri, lambda key: obstore.head(self._store, key))["size"])

    def read(self, uri: BlobUri) -> bytes:
        import obstore  # noqa: PLC0415

        def get(key: str) -> bytes:
            answer = obstore.get(self._store, key)
            size = int(answer.meta["size"])
            if size > EXTERNAL_BLOB_OBJECT_BYTES_MAX:  # it grew since it was looked at
                raise _too_large(size)
            return bytes(answer.bytes())

        return self._asked(uri, get)

    def _asked(self, uri: BlobUri, request: Callable[[str], Any]) -> Any:
        from obstore.exceptions import BaseError  # noqa: PLC0415

        key = "/".join(uri.segments[self._depth :])
        try:
            return request(key)
        except (BaseError, OSError, ValueError) as error:
            shown = shown_address(str(uri))
            reason = object_failure(error, shown).message.removeprefix(f"{shown}: ")
            raise _unreadable(uri, reason) from None


class _Web:
    """Objects behind HTTP. A redirection is not followed: it may lead out of what is allowed."""

    def size(self, uri: BlobUri) -> int | None:
        with self._answer(uri) as answer:
            length = answer.headers.get("Content-Length")
            return int(length) if length is not None and length.isdigit() else None

    def read(self, uri: BlobUri) -> bytes:
        import http.client  # noqa: PLC0415

        with self._answer(uri) as answer:
            try:
                content = bytes(answer.read(EXTERNAL_BLOB_OBJECT_BYTES_MAX + 1))
            except (OSError, http.client.HTTPException) as error:
                raise _unreadable(uri, f"the answer broke off ({type(error).__name__})") from None
            announced = answer.headers.get("Content-Length", "")
            if announced.isdigit() and len(content) < min(int(announced), EXTERNAL_BLOB_OBJECT_BYTES_MAX):
                raise _unreadable(uri, "the answer broke off")
            return content

    def _answer(self, uri: BlobUri) -> Any:
        import http.client  # noqa: PLC0415
        import urllib.error  # noqa: PLC0415
        import urllib.request  # noqa: PLC0415

        class NoRedirection(urllib.request.HTTPRedirectHandler):
            def redirect_request(
                self, req: Any, fp: Any, code: Any, msg: Any, headers: Any, newurl: Any
            ) -> None:
                del req, fp, code, msg, headers, newurl

        opener = urllib.request.build_opener(NoRedirection())
        try:
            return opener.open(str(uri), timeout=EXTERNAL_BLOB_WAIT_S_MAX)
        except urllib.error.HTTPError as error:
            error.close()
            raise _unreadable(uri, f"the server answered {error.code}") from None
        except urllib.error.URLError as error:
            raise _unreadable(uri, str(getattr(error.reason, "strerror", None) or error.reason)) from None
        except (OSError, http.client.HTTPException) as error:
            raise _unreadable(uri, type(error).__name__) from None
