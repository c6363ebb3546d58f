"""What a lane was promised, followed line by line: in the worker itself, and in the parent when the worker is killed.

Between an action whose outcome nobody told and the next look at the graph several states are possible.
"""

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

from chaos.actions import ACTIONS, Arguments, State


@dataclass
class Ledger:
    """The states a lane may be in, and what became of its actions."""

    lane: str
    states: list[State] = field(default_factory=lambda: [State()])
    running: tuple[str, Arguments] | None = None
    counts: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    def note(self, word: str, value: Any) -> None:
        """Follow one line of a worker."""
        match word:
            case "start":
                self.running = (value[0], value[1])
            case "ok":
                self.counts["acknowledged"] += 1
                self.counts[f"ok {self._name()}"] += 1
                self.states, self.running = self._applied(), None
            case "refused":
                self.counts["refused"] += 1
                by = f" of {self._name()}" if value.startswith(("storage", "internal", "drift")) else ""
                self.counts[f"refused {value}{by}"] += 1
                self.running = None
            case "unknown":
                self.counts["unknown"] += 1
                self.counts[f"unknown {value}"] += 1
                self.states, self.running = _different([*self.states, *self._applied()]), None
            case "found":
                self.look(State(**value))
            case "bad":
                self.problems.append(f"{self.lane}: {value}")
                self.running = None
            case _:
                raise ValueError(word)

    def end(self) -> None:
        """The worker is gone: what it was about may have had its effect or not."""
        if self.running is not None:
            self.note("unknown", "killed")

    def look(self, found: State) -> None:
        """Of the states that are possible the graph shows one; what none of them has is a broken promise."""
        shown = [state for state in self.states if state.shows(found)]
        if not shown:
            sure = set.intersection(*(set(state.main) for state in self.states))
            self.counts["lost"] += len(sure - set(found.main)) or 1
            self.problems.append(f"{self.lane}: found {asdict(found)}, promised {self.to_json()}")
            shown = [State(found.main, found.side, dict(found.side or {}), found.tag)]
        self.states = shown

    def to_json(self) -> list[dict[str, Any]]:
        return [asdict(state) for state in self.states]

    def _name(self) -> str:
        return "" if self.running is None else self.running[0]

    def _applied(self) -> list[State]:
        assert self.running is not None
        name, arguments = self.running
        return _different([ACTIONS[name].after(state, arguments) for state in self.states])


def _different(states: list[State]) -> list[State]:
    kept: list[State] = []
    for state in states:
        if state not in kept:
            kept.append(state)
    return kept
