"""A made-up company and what it knows: the same every time, made with Arrow and numpy in a second or two.

`python scripts/company.py DIR` writes one file of JSON lines per type; `omnigraph load --data DIR` reads
them. The schema is `examples/knowledge-base/schema.pg`.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

PEOPLE: Final = 16_000
TEAMS: Final = 400
DOCUMENTS: Final = 76_000
DECISIONS: Final = 12_000
DIMENSIONS: Final = 16
BODY_WORDS: Final = 24
SEED: Final = 20_260_501


def words(text: str) -> list[str]:
    """The words of a text."""
    return text.split()


FIRST: Final = words("""
Ada Ben Cyd Dov Eva Finn Gia Hugo Ines Jon Kira Liv Mila Nils Ola Pia Quin Rosa Sven Tara Udo Vera Wim
Xenia Yara Zeno Amal Bela Cora Dario Elif Femi Goran Hana Ivo Jana Kofi Lena Milo Nora Omar Petra Rafi
Sara Timo Uma Vito Wanda Yuki
""")
LAST: Final = words("""
Lune Alder Park Moss Reed Stone Vale Brook Field Marsh Hale Frost Lake Thorn Birch Ridge Dale Wolf Hart
Grove Quay Shore Cole Finch Gale Holt Knox Lark Mead Nash Orr Pike Rowe Sands Tate Ward York Ames Bell
Crane Dunn Ellis Firth Glen Hayes Irwin Jarvis Kemp Lowe
""")
ROLES: Final = ("engineer", "designer", "analyst", "manager")
AREAS: Final = ("product", "platform", "research", "operations")
SUBJECTS: Final = words("""
tides harbours cargo pricing routing weather customs berths fuel crews insurance contracts pilots
dredging billing search storage alerts onboarding hiring audits privacy backups latency
""")
ASPECTS: Final = words("""
safety cost speed quality forecasts planning tooling reporting standards training
""")
COMMON: Final = words("""
team plan review result change week month measure target question answer reason risk option owner draft
table chart note list scope limit order value trend share model test case data source check step goal
delay gain loss season north south early late small large first second next
""")
VERBS: Final = words("""
Choosing Measuring Rethinking Comparing Explaining Testing Simplifying Defending
""")
TOPICS: Final = len(SUBJECTS) * len(ASPECTS)

Lines = Any
"""An Arrow array of strings, each a line."""


def joined(*parts: Any) -> Any:
    """One string per row: the parts one after the other, constants repeated."""
    return pc.binary_join_element_wise(*parts, "")


def text(values: Any) -> Any:
    return pa.array(values).cast(pa.string())


def quoted(values: Any) -> Any:
    """Strings as JSON; nothing here needs an escape."""
    return joined('"', values, '"')


def at(values: list[str] | tuple[str, ...], index: Any) -> Any:
    """The values at these places."""
    return pa.array(values).take(pa.array(index))


def numbered(prefix: str, count: int) -> Any:
    """`prefix-00001` and so on: the order of ids is the order of numbers."""
    return joined(f"{prefix}-", pc.utf8_lpad(text(np.arange(1, count + 1)), 5, "0"))


def days(values: Any) -> Any:
    """Days after the first of January 2019, as JSON."""
    return quoted(text(np.datetime64("2019-01-01") + values.astype("timedelta64[D]")))


def skewed(random: Any, many: int, size: int) -> Any:
    """Places below `many`, the small ones far more often: a few authors and documents are famous."""
    return (many * random.random(size) ** 2).astype(np.int64)


def distinct(left: Any, right: Any) -> tuple[Any, Any]:
    """The distinct pairs."""
    both = np.unique(np.stack([left, right], axis=1), axis=0)
    return both[:, 0], both[:, 1]


def members(values: dict[str, Any]) -> list[Any]:
    parts: list[Any] = []
    for number, (name, column) in enumerate(values.items()):
        parts += [f'{"," if number else ""}"{name}":', column]
    return parts


def nodes(name: str, /, **values: Any) -> Lines:
    """Records of a node type; the values are JSON."""
    return joined(f'{{"type":"{name}","data":{{', *members(values), "}}\n")


def edges(name: str, source: Any, target: Any, /, **values: Any) -> Lines:
    """Records of an edge type between these ids; the values are JSON."""
    data = [',"data":{', *members(values), "}"] if values else []
    return joined(f'{{"edge":"{name}","from":"', source, '","to":"', target, '"', *data, "}\n")


def people_and_teams(random: Any, people: Any, teams: Any) -> Iterator[Lines]:
    first, last = random.integers(len(FIRST), size=PEOPLE), random.integers(len(LAST), size=PEOPLE)
    names = joined(at(FIRST, first), " ", at(LAST, last))
    # A manager has a smaller number than those who report to them, so nobody manages themselves.
    managers = np.arange(1, PEOPLE) // 9
    role = np.where(np.arange(PEOPLE) <= managers[-1], 3, random.integers(3, size=PEOPLE))
    yield nodes(
        "Person",
        handle=quoted(people),
        name=quoted(names),
        email=joined('"', people, '@example.org"'),
        role=quoted(at(ROLES, role)),
        joined=days(random.integers(2_600, size=PEOPLE)),
    )
    subject, area = random.integers(len(SUBJECTS), size=TEAMS), random.integers(len(AREAS), size=TEAMS)
    numbers = text(np.arange(1, TEAMS + 1))
    yield nodes(
        "Team",
        code=quoted(teams),
        name=joined('"', pc.utf8_capitalize(at(SUBJECTS, subject)), " ", numbers, '"'),
        area=quoted(at(AREAS, area)),
    )
    person, team = distinct(
        np.concatenate([np.arange(PEOPLE), random.integers(PEOPLE, size=PEOPLE // 4)]),
        random.integers(TEAMS, size=PEOPLE + PEOPLE // 4),
    )
    yield edges("MemberOf", people.take(pa.array(person)), teams.take(pa.array(team)))
    yield edges("ReportsTo", people[1:], people.take(pa.array(managers)))


def documents(random: Any, slugs: Any, topics: Any) -> Iterator[Lines]:
    """Topics, and documents whose words and whose place among the topics go together."""
    yield nodes("Topic", name=quoted(topics))
    main = skewed(random, TOPICS, DOCUMENTS)
    subject, aspect = main // len(ASPECTS), main % len(ASPECTS)
    title = joined(
        at(VERBS, random.integers(len(VERBS), size=DOCUMENTS)),
        " the ",
        at(ASPECTS, aspect),
        " of ",
        at(SUBJECTS, subject),
    )
    vocabulary = [*SUBJECTS, *ASPECTS, *COMMON]
    chosen = random.integers(len(SUBJECTS) + len(ASPECTS), len(vocabulary), size=(DOCUMENTS, BODY_WORDS))
    chosen[:, ::6] = subject[:, None]
    chosen[:, 2::8] = len(SUBJECTS) + aspect[:, None]
    body = at(vocabulary, chosen.ravel())
    ends = pa.array(np.arange(0, chosen.size + 1, BODY_WORDS, dtype=np.int32))
    centres = random.normal(size=(TOPICS, DIMENSIONS))
    near = centres[main] + random.normal(scale=0.35, size=(DOCUMENTS, DIMENSIONS))
    near /= np.linalg.norm(near, axis=1, keepdims=True)
    numbers = text(np.round(near.ravel(), 4))
    vector_ends = pa.array(np.arange(0, near.size + 1, DIMENSIONS, dtype=np.int32))
    status = random.choice(3, p=[0.15, 0.1, 0.75], size=DOCUMENTS)
    moment = np.datetime64("2021-01-01T08:00") + random.integers(2_600_000, size=DOCUMENTS).astype(
        "timedelta64[m]"
    )
    yield nodes(
        "Document",
        slug=quoted(slugs),
        title=quoted(title),
        body=quoted(pc.binary_join(pa.ListArray.from_arrays(ends, body), " ")),
        status=quoted(at(("draft", "review", "published"), status)),
        words=text(random.integers(80, 4_000, size=DOCUMENTS)),
        updated=quoted(pc.strftime(pa.array(moment.astype("datetime64[s]")), "%Y-%m-%dT%H:%M:%SZ")),
        meaning=joined("[", pc.binary_join(pa.ListArray.from_arrays(vector_ends, numbers), ","), "]"),
    )
    other = random.integers(TOPICS, size=DOCUMENTS)
    document, topic = distinct(np.tile(np.arange(DOCUMENTS), 2), np.concatenate([main, other]))
    yield edges("About", slugs.take(pa.array(document)), topics.take(pa.array(topic)))


def writing(random: Any, people: Any, slugs: Any) -> Iterator[Lines]:
    """Who wrote, cited and reviewed what."""
    extra = random.integers(DOCUMENTS, size=DOCUMENTS // 3)
    document, author = distinct(
        np.concatenate([np.arange(DOCUMENTS), extra]), skewed(random, PEOPLE, DOCUMENTS + len(extra))
    )
    share = text(np.round(random.random(len(document)), 2))
    yield edges("Wrote", people.take(pa.array(author)), slugs.take(pa.array(document)), share=share)
    citing = random.integers(1, DOCUMENTS, size=110_000)
    cited = (citing * random.random(len(citing)) ** 2).astype(np.int64)
    citing, cited = distinct(citing, cited)
    yield edges("Cites", slugs.take(pa.array(citing)), slugs.take(pa.array(cited)))
    reviewed = np.repeat(np.flatnonzero(random.random(DOCUMENTS) < 0.3), 2)
    reviewed, reviewer = distinct(reviewed, random.integers(PEOPLE, size=len(reviewed)))
    on = days(random.integers(2_600, size=len(reviewed)))
    yield edges("ReviewedBy", slugs.take(pa.array(reviewed)), people.take(pa.array(reviewer)), on=on)


def deciding(random: Any, teams: Any, slugs: Any) -> Iterator[Lines]:
    """What teams decided, and on what grounds."""
    codes = numbered("decision", DECISIONS)
    subject = random.integers(len(SUBJECTS), size=DECISIONS)
    aspect = random.integers(len(ASPECTS), size=DECISIONS)
    status = random.choice(3, p=[0.2, 0.65, 0.15], size=DECISIONS)
    yield nodes(
        "Decision",
        code=quoted(codes),
        title=joined('"One way for ', at(ASPECTS, aspect), " in ", at(SUBJECTS, subject), '"'),
        status=quoted(at(("proposed", "accepted", "superseded"), status)),
        decided=days(random.integers(2_600, size=DECISIONS)),
    )
    yield edges("Took", teams.take(pa.array(random.integers(TEAMS, size=DECISIONS))), codes)
    decision, ground = distinct(
        np.repeat(np.arange(DECISIONS), 3), random.integers(DOCUMENTS, size=3 * DECISIONS)
    )
    weight = text(np.round(random.random(len(decision)), 2))
    yield edges("BasedOn", codes.take(pa.array(decision)), slugs.take(pa.array(ground)), weight=weight)


def records() -> Iterator[Lines]:
    """Every record of the company, a type at a time."""
    random = np.random.default_rng(SEED)
    people, teams = numbered("person", PEOPLE), numbered("team", TEAMS)
    slugs = numbered("doc", DOCUMENTS)
    topics = pa.array([f"{subject} {aspect}" for subject in SUBJECTS for aspect in ASPECTS])
    yield from people_and_teams(random, people, teams)
    yield from documents(random, slugs, topics)
    yield from writing(random, people, slugs)
    yield from deciding(random, teams, slugs)


def write(place: Path) -> tuple[int, int, int]:
    """Write one file per type; returns the numbers of nodes, edges and bytes."""
    place.mkdir(parents=True, exist_ok=True)
    counts = {"type": 0, "edge": 0}
    written = 0
    for lines in records():
        kind, name = lines[0].as_py().split('"', 4)[1:4:2]
        _, offsets, data = lines.buffers()
        ends = np.frombuffer(offsets, np.int32)
        content = memoryview(data)[ends[lines.offset] : ends[lines.offset + len(lines)]]
        (place / f"{name}.jsonl").write_bytes(content)
        counts[kind] += len(lines)
        written += len(content)
    return counts["type"], counts["edge"], written


if __name__ == "__main__":
    print("{:,} nodes, {:,} edges, {:,} bytes".format(*write(Path(sys.argv[1]))))
