"""Every failure of the storage below is one of ours, chosen without reading its text."""

import os
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from omnigraph.core.errors import (
    IoFailure,
    OmnigraphError,
    StorageConfiguration,
    StorageNotFound,
    StoragePermanent,
    StorageTransient,
    StorageUnknown,
)
from omnigraph.storage.failures import (
    Circumstances,
    os_failure,
    substrate,
    substrate_failure,
    tidy,
    translated,
)
from omnigraph.storage.objects import open_adapter
from stores import PERSON, PLACE, STAMP, Store, content, filled, local_store, memory_store, rows, s3_store

NOBODY = 65534


def in_child(place: Path, body: str) -> dict[str, str]:
    """Run code against a prepared graph in another process; what it printed, as `name=value` lines."""
    code = textwrap.dedent("""
        import os, resource, sys, lance, numpy, pyarrow, obstore, obstore.store
        from pathlib import Path
        from omnigraph.core.errors import OmnigraphError
        from stores import PERSON, PLACE, STAMP, Store, content, rows
        store = Store(sys.argv[1])
        tables = store.tables()
        base = tables.open_head(PERSON, PLACE, None)
        content(tables, base)

        def attempt(name, call):
            try:
                call()
            except OmnigraphError as error:
                print(f"{name}={error.kind}|{error.message}", flush=True)
            else:
                print(f"{name}=done", flush=True)
    """) + textwrap.dedent(body)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, str(place)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return dict(line.split("=", 1) for line in done.stdout.splitlines())


@pytest.fixture
def open_place() -> Iterator[Path]:
    """A directory that every user of the machine may enter, unlike those of the test run."""
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        yield Path(place)


def listing(place: Path) -> dict[str, bytes]:
    return {str(p.relative_to(place)): p.read_bytes() for p in sorted(place.rglob("*")) if p.is_file()}


@pytest.mark.slow
def test_a_disk_that_takes_no_more_is_io_and_changes_nothing(tmp_path: Path) -> None:
    store = local_store(tmp_path)
    tables = store.tables()
    filled(tables, ["a"])
    before = listing(Path(store.uri))
    said = in_child(
        Path(store.uri),
        """
        staged = tables.stage_append(base, rows(["staged"]), STAMP)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
        many = rows(f"k{n}" for n in range(200_000))
        attempt("stage", lambda: tables.stage_append(base, many, STAMP))
        attempt("commit", lambda: tables.commit_staged(base, staged))
        attempt("text", lambda: store.adapter().write_text("note", "x" * 1000))
        attempt("create", lambda: tables.create_table(PERSON, "nodes/other", base.schema, STAMP))
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        attempt("again", lambda: tables.commit_staged(base, staged))
        """,
    )
    assert {name: text.split("|")[0] for name, text in said.items()} == {
        "stage": "io",
        "commit": "io",
        "text": "io",
        "create": "io",
        "again": "done",
    }
    assert all(".rs:" not in text and "LanceError" not in text for text in said.values())
    after = listing(Path(store.uri))
    hint = f"{PLACE}/_versions/latest_version_hint.json"
    assert {name: after[name] for name in before if name != hint} == {
        n: b for n, b in before.items() if n != hint
    }
    assert "note" not in after
    assert content(tables, tables.open_head(PERSON, PLACE, None)) == {"a": 0, "staged": 0}


@pytest.mark.slow
def test_lost_permission_is_a_configuration_error_and_changes_nothing(open_place: Path) -> None:
    store = local_store(open_place)
    tables = store.tables()
    filled(tables, ["a", "b"])
    adapter = store.adapter()
    adapter.write_text("note", "1")
    place = Path(store.uri)
    before = listing(place)
    for directory in [place, *(p for p in place.rglob("*") if p.is_dir())]:
        directory.chmod(0o555)
    try:
        said = in_child(
            place,
            f"""
            if os.getuid() == 0:
                os.setgid({NOBODY})
                os.setuid({NOBODY})
            attempt("stage", lambda: tables.stage_append(base, rows(["x"]), STAMP))
            attempt("delete", lambda: tables.stage_delete(base, STAMP, predicate="id = 'a'"))
            attempt("fork", lambda: tables.create_branch(PERSON, PLACE, "b", None, base.version))
            attempt("create", lambda: tables.create_table(PERSON, "nodes/other", base.schema, STAMP))
            attempt("text", lambda: store.adapter().write_text("note", "2"))
            attempt("read", lambda: content(tables, tables.open_head(PERSON, PLACE, None)))
            """,
        )
    finally:
        for directory in [place, *(p for p in place.rglob("*") if p.is_dir())]:
            directory.chmod(0o755)
    assert {name: text.split("|")[0] for name, text in said.items()} == {
        **dict.fromkeys(("stage", "delete", "fork", "create", "text"), "storage_configuration"),
        "read": "done",
    }
    assert listing(place) == before


