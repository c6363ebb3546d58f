"""Calls that share commits do what some order of them, one after the other, would have done."""

import tempfile
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphs import PEOPLE, make_graph, rows_of
from omnigraph.core import bounds
from omnigraph.core.cancel import Cancellation
from omnigraph.core.errors import Cancelled, ConstraintViolation, DeadlineExceeded, KeyConflict
from omnigraph.core.failpoints import Callback, Window, activate
from waiting_calls import PERSON, behind_a_commit

NEW = "query n($name: String, $nick: String?) { insert new Person { name: $name, nick: $nick } }"
EDGE = "query e($from: String, $to: String) { insert Knows { from: $from, to: $to } }"
BOTH = """query b($name: String, $nick: String?, $to: String) {
  insert Person { name: $name, nick: $nick }
  insert Knows { from: $name, to: $to } }"""
EVENT = "query v($event: String, $age: I32) { insert Event { name: $event, age: $age } }"
SCHEMA = PEOPLE + "\nnode Event { name: String @key  age: I32?  @range(age, 0..1) }"
STOPS = {"cancelled": Cancelled, "overdue": DeadlineExceeded}
NAMES = st.sampled_from("abcd")
NICKS = st.sampled_from([None, "x", "y"])


@dataclass(frozen=True)
class Asked:
    """One call."""

    query: str
    params: tuple[tuple[str, Any], ...]
    stopped: str = ""
    """It is cancelled, or its time is over."""
    late: bool = False
    """Not while it waits, but when the group it may be in has written its files."""


class Clock:
    """The monotonic clock of time limits, moved on by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


@dataclass
class State:
    """What the graph must show."""

    people: dict[str, str | None] = field(default_factory=lambda: {"first": None})
    knows: list[tuple[str, str]] = field(default_factory=list)
    events: dict[str, int] = field(default_factory=dict)

    def after(self, asked: Asked) -> "State | None":
        """What one call makes of it; None when it must be refused."""
        given_params = dict(asked.params)
        people, knows, events = dict(self.people), list(self.knows), dict(self.events)
        if asked.query == EVENT:
            events[given_params["event"]] = given_params["age"]
            if given_params["age"] > 1:
                return None
        name = given_params.get("name")
        if name is not None:
            if asked.query == NEW and name in people:
                return None
            people[name] = given_params["nick"]
        if asked.query == BOTH:
            knows.append((str(name), str(given_params["to"])))
        elif asked.query == EDGE:
            knows.append((str(given_params["from"]), str(given_params["to"])))
        nicks = [nick for nick in people.values() if nick is not None]
        if len(set(nicks)) < len(nicks) or any(end not in people for ends in knows for end in ends):
            return None
        return State(people, knows, events)


def params(**values: Any) -> Any:
    return st.fixed_dictionaries(values).map(lambda found: tuple(found.items()))


STOPPED = st.sampled_from(["", "", "cancelled", "overdue"])
EVENTS = st.builds(Asked, st.just(EVENT), params(event=NAMES, age=st.integers(0, 2)), STOPPED, st.booleans())
"""Of a type whose rules speak of single rows."""
CALLS = st.one_of(
    EVENTS,
    st.builds(Asked, st.sampled_from([PERSON, NEW]), params(name=NAMES, nick=NICKS), STOPPED, st.booleans()),
    st.builds(Asked, st.just(EDGE), params(**{"from": NAMES, "to": NAMES}), STOPPED, st.booleans()),
    st.builds(Asked, st.just(BOTH), params(name=NAMES, nick=NICKS, to=NAMES), STOPPED, st.booleans()),
)


@pytest.mark.model
@settings(max_examples=20, deadline=None)
@given(st.one_of(st.lists(each, min_size=2, max_size=9) for each in (CALLS, EVENTS)), st.booleans())
def test_grouped_calls_equal_some_order_of_them(calls: list[Asked], disturbed: bool) -> None:  # noqa: FBT001
    """`disturbed`: as beside another process, where a group waits for its turn."""
    with (
        tempfile.TemporaryDirectory() as place,
        pytest.MonkeyPatch.context() as monkeypatch,
        make_graph(Path(place) / "g", SCHEMA) as graph,
    ):
        cancels, clock = [Cancellation() for _ in calls], Clock()
        monkeypatch.setattr(bounds, "time", clock)

        def stop(*, late: bool) -> None:
            clock.now = 9.0 if late else 5.0
            for asked, each in zip(calls, cancels, strict=True):
                if asked.stopped == "cancelled" and asked.late is late:
                    each.request()

        def begin() -> None:
            graph.session.disturbed = disturbed
            stop(late=False)

        def call(asked: Asked, cancel: Cancellation) -> Any:
            timeout_s = 3600 if asked.stopped != "overdue" else 9 if asked.late else 5
            return graph.mutate(asked.query, dict(asked.params), cancel=cancel, timeout_s=timeout_s)

        with behind_a_commit(graph, monkeypatch) as outcomes:
            works = [partial(call, *each) for each in zip(calls, cancels, strict=True)]
            with activate(Window.MUTATION_POST_STAGE_PRE_QUEUE, Callback(lambda _: stop(late=True))):
                results = outcomes(*works, before=begin)
        shown = {name: row.get("nick") for name, row in rows_of(graph, "Person").items()}
        knows = sorted((row["from"], row["to"]) for row in rows_of(graph, "Knows").values())
        events = {name: row["age"] for name, row in rows_of(graph, "Event").items()}
        versions = {each.id: each.manifest_version for each in graph.commits.list()}
        assert graph.verify().ok
        assert graph.pending() == ()

    landed = sorted(
        (versions[result.commit.id], number)
        for number, result in enumerate(results)
        if not isinstance(result, BaseException)
    )
    states = [State()]
    for _, commit in groupby(landed, key=lambda each: each[0]):
        together = [number for _, number in commit]
        assert {results[number].commit.requests for number in together} == {len(together)}
        state = states[-1]
        for number in together:
            after = state.after(calls[number])
            assert after is not None, "a call landed that must have been refused"
            state = after
        states.append(state)
    assert (shown, knows) == (states[-1].people, sorted(states[-1].knows))
    assert events == states[-1].events
    for asked, result in zip(calls, results, strict=True):
        if isinstance(result, BaseException):
            assert isinstance(result, (*STOPS.values(), ConstraintViolation, KeyConflict)), repr(result)
            if isinstance(result, tuple(STOPS.values())):
                assert type(result) is STOPS.get(asked.stopped)
            else:
                assert any(state.after(asked) is None for state in states), "refused for no reason"
        else:
            assert not asked.stopped or asked.late, "stopped before it was taken, and written all the same"
