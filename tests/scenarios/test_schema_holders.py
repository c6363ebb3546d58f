"""Those who began with the former schema: a load that is resumed, a reader that holds its state, a writer."""

import threading

import pytest

import omnigraph
from omnigraph.core.errors import (
    ConstraintViolation,
    EmbedderError,
    LoadNotResumable,
    PreconditionFailed,
    QueryTypeError,
    ReadSetConflict,
)
from omnigraph.core.failpoints import Pause, Window, activate
from omnigraph.engine.search.offline_embedder import OfflineEmbedder
from recovery_graph import FAST

SCHEMA = "node Doc { slug: String @key  body: String?  stars: I32?  vec: Vector(3)? @embed(body) }\n"
MORE = SCHEMA.replace("stars: I32?", "stars: I32?  language: String?")
RENAMED = SCHEMA.replace("node Doc {", 'node Page @rename_from("Doc") {').replace(
    "stars: I32?", 'marks: I64? @rename_from("stars")'
)
STARS = "query q() { match { $d: Doc } return { $d.slug, $d.stars } order { $d.slug asc } }"
MARKS = STARS.replace("$d: Doc", "$d: Page").replace("$d.stars", "$d.marks")


class Stumbling:
    """Fails at one text, once the other piece of the load is in the journal."""

    model = "m"

    def __init__(self, place):
        self.place = place

    def embed(self, texts, dimension):
        if "bad" in texts:
            while not list(self.place.glob("__loads/*/journal/split-0.json")):
                threading.Event().wait(0.001)
            raise ConnectionError("no route")
        return OfflineEmbedder("m").embed(texts, dimension)


@pytest.fixture
def place(tmp_path):
    where = tmp_path / "docs.omni"
    with omnigraph.init(where, schema=SCHEMA, settings=FAST) as graph:
        graph.mutate('query q() { insert Doc { slug: "a", stars: 1 } }')
    return where


@pytest.mark.slow
@pytest.mark.parametrize("wanted", [MORE, RENAMED], ids=["added", "renamed"])
def test_a_load_of_the_former_schema_is_not_resumed_and_changes_nothing(place, tmp_path, wanted):
    for number, text in enumerate(["good", "bad"]):
        record = f'{{"type":"Doc","data":{{"slug":"{number}","body":"{text}"}}}}\n'
        (tmp_path / f"{number}.jsonl").write_text(record)
    files = str(tmp_path / "?.jsonl")
    with omnigraph.open(place, settings=FAST, embedder=Stumbling(place)) as graph:
        with pytest.raises(EmbedderError) as stopped:
            graph.load(files, mode="append", engine="local")
        load_id = stopped.value.details["load_id"]
        assert graph.apply_schema(wanted).applied
    with omnigraph.open(place, settings=FAST, embedder=OfflineEmbedder("m")) as graph:
        before = graph.commits.head().id
        with pytest.raises(LoadNotResumable, match="the schema has changed"):
            graph.load(resume=load_id, engine="local")
        assert graph.commits.head().id == before
        assert graph.verify().violations == ()
        if wanted is MORE:
            graph.load(files, mode="append", engine="local")
            assert [row["d.slug"] for row in graph.query(STARS)] == ["0", "1", "a"]


@pytest.mark.slow
def test_a_reader_that_holds_the_former_schema_goes_on_or_is_told(place):
    """Another handle changes the schema: what a reader pinned stays as it was, what it asks anew is of now."""
    with (
        omnigraph.open_read_only(place, settings=FAST) as reader,
        omnigraph.open(place, settings=FAST) as writer,
    ):
        assert list(reader.query(STARS)) == [{"d.slug": "a", "d.stars": 1}]
        pinned = reader.at("main")
        held = reader.query(STARS)
        writer.apply_schema(MORE)
        writer.mutate('query q() { insert Doc { slug: "b", stars: 2, language: "en" } }')
        language = "query q() { match { $d: Doc } return { $d.slug, $d.language } order { $d.slug asc } }"
        assert [row["d.language"] for row in reader.query(language)] == [None, "en"]
        assert list(pinned.query(STARS)) == [{"d.slug": "a", "d.stars": 1}]
        assert list(pinned.query(language)) == [{"d.slug": "a", "d.language": None}]
        writer.apply_schema(RENAMED.replace("body: String?", "body: String?  language: String?"))
        assert [tuple(row.values()) for row in reader.query(MARKS)] == [("a", 1), ("b", 2)]
        with pytest.raises(QueryTypeError, match="Doc"):
            reader.query(STARS)
        assert list(pinned.query(STARS)) == [{"d.slug": "a", "d.stars": 1}]
        assert [tuple(row.values()) for row in pinned.query(MARKS)] == [("a", 1)]
        assert list(held) == [{"d.slug": "a", "d.stars": 1}]


