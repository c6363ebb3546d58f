import threading

import pytest

from omnigraph.core.events import Event, Progress, SidecarWritten, Warned, emit, listen, listening


def test_without_a_listener_nothing_happens() -> None:
    assert not listening()
    emit(Warned("nobody hears this"))


def test_a_listener_hears_its_own_context_only() -> None:
    heard: list[Event] = []
    with listen(heard.append):
        emit(SidecarWritten("1"))
        other = threading.Thread(target=emit, args=(SidecarWritten("2"),))
        other.start()
        other.join()
    emit(SidecarWritten("3"))
    assert heard == [SidecarWritten("1")]


def test_a_listener_everywhere_hears_every_thread() -> None:
    heard: list[Event] = []
    with listen(heard.append, everywhere=True):
        other = threading.Thread(target=emit, args=(Progress("load", "stage", 1, None, "rows"),))
        other.start()
        other.join()
    emit(SidecarWritten("late"))
    assert heard == [Progress("load", "stage", 1, None, "rows")]


def fail_after_emitting() -> None:
    emit(Warned("both"))
    raise ZeroDivisionError


def test_listeners_nest_and_end_in_any_case() -> None:
    outer: list[Event] = []
    inner: list[Event] = []
    with listen(outer.append):
        with pytest.raises(ZeroDivisionError), listen(inner.append):
            fail_after_emitting()
        emit(Warned("outer only"))
    assert [one.message for one in outer if isinstance(one, Warned)] == ["both", "outer only"]
    assert [one.message for one in inner if isinstance(one, Warned)] == ["both"]
    assert not listening()


def test_a_listener_that_raises_stops_the_operation() -> None:
    def refuse(event: Event) -> None:
        raise RuntimeError(repr(event))

    with listen(refuse), pytest.raises(RuntimeError, match="stop"):
        emit(Warned("stop"))
