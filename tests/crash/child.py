"""The program whose process the crash tests end.

Alone: `python child.py <command as JSON>`; the windows it dies in come from OMNIGRAPH_FAILPOINTS.
As a server (`python child.py serve`): one command per line; each runs in a forked child of its own, before
anything of Lance was used, so that a cut costs milliseconds. The reply is its exit status.
"""

import faulthandler
import gc
import importlib
import json
import os
import pkgutil
import signal
import sys
import threading
import traceback
import warnings
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
# The server forks before any dataset was opened, which is the case Lance's warning does not mean.
warnings.filterwarnings("ignore", message="lance is not fork-safe")

# Imported here, so that a forked child need not.
import lance.fragment  # noqa: E402, F401
import pyarrow.acero  # noqa: E402
import pyarrow.compute  # noqa: E402
import pyarrow.dataset  # noqa: E402, F401

import omnigraph  # noqa: E402
import omnigraph.api.graph  # noqa: E402
from crash.people import REPAIRS, SCHEMA, WRITERS, prepare, seed  # noqa: E402
from omnigraph.branching import merge_writing  # noqa: E402
from omnigraph.core import clock, failpoints  # noqa: E402
from omnigraph.core.events import DurableOperation, listen  # noqa: E402
from omnigraph.core.failpoints import Callback, Sequence, Window, activate  # noqa: E402
from omnigraph.recovery import observe, roll_back, sidecar  # noqa: E402
from omnigraph.recovery.classify import ClassificationMode  # noqa: E402
from omnigraph.storage import branches as storage_branches  # noqa: E402
from omnigraph.storage import durability  # noqa: E402
from powercut.shim import Shim  # noqa: E402

os.environ["OMNIGRAPH_EMBEDDINGS_MOCK"] = "1"
WATCHED_S_MAX = 120
"""A writer that hangs because one of its calls failed ends with the stacks of its threads."""


class CutAt:
    """Kills the process at its k-th durable event. Events come in pairs: before and after an operation."""

    def __init__(self, number):
        self._left = number
        self._lock = threading.Lock()

    def __call__(self, event):
        if isinstance(event, DurableOperation):
            with self._lock:
                self._left -= 1
                if self._left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)


def write(command):
    """Run one writer; say so in a file when the call has returned."""
    writer = (WRITERS | REPAIRS)[command["writer"]]
    graph = omnigraph.open(command["path"], storage_options=command.get("options"))
    if "shim" in command:
        writer.run(graph, command["tag"], command["branch"])
        command["shim"].mark("returned")
        os._exit(0)
    if "cut" in command:
        with listen(CutAt(command["cut"]), everywhere=True):
            writer.run(graph, command["tag"], command["branch"])
            Path(command["returned"]).touch()
            os._exit(0)
    with paused_where_told(command):
        writer.run(graph, command["tag"], command["branch"])
    graph.close()
    print("done", flush=True)


def mutate(command):
    """Run one query, where told until it is cut; then a file says that the call has returned."""
    graph = omnigraph.open(command["path"])
    if "cut" not in command:
        parameters = {"k": command["key"]} if "key" in command else {}
        graph.mutate(command["query"], parameters, branch=command.get("branch", "main"))
        return
    with listen(CutAt(command["cut"]), everywhere=True):
        graph.mutate(command["query"], {"k": command["key"]})
        Path(command["returned"]).touch()
        os._exit(0)


@contextmanager
def paused_where_told(command):
    """Stop at a window, say so, and go on at a line of input."""
    if "pause" not in command:
        yield
        return

    def pause(_window):
        print("paused", flush=True)
        sys.stdin.readline()

    with activate(Window(command["pause"]), Sequence([Callback(pause)])):
        yield


def recover(command):
    """Open read-write, and report what the graph shows, what `verify` finds and what recovery recorded."""
    if "cut" in command:
        with listen(CutAt(command["cut"]), everywhere=True):
            omnigraph.open(command["path"], storage_options=command.get("options"))
            os._exit(0)
    graph = omnigraph.open(command["path"], storage_options=command.get("options"))
    report = graph.verify()
    result = {
        "exports": {name: graph.export(branch=name) for name in graph.branches.list()},
        "violations": [f"{each.rule} {each.where}: {each.message}" for each in report.violations],
        "recoveries": [[each.operation_id, each.recovery_kind] for each in graph.recoveries()],
        "commits": len(graph.commits.list()),
        "tags": graph.tags.list(),
    }
    graph.close()
    Path(command["result"]).write_text(json.dumps(result))


