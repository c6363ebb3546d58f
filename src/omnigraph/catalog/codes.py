"""The stable codes of schema findings and of refused schema changes."""

from enum import StrEnum
from types import MappingProxyType
from typing import Final

from omnigraph.core.late_dataclass import dataclass


class Code(StrEnum):
    """A rule of the schema language. The first digit is the stage that finds it."""

    SYNTAX = "P000"

    RESERVED_NAME = "P101"
    DUPLICATE_PROPERTY = "P102"
    BAD_VECTOR = "P103"
    BAD_ENUM = "P104"
    BAD_LIST = "P105"
    BAD_CARDINALITY = "P106"
    BAD_KEY = "P107"
    BAD_UNIQUE = "P108"
    BAD_INDEX = "P109"
    BAD_RANGE = "P110"
    BAD_CHECK = "P111"
    UNKNOWN_PROPERTY = "P112"
    NOT_ON_EDGE = "P113"
    MISPLACED_ANNOTATION = "P114"
    REPEATED_ANNOTATION = "P115"
    BAD_ANNOTATION = "P116"
    BAD_EMBED = "P117"
    BAD_DEFAULT = "P118"
    UNKNOWN_INTERFACE = "P119"
    INTERFACE_TYPE_DIFFERS = "P120"

    DUPLICATE_TYPE = "P201"
    EDGE_CASE_COLLISION = "P202"
    UNKNOWN_ENDPOINT = "P203"
    INTERFACES_DIFFER = "P204"

    RENAME_UNKNOWN = "P301"
    RENAME_CLAIMED = "P302"
    RENAME_OTHER_OWNER = "P303"

    UNKNOWN_ANNOTATION = "P901"
    ANNOTATION_WITHOUT_EFFECT = "P902"
    RENAME_IGNORED = "P903"
    RENAME_STALE = "P904"


CODE_MEANINGS: Final = MappingProxyType(
    {
        Code.SYNTAX: "the text does not follow the grammar",
        Code.RESERVED_NAME: "the property name is taken by the system",
        Code.DUPLICATE_PROPERTY: "a property is declared twice in one body",
        Code.BAD_VECTOR: "the dimension of a vector is out of range",
        Code.BAD_ENUM: "an enum value is listed twice",
        Code.BAD_LIST: "the element type cannot be in a list",
        Code.BAD_CARDINALITY: "@card bounds are out of range or in the wrong order",
        Code.BAD_KEY: "@key is declared twice or on a property that cannot be a key",
        Code.BAD_UNIQUE: "@unique names a property that cannot be compared",
        Code.BAD_INDEX: "@index names a property that cannot be indexed",
        Code.BAD_RANGE: "@range has wrong bounds or names a property that is not one number",
        Code.BAD_CHECK: "@check has an invalid pattern or names a property that is not one String",
        Code.UNKNOWN_PROPERTY: "a constraint names a property the type does not have",
        Code.NOT_ON_EDGE: "the constraint or annotation is not allowed on an edge",
        Code.MISPLACED_ANNOTATION: "the annotation is not allowed in this place",
        Code.REPEATED_ANNOTATION: "the annotation may be written once",
        Code.BAD_ANNOTATION: "the arguments of the annotation are wrong",
        Code.BAD_EMBED: "@embed is on the wrong property or names the wrong source",
        Code.BAD_DEFAULT: "the value of @default does not fit the property",
        Code.UNKNOWN_INTERFACE: "a node implements an interface that does not exist",
        Code.INTERFACE_TYPE_DIFFERS: "a property differs in type from the interface that demands it",
        Code.DUPLICATE_TYPE: "a type is declared twice",
        Code.EDGE_CASE_COLLISION: "two edge names differ only by case",
        Code.UNKNOWN_ENDPOINT: "an edge names a node type that does not exist",
        Code.INTERFACES_DIFFER: "two interfaces contribute one property in different forms",
        Code.RENAME_UNKNOWN: "@rename_from names nothing in the accepted schema",
        Code.RENAME_CLAIMED: "two declarations claim one old name",
        Code.RENAME_OTHER_OWNER: "@rename_from names something of another kind or owner",
        Code.UNKNOWN_ANNOTATION: "the annotation is not known and has no effect",
        Code.ANNOTATION_WITHOUT_EFFECT: "the annotation has no effect in this place",
        Code.RENAME_IGNORED: "@rename_from is ignored: both names exist in the accepted schema",
        Code.RENAME_STALE: "@rename_from is ignored: the rename was already applied",
    }
)


class Tier(StrEnum):
    """What a schema change needs: nothing, a pass over the rows, or consent."""

    SAFE = "safe"
    VALIDATED = "validated"
    DESTRUCTIVE = "destructive"


@dataclass(frozen=True, slots=True)
class LintCode:
    """One `OG-` code of the planner. `emitted` is false for codes that are reserved."""

    code: str
    tier: Tier
    meaning: str
    emitted: bool


ADD_REQUIRED_PROPERTY: Final = "OG-MF-103"
NULLABLE_TO_REQUIRED: Final = "OG-MF-104"
CHANGE_PROPERTY_TYPE: Final = "OG-MF-106"

LINT_CODES: Final = MappingProxyType(
    {
        entry.code: entry
        for entry in (
            LintCode("OG-DS-101", Tier.DESTRUCTIVE, "a whole graph would be dropped", emitted=False),
            LintCode(
                "OG-DS-102", Tier.DESTRUCTIVE, "a node type holding rows would be dropped", emitted=False
            ),
            LintCode(
                "OG-DS-103", Tier.DESTRUCTIVE, "an edge type holding rows would be dropped", emitted=False
            ),
            LintCode(
                "OG-DS-104",
                Tier.DESTRUCTIVE,
                "a property of a type holding rows would be dropped",
                emitted=False,
            ),
            LintCode(
                "OG-DS-105",
                Tier.DESTRUCTIVE,
                "a vector property holding values would be dropped",
                emitted=False,
            ),
            LintCode(
                ADD_REQUIRED_PROPERTY, Tier.VALIDATED, "add required property without default", emitted=True
            ),
            LintCode(
                NULLABLE_TO_REQUIRED, Tier.VALIDATED, "nullable to required, and rows are null", emitted=True
            ),
            LintCode(CHANGE_PROPERTY_TYPE, Tier.DESTRUCTIVE, "any other property type change", emitted=True),
        )
    }
)
