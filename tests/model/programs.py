"""Generated graphs and queries over one small schema."""

from hypothesis import strategies as st

from model.reference import ModelGraph

SCHEMA = """
node A { k: String @key  n: I32?  s: String? }
node B { k: String @key  n: I64? }
edge E: A -> A { w: I32? }
edge F: A -> B { w: I32? }
"""

numbers = st.one_of(st.none(), st.integers(-1, 2))
texts = st.sampled_from([None, "x", "xy", "y"])
A_IDS = ["a0", "a1", "a2", "a3"]
B_IDS = ["b0", "b1"]


@st.composite
def graphs(draw) -> ModelGraph:
    a_ids = draw(st.lists(st.sampled_from(A_IDS), unique=True, min_size=1))
    b_ids = draw(st.lists(st.sampled_from(B_IDS), unique=True))
    graph = ModelGraph(
        nodes={
            "A": {k: {"k": k, "n": draw(numbers), "s": draw(texts)} for k in sorted(a_ids)},
            "B": {k: {"k": k, "n": draw(numbers)} for k in sorted(b_ids)},
        },
        edges={"E": [], "F": []},
    )
    for _ in range(draw(st.integers(0, 6))):
        ends = (draw(st.sampled_from(a_ids)), draw(st.sampled_from(a_ids)))
        graph.edges["E"].append((*ends, {"w": draw(numbers)}))
    for _ in range(draw(st.integers(0, 3)) if b_ids else 0):
        ends = (draw(st.sampled_from(a_ids)), draw(st.sampled_from(b_ids)))
        graph.edges["F"].append((*ends, {"w": draw(numbers)}))
    return graph


def _value(item) -> str:
    return "null" if item is None else f'"{item}"' if isinstance(item, str) else str(item)


def _body(row) -> str:
    return ", ".join(f"{name}: {_value(item)}" for name, item in row.items())


def _mutation(lines: list[str]) -> str:
    return "query seed() {\n" + "\n".join(lines) + "\n}"


def _node_lines(graph: ModelGraph) -> list[str]:
    return [f"insert {t} {{ {_body(row)} }}" for t, rows in graph.nodes.items() for row in rows.values()]


def _edge_lines(graph: ModelGraph) -> list[str]:
    return [
        f'insert {t} {{ from: "{a}", to: "{b}", {_body(row)} }}'
        for t, rows in graph.edges.items()
        for a, b, row in rows
    ]


def seed(graph: ModelGraph) -> str:
    """The mutation that makes the graph."""
    return _mutation(_node_lines(graph) + _edge_lines(graph))


def seed_in_parts(graph: ModelGraph) -> list[str]:
    """Mutations that together make the graph: nodes, some edges, the others, and some nodes once more."""
    edges = _edge_lines(graph)
    half = len(edges) // 2
    again = [line for line in _node_lines(graph) if line.startswith("insert A")][::2]
    return [_mutation(lines) for lines in (_node_lines(graph), edges[:half], edges[half:], again) if lines]


literals = st.sampled_from(["-1", "0", "1", "1.5", "2.0", "3000000000"])
computed_with = st.sampled_from(["0", "2", "-1", "1.5", "9223372036854775807"])
operators = st.sampled_from(["=", "!=", "<", "<=", ">", ">="])


class Scope:
    """The variables a generated query has bound so far: name to type."""

    def __init__(self, names: dict[str, str], edges: list[str], counter: list[int]) -> None:
        self.names, self.edges, self.counter = names, edges, counter

    def child(self) -> "Scope":
        return Scope(dict(self.names), list(self.edges), self.counter)

    def fresh(self) -> str:
        self.counter[0] += 1
        return f"v{self.counter[0]}"

    def of(self, kind: str) -> list[str]:
        return [name for name, each in self.names.items() if each == kind]


@st.composite
def filters(draw, scope: Scope) -> str:
    first = draw(plain_filters(scope))
    match draw(st.integers(0, 7)):
        case 0:
            return f"{first} or {draw(plain_filters(scope))}"
        case 1:
            return f"({first} or {draw(plain_filters(scope))}) and {draw(plain_filters(scope))}"
        case _:
            return first


@st.composite
def computations(draw, scope: Scope) -> str:
    """Arithmetic over a number of a variable."""
    name, other = draw(st.sampled_from(sorted(scope.names))), draw(st.sampled_from(sorted(scope.names)))
    one, two = draw(st.sampled_from("+-*/")), draw(st.sampled_from("+-*/"))
    form = draw(st.integers(0, 2))
    if form == 0:
        return f"${name}.n {one} {draw(computed_with)}"
    if form == 1:
        return f"${name}.n {one} ${other}.n {two} {draw(computed_with)}"
    return f"(${name}.n {one} {draw(computed_with)}) {two} ${other}.n"


@st.composite
def plain_filters(draw, scope: Scope) -> str:
    name = draw(st.sampled_from(sorted(scope.names)))
    form = draw(st.integers(0, 6))
    if form == 6:
        return f"{draw(computations(scope))} {draw(operators)} {draw(literals)}"
    if form == 0:
        return f"${name}.n is {draw(st.sampled_from(['', 'not ']))}null"
    if form == 1 and scope.names[name] == "A":
        return f'${name}.s {draw(st.sampled_from(["contains", "starts_with", "ends_with", "=", "<"]))} "x"'
    if form == 2 and scope.edges:
        return f"${draw(st.sampled_from(scope.edges))}.w {draw(operators)} {draw(literals)}"
    if form == 3:
        other, column = draw(st.sampled_from(sorted(scope.names))), draw(st.sampled_from("nnk"))
        return f"${name}.{column} {draw(operators)} ${other}.{column}"
    if form == 4:
        listed = draw(st.sampled_from(['["a0", "b1", "a2"]', "$keys", "$nobody"]))
        return f"{listed} contains ${name}.k"
    return f"${name}.n {draw(operators)} {draw(literals)}"