def look(command):
    """What a reader sees; nothing is settled."""
    with omnigraph.open_read_only(command["path"]) as graph:
        exports = {name: graph.export(branch=name) for name in graph.branches.list()}
        Path(command["result"]).write_text(json.dumps({"exports": exports, "tags": graph.tags.list()}))


def write_on_top(command):
    """A write on the first of these branches that is there; a mark says where, once the call has returned."""
    graph = omnigraph.open(command["path"])
    branch = next(name for name in command["wanted"] if name in graph.branches.list())
    WRITERS[command["writer"]].run(graph, command["tag"], branch)
    command["shim"].mark(f"returned {branch}")
    os._exit(0)


def examine(command):
    """Whether a graph that a power cut left can be used: opened, verified, read, looked up, written.

    `thorough`: also whether all of that still holds after the writes and in another opening.
    """
    boot_again(command)
    with omnigraph.open(command["path"]) as graph:
        problems = list(findings(graph))
        exports = {name: graph.export(branch=name) for name in graph.branches.list()}
        tags = graph.tags.list()
        graph.recoveries()
        for name, exported in exports.items():
            problems += lost_lookups(graph, name, exported)
            graph.mutate(FOLLOW_UP, {"n": f"follow-up-{name}"}, branch=name)
        if command["thorough"]:
            problems += [f"after a write {each}" for each in findings(graph)]
            for name, before in exports.items():
                lost = set(before.splitlines()) - set(graph.export(branch=name).splitlines())
                problems += [f"a write on {name} took away {sorted(lost)}"] if lost else []
    if command["thorough"]:
        with omnigraph.open(command["path"]) as graph:
            problems += [f"opened again {each}" for each in findings(graph)]
    Path(command["result"]).write_text(json.dumps({"exports": exports, "violations": problems, "tags": tags}))


def boot_again(command):
    """After a power cut the machine has started again, and says so."""
    clock._BOOT_ID = Path(command["result"]).with_suffix(".boot")
    clock._BOOT_ID.write_text("another run of the machine")


FOLLOW_UP = "query f($n: String) { insert Person { name: $n } insert Knows { from: $n, to: $n } }"
BY_NAME = "query l($n: String) { match { $p: Person { name: $n } } return { $p.name } }"


def findings(graph):
    return [f"{each.rule} {each.where}: {each.message}" for each in graph.verify().violations]


def lost_lookups(graph, branch, exported):
    """People that are there and not found by their name: an index may be torn where the rows are whole."""
    lines = [json.loads(line) for line in exported.splitlines()]
    people = [each["data"]["name"] for each in lines if each.get("type") == "Person"]
    return [
        f"{name} is not found on {branch}"
        for name in people
        if len(list(graph.query(BY_NAME, {"n": name}, branch=branch))) != 1
    ]


def create(command):
    """Make a graph; for a writer, with what that one needs, and say which branch it writes and what is there."""
    graph = omnigraph.init(command["path"], schema=SCHEMA)
    seed(graph)
    if "writer" in command:
        branch = prepare(graph, WRITERS[command["writer"]], command["tag"])
        told = {"branch": branch, "before": graph.export(branch=branch)}
        Path(command["result"]).write_text(json.dumps(told))
    graph.close()


def clone(command):
    """Copy a graph; a mark says when the call has returned."""
    omnigraph.clone(command["path"], command["target"])
    command["shim"].mark("returned")
    os._exit(0)


def examine_clone(command):
    """Whether what a power cut left of a clone is one, or becomes one when the copy is made again."""
    boot_again(command)
    if not command["returned"]:
        omnigraph.clone(command["path"], command["target"])
    with (
        omnigraph.open_read_only(command["path"]) as source,
        omnigraph.open(command["target"]) as copy,
    ):
        report = copy.verify(deep=True)
        problems = [f"{each.rule} {each.where}: {each.message}" for each in report.violations]
        problems += [str(each) for each in report.corrupt]
        for name in source.branches.list():
            if copy.export(branch=name) != source.export(branch=name):
                problems.append(f"{name} does not show what it shows in the source")
            copy.mutate(FOLLOW_UP, {"n": f"follow-up-{name}"}, branch=name)
    Path(command["result"]).write_text(json.dumps(problems))


def branch_create(command):
    """Make a branch."""
    omnigraph.open(command["path"], storage_options=command.get("options")).branches.create(command["branch"])


def ensure_indices(command):
    """Build the declared indexes."""
    omnigraph.open(command["path"], storage_options=command.get("options")).ensure_indices()


def apply_schema(command):
    """Change the schema."""
    graph = omnigraph.open(command["path"], storage_options=command.get("options"))
    loses = command.get("allow_data_loss", False)
    fills = command.get("fills", ())
    graph.apply_schema(command["schema"], actor="ana", fills=fills, allow_data_loss=loses)
    graph.close()


