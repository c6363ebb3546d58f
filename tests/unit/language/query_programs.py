"""Generated query texts: well-formed programs as lists of tokens, their spelling, and near misses."""

from hypothesis import strategies as st

SCALARS = ["String", "Bool", "I32", "I64", "U32", "U64", "F32", "F64", "Date", "DateTime", "Blob"]
PLAIN = ["a", "b", "name_1", "_x", "camelCase", "trueish"]
WORDS = [
    "match",
    "return",
    "not",
    "maybe",
    "is",
    "null",
    "distinct",
    "offset",
    "as",
    "count",
    "now",
    "from",
    "contains",
]
TYPES = ["Person", "T1", "X_y", "String", "Vector"]
VARIABLES = ["$a", "$b", "$_", "$x1", "$match"]
COMPARISONS = ["=", "!=", "<", "<=", ">", ">=", "contains", "starts_with", "ends_with"]
INTEGERS = ["0", "7", "007", "9223372036854775807"]
DECIMALS = ["1.5", "0.0", "12345678901234567890.25"]
PIECES = ['\\"', "\\\\", "\\n", "a", " ", "é", "//", "/*", "\n", "{", "}", "$", "%"]
GAPS = [
    " ",
    " ",
    " ",
    "\n",
    "\n\n",
    "\n\n\n",
    "\t",
    " // note\n",
    " /* c */ ",
    "\n// own\n",
    "\n/* m\n c */\n",
]


class Writer:
    """Writes one program; every method gives tokens of the rule it is named for."""

    def __init__(self, draw):
        self.draw = draw

    def pick(self, options):
        return self.draw(st.sampled_from(options))

    def flag(self):
        return self.draw(st.booleans())

    def times(self, rule, most=3):
        return [token for _ in range(self.draw(st.integers(1, most))) for token in rule()]

    def listed(self, rule, most=3):
        tokens = rule()
        for _ in range(self.draw(st.integers(0, most - 1))):
            tokens += [",", *rule()]
        return tokens

    def maybe(self, rule):
        return rule() if self.flag() else []

    def name(self):
        return self.pick(PLAIN + WORDS)

    def string(self):
        return '"' + "".join(self.draw(st.lists(st.sampled_from(PIECES), max_size=4))) + '"'

    def plain_literal(self):
        match self.draw(st.integers(0, 4)):
            case 0:
                return [self.string()]
            case 1:
                return [self.pick(INTEGERS + DECIMALS)]
            case 2:
                return ["-", self.pick(INTEGERS + DECIMALS)]
            case 3:
                return [self.pick(["true", "false", "null"])]
            case _:
                return [self.pick(["date", "datetime"]), "(", self.string(), ")"]

    def literal(self):
        if self.draw(st.integers(0, 4)):
            return self.plain_literal()
        return ["[", *self.maybe(lambda: self.listed(self.plain_literal)), "]"]

    def atom(self):
        match self.draw(st.integers(0, 2)):
            case 0:
                return [self.pick(VARIABLES)]
            case 1:
                return ["now", "(", ")"]
            case _:
                return self.literal()

    def access(self):
        return [self.pick(VARIABLES), ".", self.name()]

    def simple(self):
        match self.draw(st.integers(0, 3)):
            case 0:
                return self.access()
            case 1:
                return [self.pick(PLAIN)]
            case _:
                return self.atom()

    def ranked(self):
        if self.flag():
            return self.nearest()
        return ["bm25", "(", *self.simple(), ",", *self.simple(), ")"]

    def nearest(self):
        return ["nearest", "(", *self.access(), ",", *self.simple(), ")"]

    def search(self):
        word = self.pick(["search", "match_text", "fuzzy"])
        third = [",", *self.simple()] if word == "fuzzy" and self.flag() else []
        return [word, "(", *self.simple(), ",", *self.simple(), *third, ")"]

    def expr(self):
        match self.draw(st.integers(0, 7)):
            case 7:
                return self.arithmetic()
            case 0:
                function = self.pick(["count", "sum", "avg", "min", "max"])
                apart = self.maybe(lambda: ["distinct"]) if function == "count" else []
                return [function, "(", *apart, *self.simple(), ")"]
            case 1:
                return self.search()
            case 2:
                return self.ranked()
            case 3:
                third = self.maybe(lambda: [",", *self.simple()])
                return ["rrf", "(", *self.ranked(), ",", *self.ranked(), *third, ")"]
            case _:
                return self.simple()

    def arithmetic(self):
        one, other = self.pick("+-*/"), self.pick("+-*/")
        if self.flag():
            return [*self.access(), one, "(", *self.simple(), other, *self.simple(), ")"]
        return [*self.access(), one, *self.simple(), other, *self.simple()]

    def null_test(self):
        return ["is", *self.maybe(lambda: ["not"]), "null"]

    def binding(self):
        def matches():
            listed = self.listed(lambda: [self.name(), ":", *self.atom()])
            return ["{", *listed, *self.maybe(lambda: [","]), "}"]

        return [self.pick(VARIABLES), ":", self.pick(TYPES), *self.maybe(matches)]

    def traversal(self):
        edge = self.name()
        number = lambda: [self.pick(["0", "1", "2", "9"])]  # noqa: E731
        return [
            self.pick(VARIABLES),
            *self.maybe(lambda: [self.pick(VARIABLES), ":"]),
            *(["<", edge, ">"] if self.flag() else [edge]),
            *self.maybe(lambda: ["{", *number(), ",", *self.maybe(number), "}"]),
            self.pick(VARIABLES),
        ]

    def filter(self):
        # A variable before a word is always read as a traversal, so other operands come first.
        match self.draw(st.integers(0, 3)):
            case 0:
                return [*self.access(), *self.null_test()]
            case 1:
                return [self.pick(VARIABLES), *self.null_test()]
            case 2 if self.flag():
                word = self.pick(["contains", "starts_with", "ends_with"])
                return [self.pick(VARIABLES), word, *(self.access() if self.flag() else self.literal())]
            case 2:
                return [self.pick(VARIABLES), self.pick(["=", "!=", ">", ">="]), *self.expr()]
            case _:
                left = self.access() if self.flag() else self.literal()
                if left[0] == "-":
                    left = ["(", *left, ")"]
                return [*left, self.pick(COMPARISONS), *self.expr()]

    def condition_clause(self):
        if self.draw(st.integers(0, 2)):
            return self.filter()
        rest = self.filter() if self.flag() else ["(", *self.filter(), "or", *self.filter(), ")"]
        return [*self.filter(), self.pick(["or", "and"]), *rest]

    def clause(self, depth=0):
        match self.draw(st.integers(0, 4 if depth < 2 else 3)):
            case 0:
                return self.binding()
            case 1:
                return self.traversal()
            case 2:
                return self.condition_clause()
            case 3:
                return self.search()
            case _:
                inner = self.times(lambda: self.clause(depth + 1))
                return [self.pick(["not", "maybe"]), "{", *inner, "}"]

    def projection(self):
        if not self.draw(st.integers(0, 5)):
            return [self.pick(VARIABLES), ".", "*", ","]
        return [*self.expr(), *self.maybe(lambda: ["as", self.name()]), ","]

    def order_item(self):
        if not self.draw(st.integers(0, 3)):
            return self.nearest()
        return [*self.simple(), *self.maybe(lambda: [self.pick(["asc", "desc"])])]

    def read(self):
        return [
            *("match", "{", *self.times(self.clause), "}"),
            *("return", *self.maybe(lambda: ["distinct"]), "{", *self.times(self.projection), "}"),
            *self.maybe(lambda: ["having", "{", *self.times(self.condition_clause), "}"]),
            *self.maybe(lambda: ["order", "{", *self.listed(self.order_item), "}"]),
            *self.maybe(lambda: ["limit", self.pick(INTEGERS + VARIABLES)]),
            *self.maybe(lambda: ["offset", self.pick(INTEGERS + VARIABLES)]),
        ]

    def test(self):
        if self.flag():
            return [self.name(), *self.null_test()]
        return [self.name(), self.pick(COMPARISONS), *self.atom()]

    def condition(self, depth=0):
        match self.draw(st.integers(0, 5 if depth < 3 else 0)):
            case 1:
                return ["not", "(", *self.condition(depth + 1), ")"]
            case 2:
                return ["not", *self.test()]
            case 3:
                return ["(", *self.condition(depth + 1), ")", "and", *self.test()]
            case 4:
                return [*self.test(), "or", "(", *self.condition(depth + 1), ")", "and", *self.test()]
            case 5:
                return [*self.test(), self.pick(["and", "or"]), *self.condition(depth + 1)]
            case _:
                return self.test()

    def assigns(self):
        return self.times(lambda: [self.name(), ":", *self.atom(), *self.maybe(lambda: [","])])

    def statement(self):
        type_name = self.pick(TYPES)
        match self.draw(st.integers(0, 2)):
            case 0:
                return ["insert", *self.maybe(lambda: ["new"]), type_name, "{", *self.assigns(), "}"]
            case 1:
                return ["update", type_name, "set", "{", *self.assigns(), "}", "where", *self.condition()]
            case _:
                return ["delete", type_name, "where", *self.condition()]

    def param(self):
        match self.draw(st.integers(0, 2)):
            case 0:
                type_ = ["[", self.pick(SCALARS), "]"]
            case 1:
                type_ = ["Vector", "(", self.pick(["1", "4096"]), ")"]
            case _:
                type_ = [self.pick(SCALARS)]
        return [self.pick(VARIABLES), ":", *type_, *self.maybe(lambda: ["?"])]

    def query(self):
        words = self.pick([[], [], ["description"], ["instruction", "description"]])
        metas = [token for word in words for token in ("@", word, "(", self.string(), ")")]
        params = self.maybe(lambda: self.listed(self.param))
        body = self.read() if self.flag() else self.times(self.statement)
        return ["query", self.name(), "(", *params, ")", *metas, "{", *body, "}"]


