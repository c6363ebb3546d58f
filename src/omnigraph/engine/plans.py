"""Compiled queries, kept by text and schema.

The compiler is loaded with the first query: a process that only loads or exports never pays for it.
"""

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from omnigraph.catalog.schema import Catalog

if TYPE_CHECKING:
    from omnigraph.planning.ir import MutationPlan, Plan, ReadPlan

PLANS_KEPT_MAX: Final = 512
TEXT_KEPT_CHARS_MAX: Final = 65_536
"""A longer text is compiled each time: keeping it would cost more memory than the plan is worth."""


class PlanCache:
    """Plans of recently used queries. Thread-safe; plans are frozen values."""

    def __init__(self) -> None:
        self._plans: OrderedDict[tuple[str, str | None, str], Plan] = OrderedDict()
        self._lock = threading.Lock()

    def plan(self, text: str, name: str | None, catalog: Catalog, schema_hash: str) -> "Plan":
        """The plan of a query; compiled when it was not used lately."""
        key = (text, name, schema_hash)
        with self._lock:
            kept = self._plans.get(key)
            if kept is not None:
                self._plans.move_to_end(key)
                return kept
        from omnigraph.planning.compile import compile_query  # noqa: PLC0415

        made = compile_query(text, catalog, name=name)
        if len(text) <= TEXT_KEPT_CHARS_MAX:
            with self._lock:
                self._plans[key] = made
                while len(self._plans) > PLANS_KEPT_MAX:
                    self._plans.popitem(last=False)
        return made

    def mutation(self, text: str, name: str | None, catalog: Catalog, schema_hash: str) -> "MutationPlan":
        """As `plan`; a read query is `WrongQueryKind`."""
        from omnigraph.planning.compile import as_mutation  # noqa: PLC0415

        return as_mutation(self.plan(text, name, catalog, schema_hash))

    def read(self, text: str, name: str | None, catalog: Catalog, schema_hash: str) -> "ReadPlan":
        """As `plan`; a mutation is `WrongQueryKind`."""
        from omnigraph.planning.compile import as_read  # noqa: PLC0415

        return as_read(self.plan(text, name, catalog, schema_hash))