def merge(command):
    """Merge one branch into another."""
    graph = omnigraph.open(command["path"], storage_options=command.get("options"))
    if command.get("in_turn"):
        # One table after the other: what has moved when the process ends is then known.
        merge_writing.TABLES_AT_ONCE = 1
    graph.branches.merge(command["source"], into=command.get("target", "main"), actor="ana")
    graph.close()


def branch_delete(command):
    """Delete a branch."""
    omnigraph.open(command["path"], storage_options=command.get("options")).branches.delete(command["branch"])


def confirm(command):
    """The confirmation of a merge whose tables are all committed."""
    context = omnigraph.open_read_only(command["path"]).session.recovery
    note = context.sidecars.read(f"{command['operation']}.json")
    reached = {
        pin.table_key: context.storage.head_version(
            context.manifest.current(note.branch).entries[pin.table_key].location, pin.table_branch
        )
        for pin in note.tables
    }
    context.sidecars.confirm_sidecar_phase_b(note, reached)


def hold_lease(command):
    """Hold the writer lease until a line of input, as a process in the middle of a write does."""
    with omnigraph.open_read_only(command["path"]).session.lease.hold():
        print("held", flush=True)
        sys.stdin.readline()


def script(command):
    """A program of a test, with arguments of its own."""
    sys.argv = ["script", *command["arguments"]]
    exec(compile(command["text"], "script", "exec"), {"__name__": "__main__"})


def kill_writer(command):
    """Write until killed."""
    from torture.kill_writer import work

    work(command)


COMMANDS = {
    each.__name__: each
    for each in (
        write,
        mutate,
        merge,
        recover,
        look,
        examine,
        write_on_top,
        create,
        clone,
        examine_clone,
        branch_create,
        branch_delete,
        apply_schema,
        ensure_indices,
        confirm,
        hold_lease,
        script,
        kill_writer,
    )
}


def break_protocol(part):
    """Switch off one part of the protocol, to show that the tests would notice."""
    match part:
        case "phase_a":
            sidecar.SidecarStore.write = lambda self, note: None
            sidecar.SidecarStore.write_prepared = lambda self, note, prepared: None
        case "restore":
            roll_back._restored = lambda context, note, seen: (
                context.storage.open_version(
                    seen.pin.table_key, seen.location, seen.pin.table_branch, seen.facts.head
                ),
                seen.facts.head,
            )
        case "fork_syncs":
            made = storage_branches.create_branch
            storage_branches.create_branch = lambda *told: (made(*told)[0], ())
        case "found_syncs":
            durability._synced.knows = lambda path: True
        case "confirmation":
            # Merges judged as if they need no confirmation: whatever HEAD is, it is the result.
            observe.classification_mode = lambda kind, version: ClassificationMode.LOOSE
        case None:
            pass
        case _:
            raise ValueError(part)


def run(command):
    break_protocol(command.get("without"))
    if "watched" in command:
        faulthandler.dump_traceback_later(WATCHED_S_MAX, exit=True)
        command["shim"] = Shim(command["watched"].pop("library"))
        command["shim"].arm(**command["watched"])
    try:
        COMMANDS[command["command"]](command)
    except BaseException as error:
        if "shim" in command:
            command["shim"].mark(f"failed {getattr(error, 'kind', type(error).__name__)}")
        raise


def tell(command):
    """What a process of its own would have been told by its environment."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the server's replies are the parent's alone
    if "errors" in command:
        os.dup2(os.open(command["errors"], os.O_WRONLY), 2)
    if "durability" in command:
        os.environ["OMNIGRAPH_DURABILITY"] = command["durability"]
    failpoints._active.update(failpoints.parse_failpoints(command.get("failpoints", "")))


def import_ahead():
    """What calls import when they are made, so that the children need not, each for itself."""
    rooms = (
        "api",
        "branching",
        "engine",
        "maintenance",
        "planning",
        "recovery",
        "pipeline.checks",
        "pipeline.load",
    )
    for name in rooms:
        room = importlib.import_module(f"omnigraph.{name}")
        for each in pkgutil.walk_packages(room.__path__, f"{room.__name__}."):
            importlib.import_module(each.name)


def serve():
    import_ahead()
    gc.freeze()  # what is imported stays; no child looks through it, which would copy every page of it
    print("ready", flush=True)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                command = json.loads(line)
                tell(command)
                run(command)
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status)
        _, waited = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(waited), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve()
    else:
        run(json.loads(sys.argv[1]))
