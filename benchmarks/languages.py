"""Time per query and per type of the two languages, from small files to large ones.

Run by `python -m benchmarks.languages`. Processor time of the best of several runs, so that a busy machine
changes little. The last column is the time per item relative to the smallest file: near 1 for linear cost.
"""

import gc
import time
from collections.abc import Callable
from functools import partial

from omnigraph.catalog.build import compile_schema
from omnigraph.language.format_query import format_queries
from omnigraph.language.format_schema import format_schema
from omnigraph.language.query_syntax import parse_queries
from omnigraph.language.source import Source
from omnigraph.planning.lint import lint_sources

QUERY_COUNTS = (50, 500, 5_000)
TYPE_COUNTS = (20, 200, 2_000)
RATIO_MAX = 1.5
"""Above this the time per item is not flat."""

READ = """
query read_{n}($name: String, $least: I32?) @description("neighbours of one person") {{
  match {{
    $p: Person{t} {{ name: $name }}
    $p $k:knows{t} $friend
    $friend.age > $least
    not {{ $friend knows{t}{{1,2}} $p }}
    maybe {{ $friend knows{t} $other }}
  }}
  return {{ $friend.name, count($other) as others, max($k.since) as since }}
  order {{ others desc, $friend.name }}
  limit 20
}}
"""
WRITE = """
query write_{n}($name: String, $age: I32?) {{
  update Person{t} set {{ age: $age, bio: "changed" }} where name = $name and not (age is null or age < 18)
}}
"""
TYPE = """
node Person{n} @description("a person") {{
  name: String @key
  age: I32?
  bio: String? @index
  born: Date?
  tags: [String]?
  role: enum(owner, guest)?
  @range(age, 0..150)
}}
edge Knows{n}: Person{n} -> Person{n} @card(0..500) {{ since: Date?  note: String? }}
"""


def queries(count: int, types: int) -> str:
    return "".join((READ if n % 2 else WRITE).format(n=n, t=n % types) for n in range(count))


def schema(types: int) -> str:
    return "".join(TYPE.format(n=n) for n in range(types))


def seconds(work: Callable[[], object], runs: int) -> float:
    best = float("inf")
    for _ in range(runs):
        gc.collect()
        start = time.process_time()
        work()
        best = min(best, time.process_time() - start)
    return best


def table(title: str, what: str, texts: dict[int, str], work: Callable[[str], object]) -> float:
    """Prints one table; returns the ratio of the largest to the smallest file."""
    print(f"\n{title}\n{what:>9} {'seconds':>9} {'µs each':>9} {'ratio':>6}")
    each: list[float] = []
    for count, text in texts.items():
        taken = seconds(partial(work, text), runs=max(3, 500 // count))
        each.append(taken / count)
        print(f"{count:>9,} {taken:>9.4f} {each[-1] * 1e6:>9.1f} {each[-1] / each[0]:>6.2f}")
    return each[-1] / each[0]


def main() -> int:
    catalog = compile_schema(schema(25))
    texts = {count: queries(count, 25) for count in QUERY_COUNTS}
    schemas = {count: schema(count) for count in TYPE_COUNTS}
    wide = compile_schema(schemas[TYPE_COUNTS[-1]])
    spread = queries(QUERY_COUNTS[0], TYPE_COUNTS[-1])
    ratios = {
        "parse": table("parse queries", "queries", texts, parse_queries),
        "lint": table("lint queries", "queries", texts, lambda text: lint_sources([Source(text)], catalog)),
        "fmt": table("format queries", "queries", texts, format_queries),
        "schema": table("compile a schema", "types", schemas, compile_schema),
        "schema fmt": table("format a schema", "types", schemas, format_schema),
    }
    narrow = seconds(lambda: lint_sources([Source(texts[QUERY_COUNTS[0]])], catalog), runs=5)
    across = seconds(lambda: lint_sources([Source(spread)], wide), runs=5)
    ratios["lint, 2,000 types against 25"] = across / narrow
    print("\nratios, largest to smallest")
    for name, ratio in ratios.items():
        print(f"  {name:<30} {ratio:.2f}{'' if ratio <= RATIO_MAX else '   NOT FLAT'}")
    return 0 if all(ratio <= RATIO_MAX for ratio in ratios.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
