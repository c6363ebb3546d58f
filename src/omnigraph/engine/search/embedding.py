"""Texts that a query compares with vectors, or that a write has no vectors for: who turns them into vectors,
and what is accepted from it.
"""

from __future__ import annotations

import contextvars
import os
import threading
import time
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, cast, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from omnigraph.core.cancel import NEVER
from omnigraph.core.errors import BadRequest, EmbedderError, OmnigraphError
from omnigraph.core.errors.kinds import Retry
from omnigraph.core.events import TextsEmbedded, Warned, emit
from omnigraph.core.late_dataclass import dataclass
from omnigraph.core.limits import EMBED_BATCH_TEXTS_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from omnigraph.catalog.schema import Property, TableType
    from omnigraph.core.settings import Settings
    from omnigraph.engine.read.limits import Limits
    from omnigraph.planning import ir
    from omnigraph.planning.values import Value

T = TypeVar("T")
Vectors = NDArray[np.float32]
EmbeddedTexts = dict[tuple[str, int], Vectors]
"""By text and dimension."""

MOCK_PROVIDERS: Final = ("mock", "offline")
"""Names of the embedder that needs no provider; the second says the same in plain words."""
MOCK_MODEL: Final = "mock"
PROVIDER_DEFAULT: Final = "openai-compatible"
KEY_VARIABLE: Final = "OMNIGRAPH_EMBED_API_KEY"

UNIT_TOLERANCE: Final = 2.0**-21
"""How far the length of a unit vector may be from 1 in single precision. Such a vector is kept as it is:
scaling it again would only move its last bits."""
POLL_S: Final = 0.02
"""How often a query that waits for an embedder looks at its limits."""


@runtime_checkable
class Embedder(Protocol):
    """What turns texts into vectors: those of `nearest`, and the sources of `@embed` where a write leaves the
    vectors out. Given to `open`, `open_read_only` and `init`.

    ```python
    class Small:
        model = "small-1"

        def embed(self, texts, dimension):
            return encoder.encode(texts, truncate_dim=dimension)
    ```

    Thread-safety: queries and writes of several threads call it at once. A query that is cancelled or runs
    out of time stops waiting for it; the call itself goes on in its thread. A load on Spark sends a pickled
    copy to each worker, so a large model is better loaded by the first call than kept as a member.
    """

    @property
    def model(self) -> str:
        """The name of the model; a property that records another one is not searched."""
        ...

    def embed(self, texts: Sequence[str], dimension: int) -> Any:
        """One vector of `dimension` numbers for each text, in their order: a NumPy or Arrow array, or lists.

        Vectors are scaled to unit length by the caller.
        """
        ...


def check_embedder(embedder: object) -> None:
    """Raise BadRequest for what cannot be an embedder."""
    model = getattr(embedder, "model", None)
    if isinstance(model, str) and model and callable(getattr(embedder, "embed", None)):
        return
    raise BadRequest(
        f"a {type(embedder).__name__} is not an embedder",
        hint="an embedder has a text 'model' and a method embed(texts, dimension)",
    )


def configured_embedder(settings: Settings, environ: Mapping[str, str] | None = None) -> Embedder | None:
    """The embedder that settings and environment name; None when they name none.

    A key alone configures nothing: no text leaves the machine because a key happens to be in the environment.
    Raises EmbedderError for a provider that cannot be used as it is configured.
    """
    named = settings.embed_provider
    chosen = named or settings.embed_base_url or settings.embed_model
    if settings.embeddings_mock or named in MOCK_PROVIDERS:
        from omnigraph.engine.search.offline_embedder import OfflineEmbedder  # noqa: PLC0415  for tests only

        if settings.embeddings_mock and (named or settings.embed_base_url) and named not in MOCK_PROVIDERS:
            emit(
                Warned(
                    "OMNIGRAPH_EMBEDDINGS_MOCK is set: texts are embedded offline, not by"
                    f" '{named or PROVIDER_DEFAULT}'"
                )
            )
        return OfflineEmbedder(settings.embed_model or MOCK_MODEL)
    if chosen is None:
        return None
    from omnigraph.engine.search.http_embedder import http_embedder  # noqa: PLC0415  most queries embed nothing

    return http_embedder(settings, os.environ if environ is None else environ)


