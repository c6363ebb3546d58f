"""Changes of the schema above the bound for work in one process run on Spark, and say the same."""

import pytest

import omnigraph
from omnigraph.core.errors import ConstraintViolation
from omnigraph.core.settings import Settings

FEW = Settings(durability="os", bulk_rows_in_process_max=1)
SCHEMA = "node Tour { code: String @key  stops: I32?  mood: enum(fun, calm) }\nedge Next: Tour -> Tour\n"


def test_rows_are_checked_by_tasks_as_they_are_in_process(tmp_path):
    with omnigraph.init(tmp_path / "graph", schema=SCHEMA, settings=FEW) as graph:
        graph.mutate(
            'query q() { insert Tour { code: "a", stops: 1, mood: "fun" } insert Tour { code: "b", stops: 1, '
            'mood: "calm" } insert Next { from: "a", to: "b" } insert Next { from: "a", to: "a" } }'
        )
        for old, new, says in (
            ("I32?", "I32? @unique", "'1' is held by 'a' and 'b'"),
            ("enum(fun, calm)", "enum(fun)", "'calm' is not one of fun"),
            ("Tour -> Tour", "Tour -> Tour @card(0..1)", "'a' would have 2 edges"),
        ):
            with pytest.raises(ConstraintViolation, match=says):
                graph.apply_schema(SCHEMA.replace(old, new))
        filled = SCHEMA.replace("stops: I32?", "stops: I64  label: String")
        assert graph.apply_schema(filled, fills=["Tour.label = $row.code"]).applied
        rows = graph.query("query q() { match { $t: Tour } return { $t.code, $t.label, $t.stops } }")
        assert sorted(tuple(row.values()) for row in rows) == [("a", "a", 1), ("b", "b", 1)]
        assert graph.verify().violations == ()