@pytest.mark.slow
def test_denied_access_is_never_taken_for_absence(open_place: Path) -> None:
    store = local_store(open_place)
    filled(store.tables(), ["a"])
    adapter = store.adapter()
    adapter.write_text("__recovery/x.json", "{}")
    closed = Path(store.uri) / "__recovery"
    closed.chmod(0o000)
    try:
        said = in_child(
            Path(store.uri),
            f"""
            if os.getuid() == 0:
                os.setgid({NOBODY})
                os.setuid({NOBODY})
            adapter = store.adapter()
            attempt("read", lambda: adapter.read_text_if_exists("__recovery/x.json"))
            attempt("exists", lambda: adapter.exists("__recovery/x.json"))
            attempt("list", lambda: adapter.list_dir("__recovery"))
            attempt("probe", lambda: adapter.identity("__recovery/x.json"))
            print("open=" + str(content(tables, tables.open_head(PERSON, PLACE, None))))
            """,
        )
    finally:
        closed.chmod(0o755)
    assert said.pop("open") == "{'a': 0}", "the rest of the graph is still readable"
    assert {text.split("|")[0] for text in said.values()} == {"storage_configuration"}
    assert len(said) == 4


def test_a_missing_data_file_is_named(table_store: Store) -> None:
    tables = table_store.tables()
    handle = filled(tables, ["a"], ["b"])
    (_, second) = tables.fragments(handle)
    table_store.adapter().delete(second.files[0])
    fresh = table_store.tables()
    handle = fresh.open_head(PERSON, PLACE, None)
    for read in (
        lambda: fresh.read(handle),
        lambda: fresh.scan(handle).read_all(),
        lambda: fresh.count_rows(handle, filter="n = 0"),
        lambda: fresh.stage_delete(handle, STAMP, predicate="n = 0"),
        lambda: fresh.stage_merge_insert(handle, rows(["b"]), STAMP),
    ):
        with pytest.raises(StorageNotFound) as caught:
            read()
        assert second.files[0] in str(caught.value)
        assert ".rs:" not in str(caught.value)
    assert fresh.head_version(PLACE, None) == handle.version


def test_a_missing_deletion_file_is_named(tmp_path: Path) -> None:
    store = local_store(tmp_path)
    tables = store.tables()
    base = filled(tables, ["a", "b"])
    staged = tables.stage_delete(base, STAMP, predicate="id = 'a'")
    assert staged is not None
    after = tables.commit_staged(base, staged)
    (fragment,) = tables.fragments(after)
    store.adapter().delete(fragment.deletions)
    fresh = store.tables()
    with pytest.raises(StorageNotFound, match=r"_deletions/"):
        fresh.read(fresh.open_head(PERSON, PLACE, None))


def test_a_wrong_filter_is_reported_without_foreign_source_places(tmp_path: Path) -> None:
    tables = local_store(tmp_path).tables()
    handle = filled(tables, ["a"])
    with pytest.raises(StorageUnknown) as caught:
        tables.read(handle, filter="nosuchcolumn = 1")
    assert "nosuchcolumn" in str(caught.value)
    assert ".rs:" not in str(caught.value)


def test_an_unreachable_store_is_transient() -> None:
    options = {
        "aws_endpoint": "http://127.0.0.1:9",
        "allow_http": "true",
        "aws_region": "us-east-1",
        "aws_access_key_id": "x",
        "aws_secret_access_key": "x",
        "client_max_retries": "0",
        "client_retry_timeout": "1",
    }
    adapter = open_adapter("s3://bucket/graph", options)
    with pytest.raises(StorageTransient):
        adapter.read_text_if_exists("x")


