"""The loads that left a journal: what they need, and how one is forgotten for good."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson

from omnigraph.core.errors import LoadNotResumable, StoragePermanent
from omnigraph.pipeline.load.journal import Journal, is_read_format, only_driver
from omnigraph.storage.layout import LOADS, load_record_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from omnigraph.engine.session import GraphSession

_SUFFIX = ".json"


class JournaledLoads:
    """The loads of one graph, as a cleanup sees them."""

    def __init__(self, session: GraphSession) -> None:
        self._session = session

    def files(self) -> Mapping[str, frozenset[str]]:
        """The rows that each load has staged, as names of the graph.

        Raises StoragePermanent for a journal of a newer program: what it needs is not known.
        """
        found: dict[str, frozenset[str]] = {}
        for file in self._session.adapter.list_dir(LOADS):
            if not file.endswith(_SUFFIX):
                continue
            load_id = file.removesuffix(_SUFFIX)
            self._require_known(load_id)
            entries = Journal(self._session.root, load_id).entries().values()
            fragments = [fragment for result, _ in entries for fragment in result.staged()]
            found[load_id] = frozenset(name for fragment in fragments for name in fragment.files)
        return found

    def discard(self, load_id: str) -> bool:
        """Forget a load unless somebody drives it; whether it is gone."""
        try:
            with only_driver(self._session, load_id, new=False):
                # What an end that was interrupted left.
                self._session.adapter.delete_prefix(f"{LOADS}/{load_id}.ended")
                Journal(self._session.root, load_id).end()
        except LoadNotResumable:
            return False
        return True

    def _require_known(self, load_id: str) -> None:
        name = load_record_name(load_id)
        text = self._session.adapter.read_text_if_exists(name)
        try:
            number = None if text is None else orjson.loads(text).get("format")
        except (orjson.JSONDecodeError, AttributeError):
            return  # cut short: nothing of it can be resumed
        if number is not None and not is_read_format(number):
            raise StoragePermanent(
                f"{self._session.adapter.address(name)}: a journal of the unknown format {number}",
                hint="run the cleanup with the program that wrote it",
            )
