"""The Spark source of a graph that is named by its server: the server says which commit, the storage gives rows."""

import pyarrow as pa
import pytest

from omnigraph.api.graph import Graph
from omnigraph.client.spark import AnyGraphSource
from omnigraph.core.errors import BadRequest, BranchNotFound, CommitNotFound, Forbidden, Unauthorized
from omnigraph.policy.bundle import parse_bundle
from omnigraph.policy.decisions import BundlePolicy
from server.conftest import ADD, Running, Serve

POLICY = """\
version: 1
groups: { crew: [ines] }
protected_branches: [main]
rules: [{ id: r, allow: { actors: { group: crew }, actions: [read], branch_scope: protected } }]
"""


@pytest.fixture
def server(serve: Serve) -> Running:
    return serve({"ines": "t1"}, BundlePolicy(parse_bundle(POLICY, "p")[0]))


def source(server: Running, harbor: Graph, **options: str) -> AnyGraphSource:
    given = {"graph": f"{server.url}/graphs/harbor", "store": harbor.uri, "token": "t1", "type": "Ship"}
    return AnyGraphSource({**given, **options})


def rows(made: AnyGraphSource) -> int:
    from pyspark.sql.pandas.types import from_arrow_schema

    reader = made.reader(from_arrow_schema(made.scan.schema))
    return sum(pa.Table.from_batches(reader.read(each)).num_rows for each in reader.partitions())


@pytest.mark.slow
def test_the_server_says_which_commit_is_read(server: Running, harbor: Graph) -> None:
    first = harbor.commits.head().id
    before = source(server, harbor)
    harbor.session.policy = None
    harbor.mutate(ADD, {"imo": "S9", "name": "x"})
    harbor.tags.create("v1", at=first)
    head = harbor.commits.head().id
    assert [source(server, harbor, **at).scan.commit for at in ({}, {"branch": "main"}, {"at": "main"})] == (
        [head] * 3
    )
    assert [source(server, harbor, at=at).scan.commit for at in ("v1", "main~1", first)] == [first] * 3
    # A frame stays at the commit it was made for, and its rows come from the storage.
    assert (rows(before), rows(source(server, harbor))) == (2, 3)


def test_who_may_not_read_a_state_gets_no_frame_of_it(server: Running, harbor: Graph) -> None:
    harbor.session.policy = None
    harbor.branches.create("topic")
    hidden = harbor.mutate(ADD, {"imo": "S9", "name": "x"}, branch="topic").commit
    assert hidden is not None
    for options, error in (
        ({"branch": "topic"}, Forbidden),
        ({"at": hidden.id}, CommitNotFound),
        ({"at": "topic"}, CommitNotFound),
        ({"token": "other"}, Unauthorized),
    ):
        with pytest.raises(error):
            source(server, harbor, **options)


def test_what_a_source_needs_is_said(server: Running, harbor: Graph) -> None:
    for options, said in (
        ({"store": ""}, "does not say where it is"),
        ({"graph": server.url}, "ends with its id"),
        ({"graph": harbor.uri}, "goes with the address of a server"),
        ({"stroe": "x"}, "unknown option"),
    ):
        with pytest.raises(BadRequest, match=said):
            source(server, harbor, **options)
    with pytest.raises((BranchNotFound, Forbidden)):
        source(server, harbor, branch="nope")
