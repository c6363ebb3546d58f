"""The ten nearest and the ten most relevant of 100,000 documents, beside pylance, sqlite FTS5 and numpy.

Run by `python -m benchmarks.search [--rows N] [--questions N] [--where DIR]`. The documents are made once
into DIR and kept. Before anything is timed every answer is checked: ours against brute force, exactly; those
of the others against the same, as far as they define relevance as we do. Each question is asked of every
contender in turn, so that a busy machine slows all of them alike; p50 of whole calls that end in Python rows.
"""

import argparse
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import omnigraph
from omnigraph.core.settings import Settings

SCHEMA = "node Doc { slug: String @key  body: String @index  vec: Vector(128) @index }"
WIDTH = 128
WORDS = 30_000
TOP = 10
PROBES = 8
RECALL_MIN = 0.9
GOALS = {"vector": ("pylance, index", 1.0), "vector, approximate": ("pylance, probed index", 1.5)}
TEXT_GOALS = {"text, one word": ("sqlite FTS5", 1.0), "text, two words": ("sqlite FTS5", 1.0)}

NEAR = (
    "query near($v: Vector(128)) { match { $d: Doc } return { $d.slug }"
    " order { nearest($d.vec, $v) } limit 10 }"
)
FIND = "query find($t: String) { match { $d: Doc } return { $d.slug } order { bm25($d.body, $t) } limit 10 }"
HOLDS = "query holds($t: String) { match { $d: Doc search($d.body, $t) } return { count($d) as n } }"

Ask = Callable[[Any], list[str]]


# --- data ------------------------------------------------------------------------------------------------


