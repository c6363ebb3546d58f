"""What the house style lets a machine check."""

import ast
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import omnigraph

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src" / "omnigraph"
FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 60
FORBIDDEN_WORDS = {"utils", "util", "helpers", "helper", "misc", "common", "manager", "handler"}
PRINTING_ROOMS = {"cli", "notebook"}
HEAVY = {"lance", "pyarrow", "pyspark", "pandas", "numpy", "obstore", "typer", "rich", "orjson", "msgspec"}


def modules() -> list[Path]:
    return sorted(SOURCES.rglob("*.py"))


def texts_of_the_project() -> list[Path]:
    places = [SOURCES, ROOT / "tests", ROOT / "benchmarks", ROOT / "scripts"]
    return sorted(path for place in places for path in place.rglob("*.py"))


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def test_a_file_can_be_read_in_one_sitting() -> None:
    long = {
        named(path): len(path.read_text(encoding="utf-8").splitlines()) for path in texts_of_the_project()
    }
    assert {name: lines for name, lines in long.items() if lines > FILE_LINES_MAX} == {}


def test_a_function_fits_on_a_screen() -> None:
    long = {
        f"{named(path)}:{function.lineno} {function.name}": function.end_lineno - function.lineno + 1
        for path in modules()
        for function in functions(path)
        if function.end_lineno is not None
    }
    assert {name: lines for name, lines in long.items() if lines > FUNCTION_LINES_MAX} == {}


def test_module_names_say_what_is_inside() -> None:
    vague = [named(path) for path in modules() if FORBIDDEN_WORDS & set(path.stem.split("_"))]
    assert vague == []


def test_only_the_faces_print() -> None:
    printing = [
        f"{named(path)}:{node.lineno}"
        for path in modules()
        if path.relative_to(SOURCES).parts[0] not in PRINTING_ROOMS
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert printing == []


def imported_on_loading(path: Path) -> set[str]:
    """The modules that loading a module loads: what stands under TYPE_CHECKING or in a function is not."""
    found: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            found |= {node.module, *(f"{node.module}.{each.name}" for each in node.names)}
        elif isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
    return found


def test_an_import_that_no_contract_sees_is_one_of_types() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    ignored = [line for contract in settings["contracts"] for line in contract.get("ignore_imports", [])]
    loaded: list[str] = []
    for line in ignored:
        importer, imported = line.split(" -> ")
        place = SOURCES.parent.joinpath(*importer.split("."))
        module = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
        if imported in imported_on_loading(module):
            loaded.append(line)
    assert ignored
    assert loaded == []


def test_nothing_unfinished_is_committed() -> None:
    marks = ("TO" + "DO", "FIX" + "ME", "XX" + "X:", "raise NotImplemented" + "Error")
    unfinished = [
        f"{named(path)}:{number}: {line.strip()}"
        for path in modules()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if any(mark in line for mark in marks)
    ]
    assert unfinished == []


def test_no_test_is_switched_off() -> None:
    switches = ("pytest.mark." + "skip", "pytest.mark." + "xfail", "pytest." + "skip(", "pytest." + "xfail(")
    off = [
        f"{named(path)}:{number}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if any(switch in line for switch in switches)
    ]
    assert off == []


FILTER_PRINTER = SOURCES / "planning" / "filters.py"
FILTER_ARGUMENTS = {"filter", "predicate", "where"}
FILTER_WORDS = re.compile(r" IN \(|[<>=] '|` (?:[<>=!]|IS |is |IN |in )|array_has\(| IS (?:NOT )?NULL")


def texts(node: ast.AST) -> Iterator[str]:
    """The strings of a module that become text at run time: every constant, but no docstring."""
    explained = {id(each.value) for each in ast.walk(node) if isinstance(each, ast.Expr)}
    for each in ast.walk(node):
        if isinstance(each, ast.Constant) and isinstance(each.value, str) and id(each) not in explained:
            yield each.value


def test_one_module_prints_filters() -> None:
    """Storage takes `FilterText`, which the type checker lets nobody replace by a string of his own."""
    printed: list[str] = []
    for path in modules():
        if path == FILTER_PRINTER:
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        printed += [f"{named(path)}: {text!r}" for text in texts(tree) if FILTER_WORDS.search(text)]
        for call in (each for each in ast.walk(tree) if isinstance(each, ast.Call)):
            if "FilterText" in ast.unparse(call.func):
                printed.append(f"{named(path)}:{call.lineno}: FilterText")
            printed += [
                f"{named(path)}:{call.lineno}: {word.arg}={ast.unparse(word.value)}"
                for word in call.keywords
                if word.arg in FILTER_ARGUMENTS
                and isinstance(word.value, ast.JoinedStr | ast.BinOp | ast.Constant)
                and not (isinstance(word.value, ast.Constant) and word.value.value is None)
            ]
    assert printed == []


def test_storage_takes_filters_of_that_module_only() -> None:
    taken = {
        f"{named(path)}:{function.lineno} {function.name}": ast.unparse(argument.annotation)
        for room in ("storage", "manifest")
        for path in sorted((SOURCES / room).glob("*.py"))
        for function in functions(path)
        for argument in (*function.args.args, *function.args.kwonlyargs)
        if argument.arg in FILTER_ARGUMENTS and argument.annotation is not None
    }
    assert any("FilterText" in annotation for annotation in taken.values())
    assert {place: each for place, each in taken.items() if "str" in each} == {}


def loaded_after(statement: str) -> set[str]:
    code = (
        f"import sys, json\n{statement}\nprint(json.dumps(sorted({{m.split('.')[0] for m in sys.modules}})))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


@pytest.mark.parametrize(
    ("statement", "allowed"),
    [
        ("import omnigraph", set()),
        ("import omnigraph; omnigraph.errors", set()),
        ("import omnigraph.core.events, omnigraph.core.failpoints, omnigraph.core.settings", set()),
        ("import omnigraph.cli.main", {"typer"}),
    ],
)
def test_imports_are_light(statement: str, allowed: set[str]) -> None:
    assert loaded_after(statement) & HEAVY <= allowed


def test_every_export_exists() -> None:
    for name in omnigraph.__all__:
        assert getattr(omnigraph, name) is not None
    assert set(omnigraph.__all__) <= set(dir(omnigraph))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        omnigraph.nonsense  # noqa: B018


def test_one_version_number() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["version"] == omnigraph.__version__


def test_every_module_explains_itself() -> None:
    silent = [
        named(path)
        for path in modules()
        if path.name != "__init__.py"
        and ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) is None
    ]
    assert silent == []
