"""What a server tells about itself: counts and durations for Prometheus, spans for OpenTelemetry."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Final

from opentelemetry import trace
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

MEDIA_TYPE: Final = CONTENT_TYPE_LATEST
_TRACER: Final = trace.get_tracer("omnigraph.server")
_NOBODY_LISTENS: Final = nullcontext()


def spanning(operation: str) -> AbstractContextManager[object]:
    """A span around one operation, where the process has somebody who takes spans."""
    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return _NOBODY_LISTENS
    return _TRACER.start_as_current_span(operation)


class Metrics:
    """The numbers of one server. No label names a graph, an actor or anything a request said."""

    def __init__(self) -> None:
        self._registry: Final = CollectorRegistry()
        self._requests: Final = Counter(
            "omnigraph_requests",
            "Requests that were answered.",
            ["operation", "status"],
            registry=self._registry,
        )
        self._seconds: Final = Histogram(
            "omnigraph_request_seconds", "How long requests took.", ["operation"], registry=self._registry
        )
        self._known: Final[dict[tuple[str, int], tuple[Counter, Histogram]]] = {}
        """What counts each kind of answer: looking it up by its labels takes longer than counting."""
        self._under_way: Final = Gauge(
            "omnigraph_requests_under_way",
            "Requests that workers have or wait for.",
            ["lane"],
            registry=self._registry,
        )

    def answered(self, operation: str, status: int, seconds: float) -> None:
        """Count one request."""
        known = self._known.get((operation, status))
        if known is None:
            known = self._requests.labels(operation, str(status)), self._seconds.labels(operation)
            self._known[operation, status] = known
        known[0].inc()
        known[1].observe(seconds)

    def text(self, under_way: dict[str, int]) -> bytes:
        """Everything, as Prometheus reads it."""
        for lane, count in under_way.items():
            self._under_way.labels(lane).set(count)
        return generate_latest(self._registry)