@st.composite
def programs(draw, most=3):
    """A well-formed program, as a token list."""
    writer = Writer(draw)
    return [token for _ in range(draw(st.integers(0, most))) for token in writer.query()]


@st.composite
def spelled(draw):
    """A well-formed program with odd spacing and comments."""
    words = draw(programs(most=2))
    text = draw(st.sampled_from(GAPS))
    return text + "".join(word + draw(st.sampled_from(GAPS)) for word in words)


@st.composite
def damaged(draw):
    """A program with one token dropped, doubled, exchanged or added."""
    words = Writer(draw).query()
    at = draw(st.integers(0, len(words) - 1))
    other = draw(st.sampled_from([*words, "{", "}", ",", "(", ")", "$a", "x", "T", "1", '"s"', "-"]))
    match draw(st.integers(0, 3)):
        case 0:
            words = words[:at] + words[at + 1 :]
        case 1:
            words = words[: at + 1] + words[at:]
        case 2:
            words = [*words[:at], other, *words[at + 1 :]]
        case _:
            words = [*words[:at], other, *words[at:]]
    return " ".join(words)


SOUP = [
    "query",
    "q",
    "(",
    ")",
    "{",
    "}",
    "match",
    "return",
    "$a",
    "T",
    ":",
    ",",
    "1",
    '"s"',
    "-",
    "not",
    "where",
    "=",
]
soups = st.lists(st.sampled_from(SOUP), max_size=40).map(" ".join)
"""Tokens without any order."""
