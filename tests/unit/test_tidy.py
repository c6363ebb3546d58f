"""What the house style lets a machine check."""

import ast
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

import omnigraph
from omnigraph.cli.arguments import COMMANDS
from omnigraph.core.errors import KINDS, RESERVED
from source_names import unused

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


@pytest.mark.slow
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


@pytest.mark.slow
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


RULE_NUMBER = re.compile(r"\b([A-Z]{1,2})-\d{1,3}\b|\bissue \d+")
CODES_OF_THE_PRODUCT = {"DS", "MF"}
"""Codes that users see: refused schema changes."""


@pytest.mark.slow
def test_rules_are_said_in_words() -> None:
    """No number of a rule whose text is in no file of this repository."""
    places = [SOURCES, *(ROOT / name for name in ("tests", "docs", "benchmarks", "scripts"))]
    files = [path for place in places for path in place.rglob("*") if path.suffix in {".py", ".md", ".case"}]
    numbered = [
        f"{named(path)}:{number}: {match[0]}"
        for path in sorted({*files, *ROOT.glob("*.md")})
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        for match in RULE_NUMBER.finditer(line)
        if match[1] not in CODES_OF_THE_PRODUCT
    ]
    assert numbered == []


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


@pytest.mark.slow
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


@pytest.mark.slow
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


def deadlines(text: str) -> Iterator[int]:
    """Lines that give the examples of property tests a deadline."""
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Call(
                func=ast.Name(id="settings" | "register_profile")
                | ast.Attribute(attr="settings" | "register_profile")
            ):
                for given in node.keywords:
                    if given.arg == "deadline" and ast.unparse(given.value) != "None":
                        yield given.value.lineno
            case _:
                pass


@pytest.mark.slow
def test_no_property_test_has_a_deadline() -> None:
    assert hypothesis.settings.default is not None
    assert hypothesis.settings.default.deadline is None
    found = {
        named(path): lines
        for path in texts_of_the_project()
        if (lines := list(deadlines(path.read_text(encoding="utf-8"))))
    }
    assert found == {}


def test_a_deadline_of_a_property_test_is_found() -> None:
    assert list(deadlines("@settings(max_examples=3, deadline=200)\ndef test_x(): ...")) == [1]
    assert list(
        deadlines("hypothesis.settings.register_profile('x', deadline=None)\nsettings(deadline=1)")
    ) == [2]


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
        ("import omnigraph.cli.main", set()),
        ("import omnigraph.cli.running", {"typer"}),
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


@pytest.mark.slow
def test_every_module_explains_itself() -> None:
    silent = [
        named(path)
        for path in modules()
        if path.name != "__init__.py"
        and ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) is None
    ]
    assert silent == []


# -- what is defined is used, what is advised exists ------------------------------------------------------

KEPT = {
    "the import system calls it": ("cli.startup._Wrapper.create_module",),
    "tests stop, steer and watch the product through them": (
        "core.failpoints.Callback",
        "core.failpoints.Pause",
        "core.failpoints.Pause.wait_until_reached",
        "core.failpoints.activate",
    ),
    "the page of the schema language is compared with them": (
        "catalog.codes.CODE_MEANINGS",
        "catalog.codes.LINT_CODES",
    ),
    "the write path names this surface, and tests show that its members move the HEAD": (
        "storage.residual.InlineCommitResidual.create_vector_index",
        "storage.residual.InlineCommitResidual.delete_where",
        "storage.residual.InlineCommitResidual.optimize_indices",
        "storage.tables.TableStorage.storage_inline_residual",
    ),
}
"""Public names that nothing in the product uses, each with the reason why it is there."""


def module_texts(*places: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    for place in places:
        for path in sorted(place.rglob("*.py")):
            parts = path.relative_to(place.parent).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            found[name] = path.read_text(encoding="utf-8")
    return found


def names_on_the_python_page() -> set[str]:
    """Names users call: those of the generated reference page, which a test compares with the package."""
    page = (ROOT / "docs" / "reference" / "python.md").read_text(encoding="utf-8")
    return set(re.findall(r"^#{3,4} `(?:omnigraph\.(?:events\.)?|\.)(\w+)`", page, re.MULTILINE)) | set(
        re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)
    )