# --- one query -------------------------------------------------------------------------------------------


def embed_texts(
    embedder: Embedder | None,
    searches: Sequence[ir.Nearest],
    value: Callable[[ir.ValueExpr], Value],
    limits: Limits,
) -> EmbeddedTexts:
    """The vectors of all texts of a query, each text once per dimension. A null text has none.

    Everything that can be refused without the embedder is refused first. Raises EmbedderError.
    """
    wanted: dict[int, dict[str, None]] = {}
    asked: list[ir.Nearest] = []
    for search in searches:
        text = value(search.query)
        if isinstance(text, str):
            asked.append(search)
            wanted.setdefault(dimension_of(search), {})[text] = None
    if not asked:
        return {}
    able = usable_embedder(embedder, asked)
    found: EmbeddedTexts = {}
    for dimension, distinct in wanted.items():
        texts = list(distinct)
        begun = time.perf_counter()
        answer = _awaited(_Call(able, texts, dimension), limits)
        vectors = unit_vectors(answer, texts=len(texts), dimension=dimension, embedder=able)
        emit(TextsEmbedded(able.model, len(texts), dimension, time.perf_counter() - begun))
        found.update({(text, dimension): vectors[place] for place, text in enumerate(texts)})
    return found


def usable_embedder(embedder: Embedder | None, searches: Sequence[ir.Nearest]) -> Embedder:
    """The embedder, if it is there and of the model that each searched property records."""
    if embedder is None:
        raise EmbedderError(
            "no embedder is configured, so a text cannot be compared with a vector",
            hint="set OMNIGRAPH_EMBED_PROVIDER, give omnigraph.open an embedder, or pass the query vector",
            retry=Retry.NEVER,
        )
    for search in searches:
        check_model(embedder, search.property.owner, search.property.prop)
    return embedder


def check_model(embedder: Embedder, owner: TableType, prop: Property) -> None:
    """Raise EmbedderError for a property that records another model: vectors of two models do not compare."""
    recorded = prop.embed
    if recorded is None or recorded.model is None or recorded.model == embedder.model:
        return
    where = f"{owner.name}.{prop.name}"
    raise EmbedderError(
        f"{where} was embedded with '{recorded.model}', the embedder uses '{embedder.model}'",
        hint=f"set OMNIGRAPH_EMBED_MODEL, or give an embedder of '{recorded.model}' or the vector itself",
        retry=Retry.NEVER,
        details={"model": embedder.model},
    )


def dimension_of(search: ir.Nearest) -> int:
    """The length of the vectors that are searched."""
    return search.property.type.vector_dim or 0


@dataclass(frozen=True, slots=True)
class _Call:
    """One call of an embedder, whose failures are typed."""

    embedder: Embedder
    texts: Sequence[str]
    dimension: int

    def __call__(self) -> Any:
        try:
            return self.embedder.embed(self.texts, self.dimension)
        except OmnigraphError:
            raise
        except Exception as error:
            # The text of a foreign exception may hold what nobody should see; it is chained, not repeated.
            raise EmbedderError(
                f"the embedder of the model '{self.embedder.model}' failed with {type(error).__name__}",
                hint="the cause says why; explicit vectors need no embedder",
                details={"model": self.embedder.model},
            ) from error


def _awaited(call: Callable[[], T], limits: Limits) -> T:
    """What a call gives; the limits of the query hold while it runs."""
    limits.check()
    if limits.deadline is None and limits.cancellation is NEVER:
        return call()
    answer: Future[T] = Future()
    context = contextvars.copy_context()

    def run() -> None:
        try:
            answer.set_result(context.run(call))
        except BaseException as error:  # noqa: BLE001  raised again where the answer is awaited
            answer.set_exception(error)

    # Not a pool: a process that ends does not wait for an answer that nobody awaits any more.
    threading.Thread(target=run, name="omnigraph-embed", daemon=True).start()
    while not answer.done():
        pause = POLL_S
        if limits.deadline is not None:
            pause = max(min(pause, limits.deadline - time.monotonic()), 0.0)
        wait([answer], timeout=pause)
        if not answer.done():
            limits.check()
    return answer.result()


# --- a write ---------------------------------------------------------------------------------------------


