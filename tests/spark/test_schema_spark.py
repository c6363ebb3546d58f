"""Changes of the schema above the bound for work in one process run on Spark, and say the same."""

import pytest

import omnigraph
from omnigraph.client.spark import register_spark
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
        filled = SCHEMA.replace("stops: I32?", "stops: I64  label: String  twice: I32")
        with pytest.raises(ConstraintViolation, match="has no result"):
            graph.apply_schema(filled, fills=["Tour.label = $row.code", "Tour.twice = 2 / ($row.stops - 1)"])
        fills = ["Tour.label = $row.code", "Tour.twice = $row.stops * 2"]
        assert graph.apply_schema(filled, fills=fills).applied
        rows = graph.query(
            "query q() { match { $t: Tour } return { $t.code, $t.label, $t.stops, $t.twice } }"
        )
        assert sorted(tuple(row.values()) for row in rows) == [("a", "a", 1, 2), ("b", "b", 1, 2)]
        assert graph.verify().violations == ()


def test_frames_and_the_spark_source_read_the_past_by_identity(tmp_path, runtime):
    """By the names of then, by the names of now where then had none, and null where there was no such column."""
    place = tmp_path / "graph"
    with omnigraph.init(place, schema=SCHEMA, settings=Settings(durability="os")) as graph:
        graph.mutate(
            'query q() { insert Tour { code: "a", stops: 1, mood: "fun" } insert Tour { code: "b", stops: 2, '
            'mood: "calm" } insert Next { from: "a", to: "b" } }'
        )
        graph.tags.create("v1")
        graph.branches.create("lazy")
        graph.apply_schema(SCHEMA.replace("stops: I32?", "stops: I32?  guide: String?"))
        lazy = graph.frames("Tour", branch="lazy", columns=["code", "guide"], spark=runtime.spark)
        assert sorted(map(tuple, lazy.collect())) == [("a", None), ("b", None)]
        graph.branches.delete("lazy")
        graph.apply_schema(
            'node Trip @rename_from("Tour") { ref: String @key @rename_from("code")'
            '  legs: I64? @rename_from("stops")  mood: enum(fun, calm)  guide: String? }\n'
            'edge Then: Trip -> Trip @rename_from("Next")\n'
        )
        then = graph.frames("Tour", at="v1", columns=["code", "stops"], spark=runtime.spark)
        assert sorted(map(tuple, then.collect())) == [("a", 1), ("b", 2)]
        mixed = graph.frames("Tour", at="v1", columns=["code", "legs", "guide"], spark=runtime.spark)
        assert sorted(map(tuple, mixed.collect())) == [("a", 1, None), ("b", 2, None)]
        by_name = {"at": "v1", "columns": ["ref", "legs", "guide"], "spark": runtime.spark}
        assert sorted(map(tuple, graph.frames("Trip", **by_name).collect())) == [
            ("a", 1, None),
            ("b", 2, None),
        ]
        for where, found in (("legs > 1", ["b"]), ('guide = "Ann"', []), ("guide is null", ["a", "b"])):
            rows = graph.frames("Trip", where=where, **by_name).collect()
            assert sorted(row["ref"] for row in rows) == found
        edges = graph.frames("Then", at="v1", columns=["src", "dst"], spark=runtime.spark)
        assert list(map(tuple, edges.collect())) == [("a", "b")]
    source = (
        register_spark(runtime.spark)
        .read.format("omnigraph")
        .option("graph", str(place))
        .option("type", "Trip")
    )
    past = source.option("at", "v1").load()
    assert sorted(tuple(row) for row in past.filter("legs > 1").select("ref", "legs").collect()) == [("b", 2)]
    assert sorted(row["ref"] for row in source.load().collect()) == ["a", "b"]