@pytest.mark.s3
def test_a_missing_bucket_is_not_an_empty_graph() -> None:
    store = s3_store()
    adapter = open_adapter("s3://nosuchbucket/graph", store.storage_options)
    with pytest.raises(OmnigraphError):
        adapter.write_text("x", "1")


def test_addresses_nobody_supports_are_configuration_errors() -> None:
    with pytest.raises(StorageConfiguration, match="ftp"):
        open_adapter("ftp://host/graph")
    with pytest.raises(StorageConfiguration):
        open_adapter("")
    with pytest.raises(StorageConfiguration):
        open_adapter("s3://bucket/graph", {"no_such_option": "1"})


def write_to_the_full_device() -> None:
    with translated("/dev/full"), Path("/dev/full").open("w") as device:
        device.write("x" * 10)
        device.flush()


def test_a_full_device_says_so() -> None:
    with pytest.raises(IoFailure, match="No space left") as caught:
        write_to_the_full_device()
    assert caught.value.hint is not None


def test_error_numbers_choose_the_class() -> None:
    import errno

    cases = {
        errno.ENOENT: StorageNotFound,
        errno.EACCES: StorageConfiguration,
        errno.EROFS: StorageConfiguration,
        errno.ENOSPC: IoFailure,
        errno.EDQUOT: IoFailure,
        errno.EFBIG: IoFailure,
        errno.EIO: IoFailure,
        errno.ENOTDIR: StoragePermanent,
        errno.ETIMEDOUT: StorageTransient,
    }
    for number, cls in cases.items():
        assert type(os_failure(OSError(number, "text nobody reads"), "x")) is cls


def test_what_lance_raises_is_settled_by_asking_the_storage(tmp_path: Path) -> None:
    fine = Circumstances("table", needed=lambda: [str(tmp_path)], directory=str(tmp_path / "not" / "there"))
    assert type(substrate_failure(ValueError("disk is full, permission denied"), fine)) is StorageUnknown
    gone = Circumstances("table", needed=lambda: [str(tmp_path / "file")])
    assert type(substrate_failure(OSError("anything"), gone)) is StorageNotFound
    assert type(substrate_failure(OSError(13, "numbered"), gone)) is StorageConfiguration


def test_programming_errors_are_not_dressed_up() -> None:
    with pytest.raises(TypeError), substrate(lambda: Circumstances("table")):
        raise TypeError("a defect of ours")
    with pytest.raises(KeyError), translated("x"):
        raise KeyError("a defect of ours")


def test_foreign_source_places_are_removed_from_messages() -> None:
    text = "LanceError(IO): Not found: a/b, /home/x/rust/lance/src/io.rs:653:26, /rustc/48a/core.rs:1\nmore"
    assert tidy(OSError(text)) == "LanceError(IO): Not found: a/b"


def test_a_memory_store_is_shared_by_name() -> None:
    store = memory_store()
    store.adapter().write_text("x", "1")
    assert open_adapter(store.uri).read_text("x") == "1"
    assert memory_store().adapter().read_text_if_exists("x") is None


@pytest.mark.slow
def test_a_killed_writer_leaves_no_half_text(tmp_path: Path) -> None:
    store = local_store(tmp_path)
    filled(store.tables(), ["a"])
    store.adapter().write_text("note", "old")
    code = textwrap.dedent("""
        import os, signal, sys
        from omnigraph.core.events import DurableOperation, listen
        from stores import Store
        def hear(event):
            if isinstance(event, DurableOperation) and event.kind == "sync_file" and event.moment == "after":
                os.kill(os.getpid(), signal.SIGKILL)
        with listen(hear):
            Store(sys.argv[1]).adapter().write_text("note", "new")
    """)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, store.uri],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        check=False,
        timeout=120,
    )
    assert done.returncode == -signal.SIGKILL
    adapter = store.adapter()
    assert adapter.read_text("note") == "old"
    assert adapter.list_dir("") == ["note"], "the leftover under its temporary name is hidden"
    adapter.write_text("note", "newer")
    assert adapter.read_text("note") == "newer"