def vectors_of(
    embedder: Embedder, texts: Sequence[str], dimension: int, check: Callable[[], None]
) -> Vectors:
    """One vector of unit length for each text, asked for in batches; `check` is called before each of them.

    Raises EmbedderError, and what `check` raises.
    """
    found = np.empty((len(texts), dimension), np.float32)
    for start in range(0, len(texts), EMBED_BATCH_TEXTS_MAX):
        check()
        batch = texts[start : start + EMBED_BATCH_TEXTS_MAX]
        begun = time.perf_counter()
        answer = _Call(embedder, batch, dimension)()
        found[start : start + len(batch)] = unit_vectors(
            answer, texts=len(batch), dimension=dimension, embedder=embedder
        )
        emit(TextsEmbedded(embedder.model, len(batch), dimension, time.perf_counter() - begun))
    return found


# --- answers ---------------------------------------------------------------------------------------------


def unit_vectors(answer: Any, *, texts: int, dimension: int, embedder: Embedder) -> Vectors:
    """The vectors of an answer, scaled to unit length; EmbedderError for one that cannot be used."""
    if hasattr(answer, "to_pylist"):
        answer = answer.to_pylist()
    try:
        rows: list[Any] = list(answer)
    except TypeError:
        raise _refused(embedder, f"gave a {type(answer).__name__}, not vectors") from None
    if len(rows) != texts:
        raise _refused(embedder, f"gave {len(rows)} vectors for {texts} texts")
    together = _all_units(rows, dimension)
    if together is not None:
        return together
    result = np.empty((texts, dimension), np.float32)
    for place, row in enumerate(rows):
        result[place] = _unit(row, f"{place + 1} of {texts}", dimension, embedder)
    return result


def _all_units(rows: list[Any], dimension: int) -> Vectors | None:
    """All vectors scaled at once, as `_unit` scales each; None where one of them has to be refused."""
    try:
        exact = np.asarray(rows)
    except ValueError:
        return None  # of different lengths
    if exact.shape != (len(rows), dimension) or exact.dtype.kind not in "iuf":
        return None
    exact = exact.astype(np.float64)
    largest = np.abs(exact).max(axis=1, initial=0.0, keepdims=True)
    if not (np.isfinite(largest) & (largest > 0.0)).all():
        return None
    scaled = exact / largest
    length = np.linalg.norm(scaled, axis=1, keepdims=True)
    is_unit = np.abs(largest * length - 1.0) <= UNIT_TOLERANCE
    return np.where(is_unit, exact, scaled / length).astype(np.float32)


def _unit(row: Any, which: str, dimension: int, embedder: Embedder) -> NDArray[np.floating[Any]]:
    try:
        vector = np.asarray(row)
    except ValueError:
        vector = np.empty((0, 0))  # lists of different lengths
    if vector.ndim != 1 or (vector.dtype.kind not in "iuf" and len(vector)):
        raise _refused(embedder, f"gave something that is not a list of numbers for text {which}")
    if len(vector) != dimension:
        raise _refused(
            embedder,
            f"gave a vector of {len(vector)} components for text {which}; {dimension} are needed",
            hint=f"choose a model that gives vectors of {dimension} components",
        )
    exact = vector.astype(np.float64)
    broken = np.flatnonzero(~np.isfinite(exact))
    if len(broken):
        what = f"gave a vector for text {which} whose component {broken[0] + 1} is not finite"
        raise _refused(embedder, what)
    largest = float(np.abs(exact).max(initial=0.0))
    if largest == 0.0:
        raise _refused(embedder, f"gave a vector of zeros for text {which}")
    scaled = exact / largest  # first, so that no square is too large or too small for a double
    length = float(np.linalg.norm(scaled))
    return exact if abs(largest * length - 1.0) <= UNIT_TOLERANCE else scaled / length


def _refused(embedder: Embedder, what: str, hint: str | None = None) -> EmbedderError:
    provider = cast("str", getattr(embedder, "provider", type(embedder).__name__))
    return EmbedderError(
        f"the embedder of the model '{embedder.model}' ({provider}) {what}",
        hint=hint or "check the model and its provider, or give the vector itself",
        retry=Retry.NEVER,
        details={"provider": provider, "model": embedder.model},
    )
