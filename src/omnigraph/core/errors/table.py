"""Kind -> (class, HTTP status, code, exit status, retry). Server, CLI and reference page read it."""

from collections.abc import Iterator, Mapping
from typing import Final

# Imported so that every class exists before the tree is walked.
from omnigraph.core.errors import faults, requests, state
from omnigraph.core.errors.base import KnownError, OmnigraphError
from omnigraph.core.errors.kinds import FACTS, KindFacts, Retry
from omnigraph.core.late_dataclass import dataclass

_MODULES: Final = (faults, requests, state)


@dataclass(frozen=True, slots=True)
class KindInfo:
    """One row of the table."""

    kind: str
    cls: type[OmnigraphError]
    http_status: int | None
    code: str | None
    exit_status: int
    retry: Retry
    effect_free: bool


def _leaves_first(cls: type[OmnigraphError]) -> Iterator[type[OmnigraphError]]:
    for child in cls.__subclasses__():
        yield from _leaves_first(child)
    yield cls


def _class_of_each_kind() -> dict[str, type[OmnigraphError]]:
    # The class nearest to the leaves that names the kind itself; a family's default kind gives way.
    named = [cls for cls in _leaves_first(KnownError) if "kind" in vars(cls)]
    return {cls.kind: cls for cls in reversed(named)}


def _info(facts: KindFacts, cls: type[OmnigraphError]) -> KindInfo:
    return KindInfo(
        facts.kind, cls, facts.http_status, facts.code, facts.exit_status, facts.retry, facts.effect_free
    )


_CLASSES: Final = _class_of_each_kind()

KINDS: Final[Mapping[str, KindInfo]] = {kind: _info(facts, _CLASSES[kind]) for kind, facts in FACTS.items()}
"""Every kind of the table, with the class that raises it. A kind without a class fails at import."""
