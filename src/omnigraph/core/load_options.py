"""What a load is asked to do: one spelling of its words, from the command and the Python call to the journal.

Loaded with the command line, so it imports next to nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

from omnigraph.core.errors import BadRequest
from omnigraph.core.ids import Branch, BranchName, CommitId
from omnigraph.core.late_dataclass import dataclass

if TYPE_CHECKING:
    import os


class LoadMode(StrEnum):
    """What a load does with rows that are there already."""

    APPEND = "append"
    MERGE = "merge"
    OVERWRITE = "overwrite"
    PATCH = "patch"

    @property
    def upserts(self) -> bool:
        """Whether an existing id is replaced instead of refused."""
        return self in {LoadMode.MERGE, LoadMode.PATCH}


class OnDuplicate(StrEnum):
    """What a load does with records of one input that mean the same entity."""

    REFUSE = "refuse"
    FIRST = "first"
    LAST = "last"


class SourceFormat(StrEnum):
    """How the bytes of a source are read."""

    JSON_LINES = "jsonl"
    CSV = "csv"
    PARQUET = "parquet"


class ColumnWords(TypedDict, total=False):
    """The form of a file of one type, as a caller says it."""

    delimiter: str | None
    columns: Sequence[str] | None
    nulls: Sequence[str]
    rename: Mapping[str, str] | None
    ignore_extra: bool


@dataclass(frozen=True, slots=True)
class ColumnForm:
    """How the columns of a CSV file are told apart, and what those of any file of one type mean."""

    delimiter: str | None = None
    """None is a tab for `.tsv` and a comma for everything else."""
    names: tuple[str, ...] | None = None
    """The columns of a CSV file without a header."""
    nulls: tuple[str, ...] = ()
    """Cells of a CSV file that mean null, beside the empty one."""
    rename: tuple[tuple[str, str], ...] = ()
    """Names in the file and the properties they mean."""
    ignore_extra: bool = False
    """Whether a column the type does not have is passed over instead of refused."""

    @classmethod
    def of(
        cls,
        *,
        delimiter: str | None = None,
        columns: Sequence[str] | None = None,
        nulls: Sequence[str] = (),
        rename: Mapping[str, str] | None = None,
        ignore_extra: bool = False,
    ) -> "ColumnForm":
        """The form a caller says in words. Raises BadRequest for a delimiter that cannot be one."""
        if delimiter is not None and (len(delimiter) != 1 or delimiter in '"\r\n' or not delimiter.isascii()):
            raise BadRequest(
                f"a delimiter is one ASCII character, not {delimiter!r}",
                hint="no quote and no line break; a tab is written $'\\t' in a shell",
            )
        if isinstance(columns, str) or (columns is not None and not columns):
            raise BadRequest("the columns of a file without a header are a list of names")
        names = None if columns is None else tuple(columns)
        return cls(delimiter, names, tuple(nulls), tuple((rename or {}).items()), ignore_extra)


class EngineName(StrEnum):
    """Who executes a load."""

    SPARK = "spark"
    LOCAL = "local"


Word = TypeVar("Word", bound=StrEnum)


def word(words: type[Word], text: str, what: str) -> Word:
    """One of some words. Raises BadRequest that names them all."""
    try:
        return words(text)
    except ValueError:
        raise BadRequest(f"unknown {what} '{text}'", hint=_known(words)) from None


def _known(words: type[StrEnum]) -> str:
    return f"use one of {', '.join(each.value for each in words)}"


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """What one load does, the same for every attempt and for whoever goes on with it.

    A load that is resumed may leave everything at its default: it is then as the journal says.
    """

    mode: LoadMode | None = None
    """None only where a resumed load leaves it out."""
    branch: Branch = None
    base: str | None = None
    actor: str | None = None
    if_commit: CommitId | None = None
    replace_types: tuple[str, ...] = ()
    """Overwrite: types to replace even when the input has no record of them."""
    rejects: Path | None = None
    max_rejects: int | None = None
    """How many records may be set aside; None for any number."""
    on_duplicate: OnDuplicate | None = None
    """None refuses them, except that in a merge the last record of an id that is no key wins."""
    idempotency_key: str | None = None
    """What the caller calls this load, so that it happens once however often it is sent."""

    @classmethod
    def of(
        cls,
        *,
        mode: str = "",
        branch: Branch = None,
        base: str | None = None,
        actor: str | None = None,
        if_commit: str | None = None,
        replace_types: Sequence[str] = (),
        rejects: "str | os.PathLike[str] | None" = None,
        max_rejects: int | None = None,
        on_duplicate: str | None = None,
        idempotency_key: str | None = None,
    ) -> "LoadOptions":
        """The options a caller says in words. Raises BadRequest for an unknown one."""
        return cls(
            mode=None if not mode else word(LoadMode, mode, "mode"),
            branch=branch,
            base=base,
            actor=actor,
            if_commit=None if if_commit is None else CommitId(if_commit),
            replace_types=tuple(replace_types),
            rejects=None if rejects is None else Path(rejects),
            max_rejects=max_rejects,
            on_duplicate=None if on_duplicate is None else word(OnDuplicate, on_duplicate, "on_duplicate"),
            idempotency_key=idempotency_key,
        )

    def chosen_mode(self) -> LoadMode:
        """The mode of a load that runs. Raises BadRequest when there is none, or the others contradict it."""
        if self.mode is None:
            raise BadRequest("a load needs a mode", hint=_known(LoadMode))
        if self.replace_types and self.mode is not LoadMode.OVERWRITE:
            raise BadRequest("only an overwrite load replaces types that the input does not name")
        if self.max_rejects is not None and self.rejects is None:
            raise BadRequest(
                "a number of rejects needs a place for them", hint="name a directory: --rejects (rejects=)"
            )
        if self.max_rejects is not None and self.max_rejects < 0:
            raise BadRequest(f"a number of rejects is not negative: {self.max_rejects}")
        return self.mode

    def differences(self, recorded: "LoadOptions") -> list[str]:
        """What a caller asks for otherwise than a recorded load was asked; a default asks for nothing."""
        asked, known = self.members(), recorded.members()
        return [
            f"{each.name} is '{asked[each.name]}', was '{known[each.name]}'"
            for each in fields(self)
            if getattr(self, each.name) != each.default and asked[each.name] != known[each.name]
        ]

    def members(self) -> dict[str, Any]:
        """JSON members; the directory of refused records is named from the root of the file system."""
        known = {each.name: getattr(self, each.name) for each in fields(self)}
        return known | {"rejects": None if self.rejects is None else str(self.rejects.absolute())}

    @classmethod
    def from_members(cls, members: Mapping[str, Any]) -> "LoadOptions":
        """The options that JSON members say."""
        branch = members["branch"]
        return cls.of(
            mode=members["mode"],
            branch=None if branch is None else BranchName(branch),
            base=members["base"],
            actor=members["actor"],
            if_commit=members["if_commit"],
            replace_types=members["replace_types"],
            rejects=members["rejects"],
            max_rejects=members.get("max_rejects"),
            on_duplicate=members.get("on_duplicate"),
            idempotency_key=members.get("idempotency_key"),
        )
