"""A data class whose methods are made late is like one of the standard library."""

import copy
import dataclasses
import importlib
import inspect
import pickle
import pkgutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import field
from pathlib import Path
from typing import Any, ClassVar

import pytest

import omnigraph
from omnigraph.core import late_dataclass
from omnigraph.core.late_dataclass import OBJECTS_BEFORE_COMPILING, dataclass

Make = Callable[..., Any]


def family(make: Make) -> dict[str, Any]:
    """The same classes, made in this way."""

    @make(frozen=True, slots=True)
    class Point:
        """A place."""

        x: int
        y: int = 2
        tags: list[str] = field(default_factory=list, compare=False, repr=False)
        kind: ClassVar[str] = "point"

    @make(frozen=True, slots=True)
    class Named(Point):
        """A place with a name that is derived."""

        name: str = ""
        length: int = field(init=False)

        def __post_init__(self) -> None:
            object.__setattr__(self, "length", len(self.name))

    @make(slots=True)
    class Count:
        """A place to count."""

        at: int = 0
        seen: int = field(default=7, init=False)

    @make(slots=True, eq=False)
    class Own:
        """Only itself."""

        value: object

        def __repr__(self) -> str:
            return "mine"

    @make(frozen=True, slots=True)
    class Judged:
        """Says itself what is equal, and what it hashes to."""

        value: int

        def __eq__(self, other: object) -> bool:
            return isinstance(other, type(self)) and self.value % 2 == other.value % 2

        def __hash__(self) -> int:
            return self.value % 2

    @make(frozen=True, slots=True)
    class Plain:
        """Nothing but a value."""

        value: int

    @make(frozen=True)
    class Loose:
        """Has a dictionary."""

        a: int
        b: tuple[int, ...] = (1,)
        c: dict[str, int] = field(default_factory=dict)

    @make(frozen=True)
    class Looser(Loose):
        """Has another default."""

        a: int = 4

    @make
    class Bare:
        """Has no options."""

        a: int = 1

    return {cls.__name__: cls for cls in (Point, Named, Count, Own, Judged, Plain, Loose, Looser, Bare)}


def unmade(cls: type) -> set[str]:
    """The members of a class that wait to be made."""
    here = dataclass.__module__
    return {
        name
        for name, value in vars(cls).items()
        if name != "_late_dataclass" and here in {type(value).__module__, getattr(value, "__module__", "")}
    }


CALLS: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("Point", (1,), {}),
    ("Point", (1, 3, ["a"]), {}),
    ("Point", (), {}),
    ("Point", (1,), {"z": 3}),
    ("Point", (1, 2, [], 4), {}),
    ("Named", (1,), {"name": "abc"}),
    ("Named", (1, 2, [], "abc"), {}),
    ("Count", (), {}),
    ("Count", (3,), {}),
    ("Count", (), {"seen": 3}),
    ("Own", (3,), {}),
    ("Judged", (3,), {}),
    ("Plain", (3,), {}),
    ("Loose", (3,), {}),
    ("Loose", (3, (2,), {"a": 1}), {}),
    ("Looser", (), {}),
    ("Bare", (), {"a": 9}),
]


def outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except (TypeError, AttributeError) as error:
        return type(error).__name__, str(error)


def described(cls: Any, given: tuple[Any, ...], named: dict[str, Any]) -> list[Any]:
    """What an object can do, in the order in which each of these would make a method."""
    other = outcome(lambda: cls(*given, **named))
    one = outcome(lambda: cls(*copy.deepcopy(given), **copy.deepcopy(named)))
    if isinstance(one, tuple):
        return [one]
    found: list[Any] = [{each.name: getattr(one, each.name) for each in dataclasses.fields(cls)}]
    found += [one == other, one != other, one == 3]
    found += [repr(one) if "0x" not in repr(one) else ""]
    found += [outcome(lambda: hash(one) == hash(other)) if "object" not in str(cls.__hash__) else ""]
    name = dataclasses.fields(cls)[0].name
    found += [outcome(lambda: setattr(one, name, 5)), outcome(lambda: delattr(one, name))]
    found += [outcome(lambda: getattr(one, name))]
    return found


@pytest.mark.parametrize(("name", "given", "named"), CALLS)
def test_an_object_behaves_as_in_the_standard_library(
    name: str, given: tuple[Any, ...], named: dict[str, Any]
) -> None:
    late, usual = family(dataclass)[name], family(dataclasses.dataclass)[name]
    assert described(late, given, named) == described(usual, given, named)
    compiled = family(dataclass)[name]
    assert callable(compiled.__init__)  # whoever looks for it gets it
    assert "__init__" not in unmade(compiled)
    assert described(compiled, given, named) == described(usual, given, named)


