"""A power cut tears files: the next open repairs the graph or names the file, and nobody reads a wrong answer."""

import shutil

import pytest

import omnigraph
from crash.harness import EXIT_AT_WINDOW, run_child
from crash.people import DELETE, INSERT, SCHEMA, Model, prepare, seed
from omnigraph.core.errors import OmnigraphError
from omnigraph.core.failpoints import Window
from recovery_graph import FAST

pytestmark = pytest.mark.crash

TEARS = {
    "emptied": lambda content: b"",
    "halved": lambda content: content[: len(content) // 2],
    "one byte short": lambda content: content[:-1],
}
STATES = {
    # name: (where the writer died, None for a write that was acknowledged; what may be seen afterwards)
    "committed": (Window.MUTATION_POST_FINALIZE_PRE_PUBLISHER, ("before", "after")),
    "published": (Window.GRAPH_PUBLISH_AFTER_MANIFEST_COMMIT, ("before", "after")),
    "acknowledged": (None, ("after",)),
}


def files(path):
    return {file.relative_to(path): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


class Case:
    """One graph before and after one write, file by file."""

    def __init__(self, path, writer, window):
        graph = omnigraph.init(path, schema=SCHEMA, settings=FAST)
        seed(graph)
        prepare(graph, writer, "1")
        self.before = Model.read(graph.export())
        graph.close()
        self.path = path
        old = files(path)
        command = {"command": "write", "path": str(path), "writer": writer.name, "tag": "1", "branch": "main"}
        status, errors = run_child(command, failpoints=f"{window}=exit" if window else None)
        assert status == (EXIT_AT_WINDOW if window else 0), errors
        self.after = writer.after(self.before, "1")
        self.kept = path.with_name("kept")
        shutil.copytree(path, self.kept)
        self.new = [name for name, content in files(path).items() if old.get(name) != content]

    def torn(self, name, tear):
        """The graph as it was left, with one file torn."""
        shutil.rmtree(self.path)
        shutil.copytree(self.kept, self.path)
        file = self.path / name
        file.write_bytes(tear(file.read_bytes()))


def outcome(path):
    """What a read-write open and a complete read give: a model, or the error."""
    try:
        with omnigraph.open(path, settings=FAST) as graph:
            model = Model.read(graph.export())
            problems = graph.verify().violations
            return model, problems
    except OmnigraphError as error:
        return error, ()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("writer", [INSERT, DELETE], ids=lambda writer: writer.name)
def test_torn_file_is_repaired_or_named(state, writer, tmp_path):
    window, allowed = STATES[state]
    case = Case(tmp_path / "graph", writer, window)
    models = [getattr(case, name) for name in allowed]
    assert any(name.suffix == ".lance" for name in case.new)
    assert any(name.suffix == ".manifest" for name in case.new)
    if writer is DELETE:
        assert any(name.parent.name == "_deletions" for name in case.new)
    repaired = named = 0
    for name in case.new:
        for how, tear in TEARS.items():
            case.torn(name, tear)
            found, problems = outcome(case.path)
            where = f"{name} {how} ({state}): {found} {problems}"
            if isinstance(found, OmnigraphError):
                assert name.name in str(found), where
                named += 1
            else:
                assert found in models, where
                assert problems == (), where
                repaired += 1
    print(
        f"\n{writer.name} {state}: {len(case.new)} files torn in 3 ways; {repaired} repaired, {named} named"
    )
    assert repaired
