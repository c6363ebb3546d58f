"""How a failure leaves the server: one JSON object, with nothing in it that belongs to the machine."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from omnigraph.core.errors import (
    BlobPreconditionFailed,
    BlobRange,
    IoFailure,
    OmnigraphError,
    ResourceBusy,
    TooManyRequests,
    Unauthorized,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

INTERNAL: Final = "the server could not do this; its log has the reason under the request id"
RETRY_AFTER_S: Final = "1"
INTERNAL_STATUS: Final = 500


def status_of(error: OmnigraphError) -> int:
    """The HTTP status of a failure. One that is local to a client is the server's fault here."""
    return error.http_status or INTERNAL_STATUS


def as_typed(error: Exception) -> OmnigraphError:
    """The typed failure behind any exception. What nobody foresaw says nothing of itself to a client."""
    if isinstance(error, OmnigraphError):
        return error
    if isinstance(error, OSError):
        return IoFailure(
            "the server could not read or write a file", hint="its operator should look at the disk"
        )
    return OmnigraphError("internal", INTERNAL)


def body_of(error: OmnigraphError, request_id: str, secrets: Iterable[str]) -> bytes:
    """The JSON body of a failure.

    The members of the write protocol come first: `error`, `code` and the detail of the failure. Faults of the
    machine get a fixed sentence, and no other text names one of the `secrets`, the places of served graphs.
    """
    said = error.to_dict()
    if status_of(error) == INTERNAL_STATUS:
        said = {"error": INTERNAL, "code": "internal", "kind": error.kind, "retry": said["retry"]}
    ordered: dict[str, Any] = {name: said.pop(name) for name in ("error", "code") if name in said}
    last = {name: said.pop(name) for name in ("kind", "hint", "retry") if name in said}
    ordered.update(said)
    ordered.update(last)
    ordered["request_id"] = request_id
    return json.dumps(_without(ordered, tuple(secrets)), ensure_ascii=False, allow_nan=False).encode(
        "utf-8", "replace"
    )


def headers_of(error: OmnigraphError) -> dict[str, str]:
    """The headers that go with a failure."""
    if isinstance(error, Unauthorized):
        return {"www-authenticate": "Bearer"}
    if isinstance(error, (ResourceBusy, TooManyRequests)):
        return {"retry-after": RETRY_AFTER_S}
    if isinstance(error, BlobPreconditionFailed):
        return {"etag": str(error.details["etag"])}
    if isinstance(error, BlobRange):
        return {"content-range": f"bytes */{error.details['blob_range']['length']}"}
    return {}


def _without(value: Any, secrets: tuple[str, ...]) -> Any:
    """The value with every place of a graph taken out of its texts."""
    if isinstance(value, str):
        for secret in secrets:
            value = value.replace(secret, "<graph>")
        return value
    if isinstance(value, dict):
        return {str(name): _without(each, secrets) for name, each in value.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]  JSON has no narrower type
    if isinstance(value, (list, tuple)):
        return [_without(each, secrets) for each in value]  # pyright: ignore[reportUnknownVariableType]  as above
    return value
