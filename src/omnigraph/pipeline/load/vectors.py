"""Vectors that records leave out: made in the task that stages them, from the texts they give, in batches."""

import dataclasses
import pickle
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from omnigraph.catalog.schema import Catalog
from omnigraph.core.errors import BadRequest, EmbedderError
from omnigraph.core.errors.kinds import Retry
from omnigraph.core.settings import Settings
from omnigraph.engine.search.embedding import (
    Embedder,
    check_model,
    configured_embedder,
    vectors_of,
)
from omnigraph.pipeline.input.records import ParsedRows
from omnigraph.pipeline.spark.executors import Executor, raise_if_stopped

if TYPE_CHECKING:  # tasks load this module too
    from omnigraph.engine.session import GraphSession


def load_embedder(
    session: "GraphSession", catalog: Catalog, executor: Executor, model: str | None
) -> Embedder | None:
    """Who makes the vectors of a load, in a form that its tasks can use; None where there are none to make.

    Raises EmbedderError for one that cannot be used, BadRequest for one that cannot travel.
    """
    if not any(node.embeds for node in catalog.nodes.values()):
        return None
    embedder, settings = embedder_of(session, model)
    if embedder is None or executor.name == "local":
        return embedder
    if settings is not None:
        return _Configured(embedder.model, settings)
    import pyspark.cloudpickle  # noqa: PLC0415  few loads send an embedder along

    by_value: Any = pyspark.cloudpickle
    try:
        return _Sent(embedder.model, by_value.dumps(embedder))
    except Exception as error:
        raise BadRequest(
            f"the embedder of the model '{embedder.model}' cannot be sent to Spark ({type(error).__name__})",
            hint="let its first call load what cannot be pickled, or load with engine='local'",
        ) from error


def embedder_of(session: "GraphSession", model: str | None) -> tuple[Embedder | None, Settings | None]:
    """The embedder of a handle, or one of the named model, and the settings it comes from; None where a
    caller made it. Raises EmbedderError.
    """
    if not session.embedder_is_configured:
        given = session.embedder
        if given is not None and model is not None and model != given.model:
            raise EmbedderError(
                f"the embedder of this handle is of '{given.model}', not of '{model}'",
                hint=f"open the graph with an embedder of '{model}'",
                retry=Retry.NEVER,
            )
        return given, None
    if model is None:
        return session.embedder, session.settings
    settings = dataclasses.replace(session.settings, embed_model=model)
    return configured_embedder(settings), settings


@dataclass(frozen=True, slots=True)
class _Configured:
    """Made again where it is used: settings travel, keys do not."""

    model: str
    settings: Settings

    def embed(self, texts: Any, dimension: int) -> Any:
        """See `Embedder.embed`."""
        made = configured_embedder(self.settings)
        if made is None:
            raise EmbedderError(f"no embedder of the model '{self.model}' is configured in this task")
        return made.embed(texts, dimension)


@dataclass(frozen=True, slots=True)
class _Sent:
    """A pickled copy, unpacked once per worker."""

    model: str
    packed: bytes

    def embed(self, texts: Any, dimension: int) -> Any:
        """See `Embedder.embed`."""
        return _unpacked(self.packed).embed(texts, dimension)


@lru_cache(maxsize=2)
def _unpacked(packed: bytes) -> Embedder:
    return cast("Embedder", pickle.loads(packed))  # noqa: S301 - made by our own driver


def with_vectors(rows: ParsedRows, embedder: Embedder | None, *, mentioned: bool) -> ParsedRows:
    """The rows with a vector wherever none was mentioned and its source has a text; no longer marked absent.

    `mentioned`: only sources that the record itself gives count, and one that it sets to null takes its
    vector along. Each distinct text is embedded once per call. Raises EmbedderError.
    """
    if embedder is None or not rows.type.embeds or rows.rows == 0:
        return rows
    columns, absent = dict(rows.columns), dict(rows.absent)
    for name, embed in rows.type.embeds.items():
        unmade = absent.get(name)
        if unmade is None or not unmade.any():
            continue
        texts = columns[embed.source]
        given = ~absent[embed.source] if mentioned else np.asarray(texts.is_valid(), np.bool_)
        wanted = unmade & given
        if not wanted.any():
            continue
        prop = rows.type.property_named(name)
        check_model(embedder, rows.type, prop)
        made = _vectors(texts.filter(pa.array(wanted)), embedder, prop.type.vector_dim or 0)
        columns[name] = _placed(columns[name], made.cast(columns[name].type), wanted)
        absent[name] = unmade & ~wanted
    return dataclasses.replace(rows, columns=columns, absent=absent)


def _vectors(texts: pa.Array, embedder: Embedder, dimension: int) -> pa.Array:
    """One vector for each text, null for null."""
    coded = texts.dictionary_encode()
    distinct = coded.dictionary.to_pylist()
    found = vectors_of(embedder, distinct, dimension, raise_if_stopped)
    flat = pa.array(found.reshape(-1), pa.float32())
    return pa.FixedSizeListArray.from_arrays(flat, dimension).take(coded.indices)


def _placed(column: pa.Array, made: pa.Array, where: NDArray[np.bool_]) -> pa.Array:
    """`made` at the places of `where`, in order: a nested type cannot be chosen by condition."""
    at = np.arange(len(column), dtype=np.int64)
    at[where] = len(column) + np.arange(len(made))
    return pa.concat_arrays([column, made]).take(pa.array(at))
