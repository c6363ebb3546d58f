"""The architecture page says what is so: its rooms, its picture, its walks and its places exist in the code."""

import ast
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src" / "omnigraph"
PAGE = (ROOT / "docs" / "internals" / "architecture.md").read_text(encoding="utf-8")


def packages(place: Path) -> list[str]:
    return sorted(path.name for path in place.iterdir() if (path / "__init__.py").is_file())


ROOMS = packages(SOURCES)
ROOMS_WITHIN = [f"{room}/{within}" for room in ("engine", "pipeline") for within in packages(SOURCES / room)]


def section(title: str, text: str = PAGE) -> str:
    level = title.split(" ", 1)[0]
    return re.split(rf"^{level} ", text.split(f"{title}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]


def block(language: str, text: str) -> list[str]:
    return text.split(f"```{language}\n", 1)[1].split("```", 1)[0].splitlines()


# -- the rooms --------------------------------------------------------------------------------------------


def test_every_room_is_explained() -> None:
    rows = re.findall(r"^\| `([\w/]+)` \|", section("## The rooms"), re.MULTILINE)
    assert sorted(rows) == sorted(ROOMS + ROOMS_WITHIN)


def test_every_module_the_page_names_exists() -> None:
    named = set(re.findall(rf"(?<![\w/*])((?:{'|'.join(ROOMS)})(?:/\w+)+)", PAGE))
    coming = set(re.findall(r"\*new\* `([\w/]+)`", PAGE))
    missing = [
        name
        for name in sorted(named - coming)
        if not (SOURCES / f"{name}.py").is_file() and not (SOURCES / name).is_dir()
    ]
    assert len(named) > 100
    assert missing == []


@cache
def imported(path: Path) -> frozenset[str]:
    """The modules of this package that a module imports when it is loaded or when it runs."""
    found: set[str] = set()
    waiting: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            waiting += node.orelse
            continue
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            found |= {node.module, *(f"{node.module}.{each.name}" for each in node.names)}
        elif isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
        waiting += ast.iter_child_nodes(node)
    return frozenset(name for name in found if name.startswith("omnigraph."))


def uses(room: str, other: str) -> bool:
    inside = f"omnigraph.{other.replace('/', '.')}"
    return any(
        name == inside or name.startswith(f"{inside}.")
        for path in (SOURCES / room).rglob("*.py")
        for name in imported(path)
    )


@pytest.mark.slow
def test_the_picture_shows_every_room_and_only_imports_that_are_there() -> None:
    picture = block("mermaid", section("## The rooms"))
    shown = {
        line.strip().split("[")[0].removeprefix("subgraph ").strip().replace("_", "/") for line in picture
    }
    assert [room for room in ROOMS + ROOMS_WITHIN if room not in shown] == []
    arrows = [line.strip().replace("_", "/").split(" --> ") for line in picture if " --> " in line]
    assert len(arrows) > 20
    assert [f"{room} --> {other}" for room, other in arrows if not uses(room, other)] == []


# -- the walks --------------------------------------------------------------------------------------------

WALKS = {
    "protocol": "### The write protocol",
    "mutation": "### A mutation",
    "load": "### A load",
    "merge": "### A merge",
    "schema change": "### A schema change",
    "query": "### A query",
}
LINE = re.compile(r"(?P<indent> *)(?P<file>[\w/]+): (?P<name>[\w.]+)(?:  +(?P<why>.*))?")


@dataclass(frozen=True)
class Step:
    file: str
    name: str
    why: str
    caller: "Step | None"


def steps(walk: str) -> list[Step]:
    found: list[Step] = []
    above: list[Step] = []
    for line in block("walk", section(WALKS[walk])):
        match = LINE.fullmatch(line)
        assert match is not None, line
        depth, odd = divmod(len(match["indent"]), 2)
        assert not odd, line
        assert depth <= len(above), f"nobody calls: {line}"
        assert (depth == 0) is (not found), f"a walk has one beginning: {line}"
        step = Step(match["file"], match["name"], match["why"] or "", above[depth - 1] if depth else None)
        above = [*above[:depth], step]
        found.append(step)
    return found


Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@cache
def definitions(file: str) -> dict[str, list[Definition]]:
    """What a module defines, by name and by qualified name."""
    found: dict[str, list[Definition]] = {}

    def note(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, Definition):
                found.setdefault(prefix + child.name, []).append(child)
                if prefix:
                    found.setdefault(child.name, []).append(child)
                note(child, f"{prefix}{child.name}.")
            else:
                note(child, prefix)

    note(ast.parse((SOURCES / f"{file}.py").read_text(encoding="utf-8")), "")
    return found


def mentioned(file: str, name: str) -> set[str]:
    """The names that a function mentions, and those of its module that it leads to."""
    known = definitions(file)
    seen: set[str] = set()
    waiting = list(known[name])
    while waiting:
        for node in ast.walk(waiting.pop()):
            word = (
                node.id
                if isinstance(node, ast.Name)
                else node.attr
                if isinstance(node, ast.Attribute)
                else None
            )
            if word is not None and word not in seen:
                seen.add(word)
                waiting += known.get(word, ())
    return seen


@pytest.mark.parametrize("walk", WALKS)
@pytest.mark.slow
def test_a_walk_is_one_the_code_takes(walk: str) -> None:
    for step in steps(walk):
        assert (SOURCES / f"{step.file}.py").is_file(), step
        assert step.name in definitions(step.file), f"{step.file} does not define {step.name}"
        if step.caller is not None:
            called = mentioned(step.caller.file, step.caller.name)
            assert step.name.split(".")[-1] in called, (
                f"{step.caller.file}: {step.caller.name} does not lead to {step.name}"
            )


@pytest.mark.parametrize("walk", WALKS)
def test_a_walk_enters_a_file_once_or_says_why_not(walk: str) -> None:
    entered: set[str] = set()
    for step in steps(walk):
        assert step.file not in entered or "again: " in step.why, f"{step.file} is entered twice"
        entered.add(step.file)
    assert len(entered) > 10


# -- the places -------------------------------------------------------------------------------------------


def test_ten_changes_have_a_place() -> None:
    rows = re.findall(r"^\| (\w.*) \| (`.*`) \| (.*) \|$", section("## Ten changes, placed"), re.MULTILINE)
    assert len(rows) == 10
    for change, rooms, files in rows:
        inside = re.findall(r"`([\w/]+)`", rooms)
        assert set(inside) <= {*ROOMS, *ROOMS_WITHIN}, change
        first = re.findall(r"`([\w/]+)`", files)[0]
        assert first.startswith(inside[0]), change
        for new in re.findall(r"\*new\* `([\w/]+)`", files):
            assert not (SOURCES / f"{new}.py").exists(), f"{new} is there already: {change}"
