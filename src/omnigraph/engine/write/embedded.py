"""Vectors that a mutation leaves out: made from the texts it gives, by the embedder of the handle.

What an insert or update assigns follows from its parameters alone, so all texts of a call are embedded before
anything is read, each once and without a lock.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from omnigraph.planning.assign import assigned_value
from omnigraph.planning.ir import InsertOp, UpdateOp

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from omnigraph.catalog.schema import Property
    from omnigraph.core.ids import Branch
    from omnigraph.engine.search.embedding import EmbeddedTexts
    from omnigraph.engine.session import GraphSession
    from omnigraph.engine.write.requests import MutationRequest
    from omnigraph.planning.values import Value


def left_out(op: InsertOp | UpdateOp) -> Iterator[tuple[Property, str]]:
    """The vectors that a statement does not assign although it assigns their sources, with those."""
    given = {name for name, _ in op.assignments}
    for name, embed in op.type.embeds.items():
        if name not in given and embed.source in given:
            yield op.type.property_named(name), embed.source


def with_vectors(session: GraphSession, request: MutationRequest) -> MutationRequest:
    """The request with the vectors of all texts it gives; as it is where there is no embedder or no need.

    Raises EmbedderError, and Cancelled between two batches of texts.
    """
    wanted: dict[int, dict[str, None]] = {}
    for op in request.plan.statements:
        if isinstance(op, (InsertOp, UpdateOp)):
            assigned = dict(op.assignments)
            for prop, source in left_out(op):
                texts = wanted.setdefault(prop.type.vector_dim or 0, {})
                for params in request.parameter_sets:
                    text = assigned_value(
                        assigned[source],
                        op.type.property_named(source),
                        op.type,
                        params=params,
                        now=request.now,
                    )
                    if isinstance(text, str):
                        texts[text] = None
    if not wanted or session.embedder is None or _is_answered(session, request):
        return request
    from omnigraph.engine.search.embedding import check_model, vectors_of  # noqa: PLC0415  few writes embed

    embedder = session.embedder
    for op in request.plan.statements:
        if isinstance(op, (InsertOp, UpdateOp)):
            for prop, _ in left_out(op):
                check_model(embedder, op.type, prop)
    found: EmbeddedTexts = {}
    for dimension, distinct in wanted.items():
        texts = list(distinct)
        vectors = vectors_of(embedder, texts, dimension, request.cancel.raise_if_requested)
        found.update({(text, dimension): vectors[place] for place, text in enumerate(texts)})
    return replace(request, vectors=found)


def _is_answered(session: GraphSession, request: MutationRequest) -> bool:
    """Whether the request was carried out already: then no embedder has to be there for it."""
    if request.key is None:
        return False
    branch: Branch = request.branch
    return session.request_keys.answer(session.manifest.current(branch), request.key) is not None


def vectors_for(
    op: InsertOp | UpdateOp, values: Mapping[str, Value], vectors: EmbeddedTexts | None
) -> dict[str, Value]:
    """What the statement stores in the vectors it leaves out, given the values it assigns; nothing without an
    embedder. A text that is null has no vector.
    """
    if vectors is None:
        return {}
    made: dict[str, Value] = {}
    for prop, source in left_out(op):
        text = values[source]
        found = vectors.get((text, prop.type.vector_dim or 0)) if isinstance(text, str) else None
        made[prop.name] = None if found is None else tuple(found.tolist())
    return made
