"""The stubs in `typings` describe the libraries that are installed.

A checker believes a stub. So every name of a stub has to be there, and every call a stub allows has to be one the
library takes: with all of its parameters by name, by place, and with the required ones only.
"""

import ast
import dataclasses
import importlib
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeGuard

import lance
import pyarrow as pa
import pytest

STUBS = Path(__file__).parents[2] / "typings"
NOT_INSTALLED = {"arro3", "arro3.core"}

Definition = ast.FunctionDef | ast.AsyncFunctionDef


@dataclasses.dataclass(frozen=True)
class Stubbed:
    """One name of a stub: a function, a class, an attribute."""

    module: str
    path: tuple[str, ...]
    node: ast.stmt

    def __str__(self) -> str:
        return f"{self.module}:{'.'.join(self.path)}:{self.node.lineno}"


def modules() -> Iterator[tuple[str, ast.Module]]:
    for file in sorted(STUBS.rglob("*.pyi")):
        name = ".".join(file.relative_to(STUBS).with_suffix("").parts).removesuffix(".__init__")
        if name not in NOT_INSTALLED:
            yield name, ast.parse(file.read_text(encoding="utf-8"))


def names(module: str, body: list[ast.stmt], above: tuple[str, ...] = ()) -> Iterator[Stubbed]:
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield Stubbed(module, (*above, node.name), node)
            yield from names(module, node.body, (*above, node.name))
        elif isinstance(node, Definition):
            yield Stubbed(module, (*above, node.name), node)
        elif isinstance(node, ast.AnnAssign) and getattr(node.annotation, "id", None) != "TypeAlias":
            assert isinstance(node.target, ast.Name)
            yield Stubbed(module, (*above, node.target.id), node)


def is_for_the_checker_only(stub: Stubbed) -> bool:
    """Types that the library has no name for: members of dictionaries, elements of lists."""
    return stub.path[0].startswith("_") and stub.path[0] not in PRIVATE_BUT_REAL


PRIVATE_BUT_REAL = {"_Dataset", "__version__"}

EVERY = [stub for module, tree in modules() for stub in names(module, tree.body)]
NAMED = [stub for stub in EVERY if not is_for_the_checker_only(stub)]
MODULES = sorted({stub.module for stub in NAMED})


def decorators(node: Definition) -> set[str]:
    return {each.id for each in node.decorator_list if isinstance(each, ast.Name)}


def is_called(node: ast.stmt) -> TypeGuard[Definition]:
    if not isinstance(node, Definition) or "property" in decorators(node):
        return False
    return node.name == "__init__" or not node.name.startswith("__")


