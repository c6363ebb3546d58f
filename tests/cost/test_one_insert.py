"""What one insert asks of the storage, recorded as a ceiling."""

from collections import Counter

import pytest

import omnigraph
from omnigraph.core.events import StorageCall, listen
from omnigraph.core.settings import Settings

SCHEMA = "node Person { name: String @key  age: I32? }"

CALLS_MAX = 35
"""Calls of the adapter and of datasets for one warm insert. Raise it only with a reason."""


def calls_of_an_insert(graph, name):
    heard = []
    with listen(heard.append, everywhere=True):
        graph.mutate(f'query m() {{ insert Person {{ name: "{name}" }} }}')
    return Counter(each.kind for each in heard if isinstance(each, StorageCall))


@pytest.mark.cost
def test_single_insert_call_ceiling(tmp_path):
    with omnigraph.init(tmp_path / "g", schema=SCHEMA, settings=Settings(durability="os")) as graph:
        for number in range(3):
            calls_of_an_insert(graph, f"warm{number}")
        first = calls_of_an_insert(graph, "first")
        for number in range(20):
            calls_of_an_insert(graph, f"more{number}")
        later = calls_of_an_insert(graph, "later")
    assert 0 < first.total() <= CALLS_MAX, first
    assert later == first