@pytest.mark.parametrize("name", list(family(dataclass)))
def test_a_class_looks_as_in_the_standard_library(name: str) -> None:
    for look in (
        inspect.signature,
        dataclasses.is_dataclass,
        lambda cls: [(each.name, each.default, each.init, each.repr) for each in dataclasses.fields(cls)],
        lambda cls: cls.__match_args__,
        lambda cls: vars(cls).get("__slots__"),
        lambda cls: cls.__hash__ is None,
        lambda cls: (cls.__qualname__, cls.__module__, cls.__doc__),
        lambda cls: [base.__name__ for base in cls.__mro__],
        lambda cls: sorted(set(dir(cls)) - {"_late_dataclass"}),
    ):
        late, usual = family(dataclass)[name], family(dataclasses.dataclass)[name]
        assert str(look(late)) == str(look(usual))  # type: ignore[no-untyped-call]


def test_nothing_is_made_before_it_is_needed() -> None:
    point = family(dataclass)["Named"]

    def waiting() -> set[str]:
        return unmade(point)

    assert {"__init__", "__repr__", "__eq__", "__hash__", "__setattr__", "__dataclass_fields__"} <= waiting()
    before = waiting()
    one = point(1)
    assert waiting() == before  # the fields of a few objects are set one by one
    many = [point(1, name="abc") for _ in range(OBJECTS_BEFORE_COMPILING)]
    assert waiting() == before - {"__init__"}
    assert {each.length for each in many} == {3}
    assert one == point(1)
    assert waiting() == set()
    assert one == point(1)


@dataclass(frozen=True, slots=True)
class Travelling:
    """Goes to another process."""

    a: int
    b: str = "b"


@pytest.mark.slow
def test_an_object_arrives_in_a_process_that_never_made_one() -> None:
    program = (
        "import pickle, sys\n"
        f"sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "import test_late_dataclass\n"
        "one = pickle.loads(sys.stdin.buffer.read())\n"
        "assert (one.a, one.b) == (1, 'c')\n"
        "assert repr(one) == \"Travelling(a=1, b='c')\" and hash(one) and one == one\n"
    )
    sent = pickle.dumps(Travelling(1, "c"), protocol=0).replace(
        f"c{Travelling.__module__}\n".encode(), b"ctest_late_dataclass\n"
    )
    done = subprocess.run([sys.executable, "-c", program], input=sent, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert copy.copy(Travelling(2)) == copy.deepcopy(Travelling(2)) == Travelling(2)
    assert dataclasses.replace(Travelling(2), a=3) == Travelling(3)
    match Travelling(5, "x"):
        case Travelling(a, b):
            assert (a, b) == (5, "x")


def test_many_threads_may_make_the_first_object() -> None:
    for _ in range(20):
        named = family(dataclass)["Named"]
        together, found = threading.Barrier(8), []

        def work(make: Any = named, together: threading.Barrier = together, found: list[Any] = found) -> None:
            together.wait()
            found.append((make(1, name="abc"), make(1, name="abc").length, repr(make(2))))

        threads = [threading.Thread(target=work) for _ in range(8)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert len(found) == 8
        assert all(each == found[0] for each in found)


@pytest.mark.parametrize("use", [repr, hash, lambda one: one == copy.copy(one), dataclasses.fields])
def test_an_interrupt_is_heard_and_leaves_a_class_that_can_be_finished(
    monkeypatch: pytest.MonkeyPatch, use: Callable[[Any], Any]
) -> None:
    one = family(dataclass)["Plain"](1)
    real = dataclasses.dataclass
    assert late_dataclass._STANDARD is real

    def interrupted(**how: bool) -> Any:
        def made(cls: type) -> type:
            real(**how)(cls)
            raise KeyboardInterrupt

        return made

    monkeypatch.setattr(late_dataclass, "_STANDARD", interrupted)
    with pytest.raises(KeyboardInterrupt):
        use(one)
    monkeypatch.undo()
    assert use(one)


def own_classes() -> Iterator[type]:
    for each in pkgutil.walk_packages(omnigraph.__path__, "omnigraph."):
        if not each.name.endswith("__main__"):
            module = importlib.import_module(each.name)
            yield from (cls for cls in vars(module).values() if isinstance(cls, type))


@pytest.mark.slow
def test_every_class_of_the_product_can_be_finished_by_the_standard_library() -> None:
    late = {cls for cls in own_classes() if cls.__module__ != dataclass.__module__ and unmade(cls)}
    assert len(late) > 100
    for cls in late:
        parameters = inspect.signature(cls).parameters  # what is written for a first object
        fields = dataclasses.fields(cls)  # type: ignore[arg-type]
        assert list(parameters) == [each.name for each in fields if each.init], cls
        assert not unmade(cls), cls