def library(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError:  # a part of an extension, which is an attribute only
        above, _, name = module.rpartition(".")
        return getattr(library(above), name)


def found(stub: Stubbed) -> Any:
    """The thing of the library that a stub describes."""
    place: Any = library(stub.module)
    for depth, name in enumerate(stub.path):
        if hasattr(place, name):
            place = (
                inspect.getattr_static(place, name) if depth == len(stub.path) - 1 else getattr(place, name)
            )
        elif (
            dataclasses.is_dataclass(place) and name in {field.name for field in dataclasses.fields(place)}
        ) or name in INSTANCE_ATTRIBUTES.get(stub.path[:-1], ()):
            return None
        else:
            raise AssertionError(f"{stub}: the library has no such name")
    return place


INSTANCE_ATTRIBUTES = {("LanceDataset",): {"_ds"}, ("Buffer",): {"__buffer__"}}
"""Set by constructors, so that the class does not show them; and what Python names since 3.12 only."""


@pytest.mark.parametrize("module", MODULES)
def test_every_name_of_a_stub_is_in_the_library(module: str) -> None:
    for stub in NAMED:
        thing = found(stub) if stub.module == module else None
        if isinstance(stub.node, Definition) and thing is not None:
            called = callable(thing) or isinstance(thing, staticmethod | classmethod)
            assert called is not ("property" in decorators(stub.node)), stub


@dataclasses.dataclass(frozen=True)
class Parameters:
    """What a stub lets a caller say."""

    by_place: tuple[str, ...]
    only_by_place: int
    by_name: tuple[str, ...]
    required: tuple[str, ...]
    """Of those that may be named."""


def parameters(node: Definition, *, bound: bool) -> Parameters:
    arguments = node.args
    places = [*arguments.posonlyargs, *arguments.args]
    optional = {each.arg for each in places[len(places) - len(arguments.defaults) :]}
    optional |= {
        each.arg for each, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if default
    }
    first = 1 if bound else 0
    names_only = [each.arg for each in arguments.kwonlyargs]
    return Parameters(
        by_place=tuple(each.arg for each in places[first:]),
        only_by_place=max(0, len(arguments.posonlyargs) - first),
        by_name=(
            *(each.arg for each in arguments.args[first if not arguments.posonlyargs else 0 :]),
            *names_only,
        ),
        required=tuple(
            each.arg for each in [*places[first:], *arguments.kwonlyargs] if each.arg not in optional
        ),
    )


def signature(stub: Stubbed) -> tuple[inspect.Signature | None, bool]:
    """What the library takes, and whether the stub names the object before it."""
    node = stub.node
    assert isinstance(node, Definition)
    bound = len(stub.path) > 1 and not {"staticmethod"} & decorators(node)
    place: Any = library(stub.module)
    for name in stub.path[:-1]:
        place = getattr(place, name)
    thing = place if node.name == "__init__" else getattr(place, node.name)
    try:
        said = inspect.signature(thing)
    except ValueError:
        return None, bound
    if (
        bound
        and node.name != "__init__"
        and not isinstance(inspect.getattr_static(place, node.name), classmethod)
    ):
        said = said.replace(parameters=list(said.parameters.values())[1:])
    return said, bound


CALLS: dict[tuple[str, str], Callable[..., Any]] = {
    ("pyarrow", "BufferOutputStream"): lambda **_: pa.BufferOutputStream(),
    ("pyarrow", "BufferReader"): lambda obj=b"", **_: pa.BufferReader(obj=obj),
}
"""Types that tell no signature and whose arguments need values."""


@pytest.mark.parametrize("module", MODULES)
def test_the_library_takes_what_a_stub_allows(module: str, tmp_path: Path) -> None:
    for stub in NAMED:
        if stub.module == module and is_called(stub.node):
            said, bound = signature(stub)
            allowed = parameters(stub.node, bound=bound)
            if said is None:
                make_once(stub, allowed, tmp_path)
                continue
            try:
                compare(said, allowed)
            except (TypeError, AssertionError) as difference:
                raise AssertionError(f"{stub}: the library takes {said}") from difference


def compare(said: inspect.Signature, allowed: Parameters) -> None:
    by_place = said.bind_partial(*[None] * len(allowed.by_place))
    assert (
        tuple(by_place.arguments)[allowed.only_by_place : len(allowed.by_place)]
        == (allowed.by_place[allowed.only_by_place :])
    )
    said.bind_partial(**dict.fromkeys(allowed.by_name))
    needed = [name for name in allowed.required if name not in allowed.by_place[: allowed.only_by_place]]
    said.bind(*[None] * allowed.only_by_place, **dict.fromkeys(needed))


def make_once(stub: Stubbed, allowed: Parameters, place: Path) -> None:
    """Types made by Cython tell no signature: one is made with every parameter named."""
    kind = getattr(library(stub.module), stub.path[0])
    if stub.path[0] == "OSFile":
        kind(path=str(place / "file"), mode="wb").close()
    elif (stub.module, stub.path[0]) in CALLS:
        CALLS[stub.module, stub.path[0]]()
    else:
        kind(**dict.fromkeys(allowed.by_name))


def test_things_without_a_name_have_the_members_of_their_stubs(tmp_path: Path) -> None:
    table = pa.table({"id": pa.array(["a"], pa.string())})
    dataset = lance.write_dataset(table, str(tmp_path / "table"))
    dataset.tags.create("one", 1)
    things = {
        ("lance", "_Token"): lance.tokenize("word")[0],
        ("lance.dataset", "_Field"): dataset.lance_schema.fields()[0],
        ("lance.dataset", "_Tag"): dataset.tags.list()["one"],
    }
    for stub in EVERY:
        thing = things.get((stub.module, stub.path[0]))
        if thing is not None and len(stub.path) > 1:
            assert stub.path[1] in thing if isinstance(thing, dict) else hasattr(thing, stub.path[1]), stub
