"""Property types of the schema language and their Arrow form.

The only place that maps a property type to Arrow. pyarrow is imported inside the functions that need it,
so that linting a schema does not load it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

from omnigraph.core.late_dataclass import dataclass

if TYPE_CHECKING:
    import pyarrow as pa


class ScalarKind(StrEnum):
    """The scalar types; the value is the spelling in a schema."""

    STRING = "String"
    BOOL = "Bool"
    I32 = "I32"
    I64 = "I64"
    U32 = "U32"
    U64 = "U64"
    F32 = "F32"
    F64 = "F64"
    DATE = "Date"
    DATETIME = "DateTime"
    BLOB = "Blob"


INTEGER_KINDS: Final = frozenset({ScalarKind.I32, ScalarKind.I64, ScalarKind.U32, ScalarKind.U64})
FLOAT_KINDS: Final = frozenset({ScalarKind.F32, ScalarKind.F64})
NUMERIC_KINDS: Final = INTEGER_KINDS | FLOAT_KINDS

INTEGER_BOUNDS: Final[dict[ScalarKind, tuple[int, int]]] = {
    ScalarKind.I32: (-(2**31), 2**31 - 1),
    ScalarKind.I64: (-(2**63), 2**63 - 1),
    ScalarKind.U32: (0, 2**32 - 1),
    ScalarKind.U64: (0, 2**64 - 1),
}

VECTOR_DIM_MAX: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class PropertyType:
    """The type of a property without its nullability.

    `kind` is the element kind of a list, STRING for an enum and F32 for a vector. At most one of `is_list`,
    `vector_dim` and `enum_values` is set. `enum_values` is sorted.
    """

    kind: ScalarKind
    is_list: bool = False
    vector_dim: int | None = None
    enum_values: tuple[str, ...] | None = None

    @property
    def is_vector(self) -> bool:
        """True for `Vector(n)`."""
        return self.vector_dim is not None

    @property
    def is_enum(self) -> bool:
        """True for `enum(…)`."""
        return self.enum_values is not None

    @property
    def is_blob(self) -> bool:
        """True for `Blob`."""
        return self.kind is ScalarKind.BLOB

    @property
    def is_scalar(self) -> bool:
        """True when a value is one scalar: not a list, not a vector. A blob counts as a scalar."""
        return not self.is_list and self.vector_dim is None

    @property
    def is_numeric(self) -> bool:
        """True for one integer or float; false for lists and vectors of them."""
        return self.is_scalar and self.kind in NUMERIC_KINDS

    @property
    def is_string(self) -> bool:
        """True for one `String` or enum value."""
        return self.is_scalar and self.kind is ScalarKind.STRING

    @property
    def is_free_text(self) -> bool:
        """True for `String` that is not an enum."""
        return self.is_string and self.enum_values is None

    @property
    def has_canonical_text(self) -> bool:
        """True when a value can be part of a key or of a uniqueness tuple."""
        return self.is_scalar and not self.is_blob

    def text(self, *, nullable: bool = False) -> str:
        """The spelling in a schema, in canonical form."""
        mark = "?" if nullable else ""
        if self.enum_values is not None:
            return f"enum({', '.join(self.enum_values)}){mark}"
        if self.vector_dim is not None:
            return f"Vector({self.vector_dim}){mark}"
        if self.is_list:
            return f"[{self.kind.value}]{mark}"
        return f"{self.kind.value}{mark}"


def _arrow_scalar(kind: ScalarKind) -> pa.DataType:
    import pyarrow as pa  # noqa: PLC0415 - loaded only when a table is touched

    match kind:
        case ScalarKind.STRING:
            return pa.string()
        case ScalarKind.BOOL:
            return pa.bool_()
        case ScalarKind.I32:
            return pa.int32()
        case ScalarKind.I64:
            return pa.int64()
        case ScalarKind.U32:
            return pa.uint32()
        case ScalarKind.U64:
            return pa.uint64()
        case ScalarKind.F32:
            return pa.float32()
        case ScalarKind.F64:
            return pa.float64()
        case ScalarKind.DATE:
            return pa.date32()
        case ScalarKind.DATETIME:
            return pa.timestamp("ms", tz="UTC")
        case ScalarKind.BLOB:
            return pa.large_binary()


def arrow_type(type_: PropertyType) -> pa.DataType:
    """The Arrow type of storage and results. A list or vector child is named `item` and is nullable."""
    import pyarrow as pa  # noqa: PLC0415

    if type_.vector_dim is not None:
        return pa.list_(pa.field("item", pa.float32(), nullable=True), type_.vector_dim)
    scalar = _arrow_scalar(type_.kind)
    if type_.is_list:
        return pa.list_(pa.field("item", scalar, nullable=True))
    return scalar


class IndexKind(StrEnum):
    """The physical index a column gets."""

    BTREE = "btree"
    INVERTED = "inverted"
    VECTOR = "vector"


def node_prop_index_kind(type_: PropertyType) -> IndexKind | None:
    """Which index a declared `@index` or `@key` builds on a column of this type; None when there is none.

    The builder and the "is there work" check both call this.
    """
    if type_.is_vector:
        return IndexKind.VECTOR
    if type_.is_list or type_.is_blob:
        return None
    if type_.is_free_text:
        return IndexKind.INVERTED
    return IndexKind.BTREE