def make_data(where: Path, rows: int) -> None:
    """The documents as Parquet, as graphs with exact and with probed vectors, as Lance and sqlite tables."""
    rng = np.random.default_rng(11)
    # Vectors of a few hundred subjects, as embeddings of texts are; uniform noise has no near and far.
    subjects = rng.standard_normal((300, WIDTH))
    vectors = (subjects[rng.integers(0, 300, rows)] + 1.0 * rng.standard_normal((rows, WIDTH))).astype(
        np.float32
    )
    lengths = rng.integers(5, 41, rows)
    chosen = np.minimum(rng.zipf(1.25, int(lengths.sum())) - 1, WORDS - 1)
    words = np.array([f"w{number}" for number in range(WORDS)], dtype=object)[chosen]
    ends = np.cumsum(lengths)
    bodies = [" ".join(words[end - length : end]) for end, length in zip(ends, lengths, strict=True)]
    table = pa.table(
        {
            "slug": [f"doc-{number:07d}" for number in range(rows)],
            "body": bodies,
            "vec": pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), WIDTH),
        }
    )
    where.mkdir(parents=True)
    pq.write_table(table, where / "Doc.parquet")
    for name, settings in settings_of().items():
        with omnigraph.init(where / name, schema=SCHEMA, settings=settings) as graph:
            graph.load(where / "Doc.parquet", mode="append", engine="local", type_name="Doc")
    for name, partitions in (("lance", 1), ("probed", max(1, rows // 4096))):
        dataset = lance.write_dataset(table, str(where / name))
        dataset.create_scalar_index("body", "INVERTED")
        dataset.create_index("vec", "IVF_FLAT", metric="l2", num_partitions=partitions)
    with sqlite3.connect(where / "docs.sqlite") as store:
        store.execute("create virtual table doc using fts5(slug unindexed, body)")
        store.executemany(
            "insert into doc values (?, ?)", zip(table["slug"].to_pylist(), bodies, strict=True)
        )
        store.execute("insert into doc(doc) values ('optimize')")


def settings_of() -> dict[str, Settings]:
    """Our two graphs: exact by default, and searched in parts."""
    return {
        "graph": Settings(durability="os", cache_bytes=4 << 30),
        "graph-probed": Settings(durability="os", cache_bytes=4 << 30, vector_probes=PROBES),
    }


# --- contenders ------------------------------------------------------------------------------------------


def contenders(where: Path, held: ExitStack) -> dict[str, dict[str, Ask]]:
    """Every workload with those who answer it."""
    graphs = {
        name: held.enter_context(omnigraph.open(where / name, settings=settings))
        for name, settings in settings_of().items()
    }
    plain, probed = lance.dataset(str(where / "lance")), lance.dataset(str(where / "probed"))
    store = held.enter_context(sqlite3.connect(where / "docs.sqlite"))
    vectors, slugs = read_vectors(where)
    squares = np.einsum("ij,ij->i", vectors, vectors)

    def ours(name: str, text: str, parameter: str) -> Ask:
        return lambda value: [row["d.slug"] for row in graphs[name].query(text, {parameter: value})]

    def pylance(dataset: Any, **options: Any) -> Ask:
        def ask(value: Any) -> list[str]:
            nearest = {"column": "vec", "q": np.array(value, np.float32), "k": TOP, **options}
            return dataset.to_table(columns=["slug", "_distance"], nearest=nearest)["slug"].to_pylist()

        return ask

    def numpy_limit(value: Any) -> list[str]:
        estimate = squares - 2 * (vectors @ np.array(value, np.float32))
        best = np.argpartition(estimate, TOP)[:TOP]
        return [slugs[place] for place in best[np.argsort(estimate[best])].tolist()]

    def full_text(value: Any) -> list[str]:
        return plain.to_table(columns=["slug", "_score"], full_text_query=value, limit=TOP)[
            "slug"
        ].to_pylist()

    def sqlite(value: Any) -> list[str]:
        query = "select slug from doc where doc match ? order by rank limit 10"
        return [row[0] for row in store.execute(query, (" or ".join(value.split()).replace("or", "OR"),))]

    text: dict[str, Ask] = {
        "omnigraph": ours("graph", FIND, "t"),
        "pylance": full_text,
        "sqlite FTS5": sqlite,
    }
    return {
        "vector": {
            "omnigraph": ours("graph", NEAR, "v"),
            "pylance, index": pylance(plain),
            "pylance, no index": pylance(plain, use_index=False),
            "numpy": numpy_limit,
        },
        "vector, approximate": {
            "omnigraph": ours("graph-probed", NEAR, "v"),
            "pylance, probed index": pylance(probed, nprobes=PROBES),
        },
        "text, one word": text,
        "text, two words": text,
    }


def read_vectors(where: Path) -> tuple[np.ndarray, list[str]]:
    """All vectors and the names of their documents."""
    table = pq.read_table(where / "Doc.parquet", columns=["slug", "vec"])
    flat = table["vec"].combine_chunks().flatten().to_numpy()
    return flat.reshape(-1, WIDTH), table["slug"].to_pylist()


def questions(where: Path, count: int) -> dict[str, list[Any]]:
    """What is asked: vectors near documents, and words from common to rare."""
    rng = np.random.default_rng(3)
    vectors, _ = read_vectors(where)
    near = vectors[rng.integers(0, len(vectors), count)] + 0.7 * rng.standard_normal((count, WIDTH))
    words = [f"w{int(place)}" for place in np.geomspace(1, 2000, count)]
    asked = [[float(number) for number in row] for row in near.astype(np.float32)]
    return {
        "vector": asked,
        "vector, approximate": asked,
        "text, one word": words,
        "text, two words": [f"{a} {b}" for a, b in zip(words, reversed(words), strict=True) if a != b],
    }


# --- checks ----------------------------------------------------------------------------------------------


class Truth:
    """Brute force, spelled out."""

    def __init__(self, where: Path) -> None:
        self.vectors, self.slugs = read_vectors(where)
        self.place = {slug: number for number, slug in enumerate(self.slugs)}
        bodies = pq.read_table(where / "Doc.parquet", columns=["body"])["body"].to_pylist()
        self.bodies = [body.split() for body in bodies]
        self.average = sum(map(len, self.bodies)) / len(self.bodies)

    def distances(self, query: list[float]) -> np.ndarray:
        """Of every document."""
        wide = self.vectors.astype(np.float64) - np.array(query, np.float32).astype(np.float64)
        return np.sqrt((wide**2).sum(axis=1))

    def scores(self, text: str) -> np.ndarray:
        """The relevance of every document."""
        total = np.zeros(len(self.bodies))
        for word in sorted(set(text.split())):
            often = np.array([body.count(word) for body in self.bodies], np.float64)
            lengths = np.array([len(body) for body in self.bodies], np.float64)
            holding = int((often > 0).sum())
            rarity = np.log((len(often) - holding + 0.5) / (holding + 0.5) + 1)
            norm = 1.2 * (0.25 + 0.75 * lengths / self.average)
            total += rarity * often * 2.2 / (often + norm)
        return total

    def nearest(self, query: list[float]) -> list[str]:
        """The true answer, equal distances by name."""
        far = self.distances(query)
        return [self.slugs[place] for place in np.lexsort((self.slugs, far))[:TOP]]

    def most_relevant(self, text: str) -> list[str]:
        """The true answer, equal scores by name."""
        scores = self.scores(text)
        order = np.lexsort((self.slugs, -scores))[:TOP]
        return [self.slugs[place] for place in order if scores[place] > 0]


def check(truth: Truth, asks: dict[str, dict[str, Ask]], asked: dict[str, list[Any]]) -> dict[str, float]:
    """Compare answers with the truth; gives back the recall of approximate ones."""
    for query in asked["vector"][:5]:
        expected = truth.nearest(query)
        for name, ask in asks["vector"].items():
            same(f"vector, {name}", ask(query), expected, truth.distances(query), truth)
    for workload in ("text, one word", "text, two words"):
        for query in asked[workload][:: max(1, len(asked[workload]) // 5)]:
            expected, scores = truth.most_relevant(query), -truth.scores(query)
            same(f"{workload}, omnigraph", asks[workload]["omnigraph"](query), expected, None, truth)
            # The others break ties their own way; pylance adds up in single precision. sqlite weighs rare
            # words differently, so that only answers to one word have its order.
            same(f"{workload}, pylance", asks[workload]["pylance"](query), expected, scores, truth)
            if workload == "text, one word":
                same(f"{workload}, sqlite", asks[workload]["sqlite FTS5"](query), expected, scores, truth)
    recalls: dict[str, float] = {}
    for name, ask in asks["vector, approximate"].items():
        found = [len(set(ask(q)) & set(truth.nearest(q))) / TOP for q in asked["vector"]]
        recalls[name] = statistics.fmean(found)
    return recalls


def same(what: str, got: list[str], expected: list[str], keys: np.ndarray | None, truth: Truth) -> None:
    """Stop when an answer is wrong. With keys, documents of equal keys may stand for each other."""
    if keys is not None:
        got_keys = [float(keys[truth.place[slug]]) for slug in got]
        right = np.allclose(got_keys, [float(keys[truth.place[slug]]) for slug in expected], atol=1e-4)
    else:
        right = got == expected
    if not right:
        raise SystemExit(f"{what} answers {got}, expected {expected}")


# --- measuring -------------------------------------------------------------------------------------------


def measure(asks: dict[str, Ask], asked: list[Any]) -> dict[str, float]:
    """The p50 of each contender in milliseconds, asked in turn."""
    taken: dict[str, list[float]] = {name: [] for name in asks}
    for round_number in range(2):
        for question in asked:
            for name, ask in asks.items():
                begun = time.perf_counter()
                ask(question)
                if round_number:
                    taken[name].append((time.perf_counter() - begun) * 1000)
    return {name: statistics.median(times) for name, times in taken.items()}


def show_first_answers(where: Path) -> None:
    """How long a newly opened graph takes for its first answers, with nothing in memory."""
    for label, text, params in (
        ("search, first", HOLDS, {"t": "w7"}),
        ("bm25, first", FIND, {"t": "w7 w40"}),
        ("nearest, first", NEAR, {"v": [0.0] * WIDTH}),
    ):
        begun = time.perf_counter()
        with omnigraph.open(where / "graph", settings=settings_of()["graph"]) as graph:
            opened = time.perf_counter()
            graph.query(text, params)
            took, opening = time.perf_counter() - opened, opened - begun
        print(f"  {label:<24} {took * 1000:9.1f} ms  (open {opening * 1000:.1f} ms)")


def main() -> int:
    """Print the figures; 1 when a goal is missed."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--rows", type=int, default=100_000)
    arguments.add_argument("--questions", type=int, default=60)
    arguments.add_argument("--where", type=Path, default=None)
    chosen = arguments.parse_args()
    with ExitStack() as held:
        base = chosen.where or Path(held.enter_context(tempfile.TemporaryDirectory()))
        where = base / f"search-{chosen.rows}"
        if not where.exists():
            # Renamed when whole: a run that was stopped leaves nothing that looks finished.
            unfinished = Path(tempfile.mkdtemp(dir=base)) / "made"
            make_data(unfinished, chosen.rows)
            unfinished.rename(where)
        print(f"{chosen.rows} documents, top {TOP}; p50 in ms and our share of each peer's time")
        show_first_answers(where)
        asks = contenders(where, held)
        asked = questions(where, chosen.questions)
        recalls = check(Truth(where), asks, asked)
        for name, recall in recalls.items():
            print(f"  recall@{TOP} with {PROBES} probes: {name} {recall:.3f}")
        missed = [
            f"recall {name}"
            for name, recall in recalls.items()
            if name == "omnigraph" and recall < RECALL_MIN
        ]
        for workload, of in asks.items():
            times = measure(of, asked[workload])
            mine = times.pop("omnigraph")
            shares = ", ".join(f"{name} {peer:.2f} ({mine / peer:.2f})" for name, peer in times.items())
            print(f"  {workload:<20} omnigraph {mine:7.2f}; {shares}")
            peer, goal = (GOALS | TEXT_GOALS)[workload]
            if mine > goal * times[peer]:
                missed.append(f"{workload}: {mine / times[peer]:.2f} of {peer}, goal {goal}")
    for each in missed:
        print(f"  missed: {each}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