def defined_in_vain(sources: dict[str, str]) -> set[str]:
    entry = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]
    public = names_on_the_python_page()
    started = {place.replace(":", ".") for place in entry.values()}
    reserved = {KINDS[kind].cls.__name__ for kinds in RESERVED.values() for kind in kinds}
    return {
        str(each).removeprefix("omnigraph.")
        for each in unused(sources, "omnigraph")
        if each.name not in public and str(each) not in started and each.name not in reserved
    }


@pytest.mark.slow
def test_no_public_name_is_defined_and_never_used() -> None:
    kept = {name for names in KEPT.values() for name in names}
    assert defined_in_vain(module_texts(SOURCES, ROOT / "scripts")) == kept


@pytest.mark.parametrize(
    ("planted", "found"),
    [
        ("def left_over(): ...", {"planted.left_over"}),
        ("def left_over(): left_over()", {"planted.left_over"}),
        ("LEFT_OVER = 1", {"planted.LEFT_OVER"}),
        ("class LeftOver: ...\nAlias = LeftOver", {"planted.Alias"}),
        ("class _Here:\n    def left_over(self): self.left_over()", {"planted._Here.left_over"}),
        ("__all__ = ['left_over']\ndef left_over(): ...", {"planted.left_over"}),
        ("import lance\nclass _Here(lance.Reader):\n    def read(self): ...", set()),
        ("def _private(): ...", set()),
    ],
)
def test_a_planted_name_that_nobody_uses_is_found(planted: str, found: set[str]) -> None:
    assert (
        defined_in_vain({"omnigraph.planted": planted, "omnigraph.other": "import omnigraph.planted"})
        == found
    )
    used = "from omnigraph import planted\nfrom omnigraph.planted import left_over\nplanted.LEFT_OVER, planted.Alias"
    handed_on = f"{used}\nx.left_over, left_over"
    assert defined_in_vain({"omnigraph.planted": planted, "omnigraph.other": handed_on}) == set()


@pytest.mark.slow
def test_reserved_kinds_are_not_raised() -> None:
    texts = module_texts(SOURCES)
    unraised = {each.name for each in unused(texts, "omnigraph") if ".errors." in each.module}
    reserved = {KINDS[kind].cls.__name__ for kinds in RESERVED.values() for kind in kinds}
    assert reserved <= unraised


GROUPS = {path[:1] for path in COMMANDS if len(path) > 1}
COMMAND = re.compile(r"\bomnigraph ((?:[a-z][a-z-]*)(?: [a-z][a-z-]*)?)")


def advised(text: str) -> set[str]:
    """Commands that a text names and that do not exist."""
    named_there = [tuple(found[1].split()) for found in COMMAND.finditer(text)]
    return {
        " ".join(words)
        for words in named_there
        if not {words, words[:1]} & {*COMMANDS} and words not in GROUPS
    }


def strings(text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def code_of_page(text: str) -> Iterator[str]:
    """Shell blocks and words set as code."""
    yield from re.findall(r"^```(?:sh|console)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    yield from re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))


@pytest.mark.slow
def test_every_command_that_is_advised_exists() -> None:
    missing = {
        name: wrong
        for name, text in module_texts(SOURCES).items()
        if (wrong := set().union(*(advised(each) for each in strings(text))))
    }
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        if wrong := set().union(*(advised(each) for each in code_of_page(page.read_text(encoding="utf-8")))):
            missing[named(page)] = wrong
    assert missing == {}


def test_advice_to_run_a_missing_command_is_found() -> None:
    assert advised("run `omnigraph obliterate --confirm`") == {"obliterate"}
    assert advised("omnigraph schema forget") == {"schema forget"}
    assert advised("`omnigraph schema plan` and omnigraph load --resumable, then upgrade omnigraph") == set()
    assert set().union(*map(advised, strings('f"{x}: run `omnigraph obliterate` {y}"'))) == {"obliterate"}
    assert set().union(*map(advised, code_of_page("# a\n\n```sh\nomnigraph forget\n```\n"))) == {"forget"}
    assert set().union(*map(advised, code_of_page("see `omnigraph obliterate`"))) == {"obliterate"}


IMPORTED_AS = {"pylance": "lance", "pyyaml": "yaml"}


@pytest.mark.slow
def test_every_dependency_is_imported() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    named = {re.split(r"[<>=!\[]", each)[0] for each in project["project"]["dependencies"]}
    imported = {
        name.split(".")[0]
        for path in modules()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert {name for name in named if IMPORTED_AS.get(name, name) not in imported} == set()
