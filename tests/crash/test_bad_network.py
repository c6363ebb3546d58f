"""One request to the object store is lost, repeated, delayed, cut or refused: the writer says what is so.

The suite lets some requests of a writer meet each fault, `make torture` every one of every writer, or every n-th
where `OMNIGRAPH_TORTURE_NTH_REQUEST` says so.
"""

import itertools
import os
from collections import Counter
from dataclasses import replace
from http.client import HTTPConnection, HTTPException

import pytest

import omnigraph
from crash.bad_network import BadNetwork, Fault
from crash.people import (
    BRANCH_CREATE,
    BRANCH_DELETE,
    BRANCH_INSERT,
    FAST_FORWARD,
    INSERT,
    LOAD,
    REVERT,
    SCHEMA,
    SWITCH,
    TAG_CREATE,
    TAG_DELETE,
    Model,
    prepare,
    seed,
)
from omnigraph.core.errors import OmnigraphError
from omnigraph.core.errors.kinds import FACTS
from omnigraph.recovery import process_lock
from stores import s3_endpoint, s3_store

pytestmark = [pytest.mark.s3, pytest.mark.crash, pytest.mark.slow, pytest.mark.timeout(7200)]

EVERY_NTH_IN_THE_SUITE = 29
EVERY_NTH_IN_TORTURE = int(os.environ.get("OMNIGRAPH_TORTURE_NTH_REQUEST", "1"))
EXPIRY_S = 1.0
"""A lease that could not be given back is free soon."""
WRITERS = (
    INSERT,
    BRANCH_INSERT,
    LOAD,
    FAST_FORWARD,
    SWITCH,
    REVERT,
    BRANCH_CREATE,
    BRANCH_DELETE,
    TAG_CREATE,
    TAG_DELETE,
)


@pytest.fixture(scope="module")
def network():
    with BadNetwork(s3_endpoint()) as started:
        yield started


@pytest.fixture
def graph(network, monkeypatch):
    monkeypatch.setattr(process_lock, "LEASE_EXPIRY_S", EXPIRY_S)
    monkeypatch.setattr(process_lock, "LEASE_CLOCK_SKEW_S_MAX", 0.0)
    place = s3_store()
    place = replace(place, storage_options=place.storage_options | {"aws_endpoint": network.endpoint})
    graph = omnigraph.init(place.uri, schema=SCHEMA, storage_options=place.storage_options)
    seed(graph)
    graph.place = place
    return graph


class Trial:
    """One writer on one graph, again and again, each time with another request that meets a fault."""

    def __init__(self, graph, network, writer):
        self._graph, self._network, self._writer = graph, network, writer
        self._tags = map(str, itertools.count(1))
        self.outcomes = Counter()

    def requests(self):
        """How many requests the writer makes when none of them meets a fault."""
        return self.run(None, None)

    def run(self, number, fault):
        """Run the writer once; returns how many requests it made. Fails when it did not say what is so."""
        graph, writer, tag = self._graph, self._writer, next(self._tags)
        branch = prepare(graph, writer, tag)
        before = Model.read(graph.export(branch=branch))
        self._network.arm(number, fault)
        try:
            writer.run(graph, tag, branch)
            said = "returned"
        except OmnigraphError as error:
            said = error.kind
        finally:
            counted, _ = self._network.disarm()
        self.outcomes[said] += 1
        where = f"{writer.name}: request {number}, {fault}: {said}"
        with omnigraph.open(graph.place.uri, storage_options=graph.place.storage_options) as opened:
            # A write settles what the first one may have left.
            opened.mutate("query f($n: String) { insert Person { name: $n } }", {"n": f"follow-{tag}"})
            names = {branch, "main", f"b{tag}", f"n{tag}"} & set(opened.branches.list())
            exports = {name: _own(opened.export(branch=name), tag) for name in names}
            found = {"exports": exports, "tags": opened.tags.list()}
            assert opened.pending() == (), where
        graph.refresh()
        shown, after = Model.read(exports[branch]), writer.after(before, tag)
        assert shown in (before, after), where
        if said == "returned":
            assert shown == after, where
            assert writer.check is None or writer.check(found, tag, returned=True) == [], where
        elif FACTS[said].effect_free:
            assert before in (shown, after), where
        return counted

    def end(self):
        assert self._graph.verify().violations == ()


def _own(exported, tag):
    """An export without the row that follows a trial on main."""
    return "\n".join(line for line in exported.splitlines() if f'"follow-{tag}"' not in line)


def trials(graph, network, writer, faults, step):
    trial = Trial(graph, network, writer)
    count = trial.requests()
    met = 0
    for offset, fault in enumerate(faults):
        for number in range(1 + offset % step, count + 1, step):
            trial.run(number, fault)
            met += 1
    trial.end()
    print(f"\n{writer.name}: {count} requests, {met} faults, {dict(trial.outcomes)}, all as it was told")


SIGNED = (
    "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"
)


def sent(network, method, name, body=b"", **headers):
    """One request of a client that tries nothing twice: the status and the content, or None without a whole answer."""
    connection = HTTPConnection(network.endpoint.removeprefix("http://"), timeout=60)
    try:
        connection.request(method, f"/graphs/{name}", body, {"Authorization": SIGNED, **headers})
        with connection.getresponse() as response:
            return response.status, response.read()
    except (HTTPException, ConnectionError):
        return None
    finally:
        connection.close()


@pytest.mark.parametrize("fault", Fault, ids=lambda fault: fault.name.lower())
def test_the_network_does_to_a_request_what_it_says(network, fault):
    name = f"proxied-{fault.name}"
    network.arm(1, fault)
    once = {"If-None-Match": "*"}
    put = sent(network, "PUT", name, b"12345678", **once)
    assert network.disarm() == (1, True)
    stored = sent(network, "GET", name)
    answers = {
        Fault.LOST: None,
        Fault.UNANSWERED: None,
        Fault.TRUNCATED: None,
        Fault.REPEATED: 412,
        Fault.BUSY: 503,
    }
    assert (None if put is None else put[0]) == answers.get(fault, 200)
    assert stored[0] == (404 if fault in {Fault.LOST, Fault.BUSY} else 200)
    network.arm(1, Fault.TRUNCATED)
    assert sent(network, "GET", name) is None, "half of an answer is not an answer"
    network.disarm()


@pytest.mark.parametrize("writer", [INSERT, BRANCH_CREATE, TAG_DELETE], ids=lambda w: w.name)
def test_a_request_that_goes_wrong_loses_nothing(graph, network, writer):
    trials(graph, network, writer, Fault, EVERY_NTH_IN_THE_SUITE)


@pytest.mark.torture
@pytest.mark.parametrize("fault", Fault, ids=lambda fault: fault.name.lower())
@pytest.mark.parametrize("writer", WRITERS, ids=lambda w: w.name)
def test_any_request_that_goes_wrong_loses_nothing(graph, network, writer, fault):
    trials(graph, network, writer, [fault], EVERY_NTH_IN_TORTURE)
