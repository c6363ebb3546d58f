"""Generated schema texts: well-formed programs with odd spacing and comments, and near misses."""

from hypothesis import strategies as st

SCALARS = ["String", "Bool", "I32", "I64", "U32", "U64", "F32", "F64", "Date", "DateTime", "Blob"]
KEYWORDS = [
    "node",
    "edge",
    "interface",
    "implements",
    "enum",
    "key",
    "true",
    "card",
    "a",
    "b",
    "name_1",
    "_x",
    "camelCase",
]

gaps = st.sampled_from(
    [" ", " ", " ", "\n", "\n\n", "\n\n\n", "\t", " // note\n", " /* c */ ", "\n// own\n", "\n/* m\n c */\n"]
)
tight = st.sampled_from(["", "", " ", "\n", " /* in */ ", " // in\n"])
names = st.sampled_from(KEYWORDS)
type_names = st.sampled_from(["A", "B", "Person", "T1", "X_y"])
digits = st.integers(0, 10**12).map(str)
decimals = st.tuples(digits, digits).map(".".join)
strings = st.lists(
    st.sampled_from(['\\"', "\\\\", "\\n", "a", " ", "é", "//", "/*", "\n", "{"]), max_size=6
).map(lambda parts: '"' + "".join(parts) + '"')
enum_values = st.sampled_from(["a", "z-1", "-", "3d-print", "007", "A1", "_"])


@st.composite
def joined(draw, pieces, between=tight):
    out = []
    for at, piece in enumerate(pieces):
        if at:
            out.append(draw(between))
        out.append(draw(piece) if isinstance(piece, st.SearchStrategy) else piece)
    return "".join(out)


def listed(item, max_size=3):
    return st.lists(item, min_size=1, max_size=max_size).flatmap(
        lambda items: joined([part for at, one in enumerate(items) for part in ([","] if at else []) + [one]])
    )


literals = st.one_of(strings, digits, decimals, st.sampled_from(["true", "false"]))
type_exprs = st.one_of(
    st.sampled_from(SCALARS),
    st.sampled_from(SCALARS).flatmap(lambda name: joined(["[", name, "]"])),
    joined(["enum", "(", listed(enum_values), ")"]),
    joined(["Vector", "(", digits, ")"]),
).flatmap(lambda base: st.sampled_from([base, base + "?", base + " ?"]))

keyword_arguments = st.lists(joined([",", names, "=", literals]), max_size=2).flatmap(joined)
custom = st.sampled_from(["mark", "description", "embed", "default", "rename_from", "range", "card"])
annotations = st.one_of(
    st.sampled_from(["@key", "@unique", "@index", "@mine"]),
    joined(["@", "index", "(", names, ":", st.one_of(literals, names), ")"]),
    joined(
        [
            "@",
            st.sampled_from(["mark", "description", "embed", "default"]),
            "(",
            st.one_of(literals, names),
            keyword_arguments,
            ")",
        ]
    ),
)
signed = st.one_of(digits, decimals).flatmap(lambda text: st.sampled_from([text, "-" + text]))
bounds = st.one_of(joined([signed, "..", signed]), joined([signed, ".."]), joined(["..", signed]))
constraints = st.one_of(
    joined(["@", st.sampled_from(["key", "unique", "index"]), "(", listed(names), ")"]),
    joined(["@", "range", "(", names, ",", bounds, ")"]),
    joined(["@", "check", "(", names, ",", strings, ")"]),
)


@st.composite
def spaced(draw, items):
    return "".join(draw(gaps) + item for item in items) + draw(gaps)


def several(item, max_size=3):
    return st.lists(item, max_size=max_size).flatmap(spaced)


properties = st.tuples(joined([names, ":", type_exprs]), several(annotations, 2)).map("".join)
bodies = several(st.one_of(properties, constraints))
interfaces = joined(["interface ", type_names, "{", several(properties), "}"])
implements = st.one_of(st.just(""), listed(type_names).map(lambda text: " implements " + text))
# `@name` in a header: without parentheses, since five of the words are body constraints with them.
headers = several(
    st.one_of(st.sampled_from(["@key", "@mine"]), joined(["@", "description", "(", strings, ")"])), 2
)
nodes = joined(["node ", type_names, headers, implements, "{", bodies, "}"])
cards = st.one_of(st.just(""), joined(["@", "card", "(", digits, "..", st.one_of(digits, st.just("")), ")"]))
edges = joined(
    [
        "edge ",
        type_names,
        ":",
        type_names,
        "->",
        type_names,
        cards,
        headers,
        st.one_of(st.just(""), joined(["{", bodies, "}"])),
    ]
)
schemas = several(st.one_of(interfaces, nodes, edges))

SNIPPETS = [
    *SCALARS,
    *KEYWORDS,
    "{",
    "}",
    "(",
    ")",
    "[",
    "]",
    "@",
    ":",
    "->",
    "..",
    ",",
    "?",
    "=",
    "-",
    '"x"',
    "1",
    "2.5",
    "A",
    "Vector",
    "//c\n",
    "@key",
    "@range(",
    "@card(",
    " ",
    "\n",
    "#",
    "\0",
    "é",
    '"',
    "/*",
]
# Mostly sensible words in a senseless order, and texts with pieces cut out or doubled.
soups = st.lists(st.sampled_from(SNIPPETS), max_size=30).map(" ".join)


@st.composite
def damaged(draw):
    text = draw(schemas)
    start = draw(st.integers(0, len(text)))
    end = draw(st.integers(start, min(len(text), start + 5)))
    return text[:start] + draw(st.sampled_from(["", *SNIPPETS])) + text[end:]
