"""Changes of the schema of a graph in an object store, where a rename is a copy and a deletion."""

import pytest

import omnigraph
from omnigraph.core.errors import OmnigraphError, RecoveryRequired
from omnigraph.core.failpoints import Raise, Window, activate
from stores import s3_store

pytestmark = pytest.mark.s3

CITY = "node City { name: String @key }\n"
TOURS = "node Tour { code: String @key  stops: I32? @index  secret: String? }\n"
GUIDED = "node Tour { code: String @key  stops: I32? @index  guide: String?  secret: String? }\n" + CITY
LEGS = 'legs: I64? @index @rename_from("stops")  guide: String?  label: String'
FILLED = f"node Tour {{ code: String @key  {LEGS}  secret: String? }}\n{CITY}"
SMALL = f"node Tour {{ code: String @key  {LEGS} }}\n{CITY}"


@pytest.fixture
def graph():
    place = s3_store()
    with omnigraph.init(place.uri, schema=TOURS, storage_options=place.storage_options) as made:
        made.mutate(
            'query q() { insert Tour { code: "a", stops: 1, secret: "s" } insert Tour { code: "b" } }'
        )
        yield made


def shown(graph, *names, **where):
    asked = ", ".join(f"$t.{name}" for name in ("code", *names))
    text = f"query q() {{ match {{ $t: Tour }} return {{ {asked} }} order {{ $t.code asc }} }}"
    return [tuple(row.values()) for row in graph.query(text, **where)]


def test_a_schema_changes_beside_a_branch_then_by_columns_then_for_good(graph):
    graph.branches.create("team")
    graph.mutate('query q() { insert Tour { code: "t", stops: 3 } }', branch="team")
    assert graph.apply_schema(GUIDED).applied
    assert shown(graph, "guide", branch="team") == [("a", None), ("b", None), ("t", None)]
    graph.mutate('query q() { update Tour set { guide: "Ann" } where code = "t" }', branch="team")
    graph.branches.merge("team")
    graph.branches.delete("team")
    assert shown(graph, "stops", "guide") == [("a", 1, None), ("b", None, None), ("t", 3, "Ann")]
    before = graph.commits.head().id
    assert graph.apply_schema(FILLED, fills=["Tour.label = $row.code"]).applied
    graph.mutate('query q() { update Tour set { legs: 3000000000 } where code = "b" }')
    assert shown(graph, "legs", "label") == [("a", 1, "a"), ("b", 3000000000, "b"), ("t", 3, "t")]
    assert shown(graph, "legs", at=before) == [("a", 1), ("b", None), ("t", 3)]
    dropped = graph.apply_schema(SMALL, allow_data_loss=True)
    assert dropped.kept_by == ()
    assert dropped.reclaimed_bytes > 0
    with pytest.raises(OmnigraphError):
        shown(graph, "secret", at=before)
    assert shown(graph, "legs", "label") == [("a", 1, "a"), ("b", 3000000000, "b"), ("t", 3, "t")]
    assert graph.verify(deep=True).violations == ()


@pytest.mark.parametrize(
    ("window", "outcome"),
    [
        (Window.SCHEMA_APPLY_AFTER_COLUMN_FILES, TOURS),
        (Window.SCHEMA_APPLY_AFTER_STAGING_WRITE, FILLED),
        (Window.SCHEMA_APPLY_BETWEEN_RENAMES, FILLED),
    ],
    ids=["column files", "staged", "renames"],
)
def test_a_change_that_fails_half_way_is_undone_or_completed(graph, window, outcome):
    fills = ["Tour.label = $row.code"]
    with activate(window, Raise(OSError("cut"))), pytest.raises((OSError, RecoveryRequired)):
        graph.apply_schema(FILLED, fills=fills)
    graph.mutate('query q() { update Tour set { secret: "n" } where code = "a" }')
    assert graph.schema_source() == outcome
    assert graph.apply_schema(FILLED, fills=fills).applied is (outcome == TOURS)
    assert shown(graph, "legs", "label", "secret") == [("a", 1, "a", "n"), ("b", None, "b", None)]
    assert graph.verify(deep=True).violations == ()
