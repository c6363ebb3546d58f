"""A schema as the chains of random changes know it: types and properties are numbers, names are passing."""

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Prop:
    """One property as the schema has it now. `number` is what it is, whatever it is called."""

    number: int
    name: str
    kind: str = "I32"
    required: bool = False
    indexed: bool = False
    most: int | None = None
    """The greatest value that may be written."""
    formerly: str | None = None

    @property
    def text(self) -> str:
        hint = f' @rename_from("{self.formerly}")' if self.formerly else ""
        index = " @index" if self.indexed else ""
        bound = "" if self.most is None else f"  @range({self.name}, ..{self.most})"
        return f"{self.name}: {self.kind}{'' if self.required else '?'}{index}{hint}{bound}"


@dataclass(frozen=True)
class Type:
    """One node type with its key `code` and some properties, and perhaps edges of each row to itself."""

    number: int
    name: str
    props: tuple[Prop, ...] = ()
    formerly: str | None = None
    edge: str | None = None
    edge_formerly: str | None = None

    @property
    def text(self) -> str:
        hint = f' @rename_from("{self.formerly}")' if self.formerly else ""
        props = "  ".join(each.text for each in self.props)
        return f"node {self.name}{hint} {{ code: String @key  {props} }}\n{self.edge_text}"

    @property
    def edge_text(self) -> str:
        hint = f' @rename_from("{self.edge_formerly}")' if self.edge_formerly else ""
        return f"edge {self.edge}: {self.name} -> {self.name}{hint}\n" if self.edge else ""

    def settled(self) -> "Type":
        """Without the hints of one change."""
        props = tuple(replace(each, formerly=None) for each in self.props)
        return replace(self, formerly=None, edge_formerly=None, props=props)


Schema = tuple[Type, ...]
Rows = dict[tuple[int, str], dict[int, int]]
"""By the number of the type and the code: the values that are there, by the number of their property."""

FIRST = Type(1, "T", edge="Link")


def text_of(schema: Schema) -> str:
    return "".join(each.text for each in schema)


def known_part(schema: Schema, key: tuple[int, str], row: dict[int, int]) -> dict[int, int] | None:
    """What a schema shows of a row; None when its type is gone."""
    for owner in schema:
        if owner.number == key[0]:
            known = {each.number for each in owner.props}
            return {number: value for number, value in row.items() if number in known}
    return None


def fits(schema: Schema, rows: Rows) -> bool:
    """Whether the rows keep every rule of the schema."""
    props = {owner.number: owner.props for owner in schema}
    return all(
        (not prop.required or prop.number in row)
        and (prop.most is None or row.get(prop.number, 0) <= prop.most)
        for key, row in rows.items()
        for prop in props[key[0]]
    )