@st.composite
def traversals(draw, scope: Scope) -> str:
    source = draw(st.sampled_from(scope.of("A") or [""]))
    if not source:
        return draw(filters(scope))
    forward = draw(st.booleans())
    edge = draw(st.sampled_from(["e", "f"]))
    kind = "A" if edge == "e" else "B"
    known = scope.of(kind)
    end = draw(st.sampled_from([*known, "+", "+", "_"]))
    if end == "+":
        end = scope.fresh()
        scope.names[end] = kind
    label, bound = edge, ""
    if edge == "e" and draw(st.booleans()):
        label = "<e>"
    if draw(st.integers(0, 3)) == 0 and end != source:
        bound = scope.fresh()
        scope.edges.append(bound)
        bound = f"${bound}:"
    elif draw(st.integers(0, 2)) == 0:
        low = draw(st.integers(1, 3))
        label += f"{{{low},{low + draw(st.integers(0, 2))}}}"
    if edge == "e" and not forward and end != "_":
        return f"${end} {bound}{label} ${source}"
    return f"${source} {bound}{label} ${end}"


@st.composite
def clauses(draw, scope: Scope, depth: int) -> str:
    form = draw(st.integers(0, 7))
    if form in {0, 1} and depth < 2:
        inner = scope.child()
        if form == 0 and depth == 0 and draw(st.integers(0, 3)) == 0:
            first = f"not {{ {draw(traversals(inner.child()))} }}"
        else:
            first = draw(traversals(inner)) if scope.of("A") and draw(st.booleans()) else draw(filters(inner))
        rest = [draw(clauses(inner, depth + 1)) for _ in range(draw(st.integers(0, 1)))]
        word = "not"
        if form == 1:
            word = "maybe"
            scope.names.update(inner.names)
            scope.edges.extend(e for e in inner.edges if e not in scope.edges)
        return f"{word} {{ {' '.join([first, *rest])} }}"
    if form in {2, 3, 4}:
        return draw(traversals(scope))
    return draw(filters(scope))


@st.composite
def queries(draw) -> str:
    scope = Scope({"a": "A"}, [], [0])
    matches = draw(st.sampled_from(["", "{ n: 1 }", '{ k: "a0" }', '{ s: "x" }']))
    body = [f"$a: A {matches}"]
    if draw(st.integers(0, 3)) == 0:
        scope.names["b"] = "B"
        body.append("$b: B")
    body += [draw(clauses(scope, 0)) for _ in range(draw(st.integers(0, 3)))]
    names = sorted(scope.names)
    tail = ""
    form = draw(st.integers(0, 4))
    if form == 0:
        key, other = draw(st.sampled_from(names)), draw(st.sampled_from(names))
        what = f"${key}.n, count(${other}) as c, sum(${other}.n) as t, max(${other}.n) as m"
        what += draw(
            st.sampled_from(["", f", sum(${other}.n) / count(${other}) as q", f", ${key}.n * c as q"])
        )
        tail = draw(
            st.sampled_from(["", "having { c > 1 } ", "having { c * 2 > m or sum($a.n) is null } "])
        ) + draw(st.sampled_from(["", "order { c desc }", "order { m asc, c desc } limit 2", "limit $most"]))
    elif form == 1:
        counted = draw(st.sampled_from([*names, *scope.edges]))
        apart = draw(st.sampled_from(["", "distinct "]))
        other = draw(st.sampled_from(names))
        what = f"count({apart}${counted}) as c, count(distinct ${other}.n) as d, min(${other}.n) as m"
        if draw(st.booleans()):
            what = f"${draw(st.sampled_from(names))}.n, {what}"
    else:
        shown = [f"${n}{draw(st.sampled_from(['', '', '.*']))}" for n in names]
        what = ", ".join([*shown, *(f"${e}.w" for e in scope.edges)])
        if draw(st.integers(0, 2)) == 0:
            what += f", {draw(computations(scope))} as z"
        ordered = f"order {{ ${draw(st.sampled_from(names))}.n {draw(st.sampled_from(['asc', 'desc']))} }}"
        cuts = ["limit 3", "limit 2 offset 1", "limit $most", "limit $most offset $skipped"]
        tail = draw(st.sampled_from(["", "", ordered, *(f"{ordered} {cut}" for cut in cuts)]))
    distinct = "distinct " if form == 4 and not tail else ""
    text = f"{{ match {{ {' '.join(body)} }} return {distinct}{{ {what} }} {tail} }}"
    declared = ", ".join(f"${name}: {kind}" for name, (kind, _) in PARAMS.items() if f"${name}" in text)
    return f"query q({declared}) {text}"


PARAMS = {
    "keys": ("[String]", ["a0", "b1"]),
    "nobody": ("[String]?", None),
    "most": ("I64", 2),
    "skipped": ("I32", 1),
}
"""The parameters that queries may have: type and value."""


def given(text: str) -> dict:
    """The values of the parameters that a query declares."""
    return {name: value for name, (_, value) in PARAMS.items() if f"${name}:" in text}