@pytest.mark.slow
def test_a_writer_that_holds_the_former_schema_writes_by_the_new_one(place):
    with omnigraph.open(place, settings=FAST) as one, omnigraph.open(place, settings=FAST) as other:
        one.mutate('query q() { insert Doc { slug: "b", stars: 2 } }')
        other.apply_schema(RENAMED)
        with pytest.raises(QueryTypeError, match="Doc"):
            one.mutate('query q() { insert Doc { slug: "c", stars: 3 } }')
        one.mutate('query q() { insert Page { slug: "c", marks: 3 } }')
        one.load_frames({"Page": [{"slug": "d", "marks": 4}]}, mode="append", engine="local")
        assert [tuple(row.values()) for row in other.query(MARKS)] == [("a", 1), ("b", 2), ("c", 3), ("d", 4)]
        assert other.verify().violations == ()


class Halfway:
    """A write that has staged its rows when another handle changes the schema, and goes on then."""

    def __init__(self, place, window, wanted, write):
        self.result = self.error = None
        with omnigraph.open(place, settings=FAST) as one, omnigraph.open(place, settings=FAST) as other:
            with activate(window, Pause()) as pause:
                going = threading.Thread(target=self.go, args=(one, write))
                going.start()
                pause.wait_until_reached()
                assert other.apply_schema(wanted).applied
                self.applied = other.commits.head().id
                pause.release()
                going.join(60)
            self.newer = [each.id for each in other.commits.list()]
            self.newer = self.newer[: self.newer.index(self.applied)]
            assert other.verify(deep=True).violations == ()

    def go(self, graph, write):
        try:
            self.result = write(graph)
        except omnigraph.errors.OmnigraphError as error:
            self.error = error


STAGED = Window.MUTATION_POST_STAGE_PRE_QUEUE


def inserts(graph, **options):
    return graph.mutate('query q() { insert Doc { slug: "b", stars: 7 } }', **options)


@pytest.mark.slow
def test_a_mutation_that_meets_a_schema_change_is_carried_out_by_the_new_schema(place):
    tiered = SCHEMA.replace("stars: I32?", 'stars: I64?  tier: String @default("basic")')
    assert Halfway(place, STAGED, tiered, inserts).result.affected_nodes == 1
    with omnigraph.open(place, settings=FAST) as graph:
        rows = graph.query("query q() { match { $d: Doc } return { $d.slug, $d.stars, $d.tier } }")
        assert sorted(map(tuple, map(dict.values, rows))) == [("a", 1, "basic"), ("b", 7, "basic")]


@pytest.mark.parametrize(
    ("wanted", "error", "says"),
    [
        (RENAMED, QueryTypeError, "Doc"),
        (SCHEMA.replace("stars: I32?", "stars: I32?  @range(stars, ..5)"), ConstraintViolation, "above 5"),
    ],
    ids=["names that are gone", "a rule it breaks"],
)
def test_a_mutation_that_the_new_schema_does_not_take_is_told_so(place, wanted, error, says):
    met = Halfway(place, STAGED, wanted, inserts)
    assert isinstance(met.error, error)
    assert says in str(met.error)
    assert met.newer == []


def test_a_condition_on_the_head_holds_also_when_the_schema_changes(place):
    with omnigraph.open(place, settings=FAST) as graph:
        head = graph.commits.head().id
    met = Halfway(place, STAGED, MORE, lambda graph: inserts(graph, if_commit=head))
    assert isinstance(met.error, PreconditionFailed)
    assert met.newer == []


@pytest.mark.slow
@pytest.mark.parametrize("wanted", [MORE, RENAMED], ids=["added", "renamed"])
@pytest.mark.parametrize("mode", ["append", "merge"])
def test_a_load_that_meets_a_schema_change_is_told_and_changes_nothing(place, tmp_path, wanted, mode):
    (tmp_path / "in.jsonl").write_text('{"type":"Doc","data":{"slug":"b","stars":7}}\n')
    met = Halfway(
        place,
        Window.LOAD_POST_STAGE,
        wanted,
        lambda graph: graph.load(tmp_path / "in.jsonl", mode=mode, engine="local"),
    )
    assert isinstance(met.error, ReadSetConflict)
    assert "the schema changed" in str(met.error)
    assert met.error.hint
    assert met.newer == []
