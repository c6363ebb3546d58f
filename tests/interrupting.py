"""Ctrl-C between any two lines of some modules."""

import linecache
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any


class Interrupted:
    """Where a call was interrupted, and what the interrupt says about the outcome."""

    def __init__(self, where: str, error: KeyboardInterrupt) -> None:
        self.where = where
        self.notes = getattr(error, "__notes__", [])


class _InterruptAt:
    """Raises KeyboardInterrupt at the n-th line of the modules that runs in this thread."""

    def __init__(self, number: int, modules: set[str], passed_over: set[str]) -> None:
        self._left = number
        self._modules = modules
        self._passed_over = passed_over
        self.where = ""

    def __call__(self, frame: FrameType, _event: str, _argument: Any) -> Any:
        code = frame.f_code
        return self._line if code.co_filename in self._modules and self._counts(code) else None

    def _counts(self, code: CodeType) -> bool:
        return code.co_name not in self._passed_over

    def _line(self, frame: FrameType, event: str, _argument: Any) -> Any:
        code = frame.f_code
        if event == "line" and not _is_spared(linecache.getline(code.co_filename, frame.f_lineno)):
            self._left -= 1
            if self._left == 0:
                self.where = f"{Path(code.co_filename).name}:{frame.f_lineno} {code.co_name}"
                sys.settrace(None)
                raise KeyboardInterrupt
        return self._line


def _is_spared(line: str) -> bool:
    """At the word `try` nothing is called, and leaving a `with` is not interrupted before its end is called."""
    return line.strip() == "try:" or line.lstrip().startswith("with ")


def interrupted_at(
    number: int, call: Callable[[], object], modules: set[ModuleType], passed_over: set[str]
) -> Interrupted | None:
    """Call until the n-th line; None when it ended before. Functions in `passed_over` have no lines."""
    at = _InterruptAt(number, {str(module.__file__) for module in modules}, passed_over)
    tracing = sys.gettrace()
    sys.settrace(at)
    try:
        call()
    except KeyboardInterrupt as error:
        return Interrupted(at.where, error)
    finally:
        sys.settrace(tracing)
    return None
