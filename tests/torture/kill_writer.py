"""A writer that works until it is killed, and the record by which its promises are checked afterwards.

Every operation is announced in a log before it starts and acknowledged after it returned. The log is synced, so
it survives the kill as the graph must.
"""

import json
import os
import random
from dataclasses import dataclass, field
from pathlib import Path

SCHEMA = """
node Person { name: String @key  age: I64? }
edge Knows: Person -> Person { since: I64? }
edge Likes: Person -> Person
"""

INSERT = """query w($a: String, $b: String, $n: I64) {
  insert Person { name: $a, age: $n }
  insert Person { name: $b, age: $n }
  insert Knows { from: $a, to: $b, since: $n }
  insert Likes { from: $b, to: $a } }"""
UPDATE = """query w($a: String, $n: I64) {
  update Person set { age: $n } where name = $a
  update Knows set { since: $n } where from = $a }"""
DELETE = "query w($a: String) { delete Person where name = $a }"


@dataclass
class Slot:
    """What one writer's part of the graph must be. Names of different writers never meet."""

    people: dict = field(default_factory=dict)
    knows: dict = field(default_factory=dict)
    likes: set = field(default_factory=set)

    def apply(self, operation):
        kind, name, number = operation
        if kind == "merge":
            for part in name:
                self.apply(part)
        elif kind == "insert":
            self.people |= {f"{name}a": number, f"{name}b": number}
            self.knows[f"{name}a", f"{name}b"] = number
            self.likes.add((f"{name}b", f"{name}a"))
        elif kind == "update":
            self.people[name] = number
            self.knows = {ends: number if ends[0] == name else since for ends, since in self.knows.items()}
        else:
            del self.people[name]
            self.knows = {ends: since for ends, since in self.knows.items() if name not in ends}
            self.likes = {ends for ends in self.likes if name not in ends}
        return self

    def copy(self):
        return Slot(dict(self.people), dict(self.knows), set(self.likes))

    @classmethod
    def read(cls, exported, prefix):
        """The part of an export that belongs to the writer of this prefix."""
        slot = cls()
        for line in exported.splitlines():
            value = json.loads(line)
            start = value["data"]["name"] if "type" in value else value["from"]
            if not start.startswith(prefix):
                continue
            if "type" in value:
                assert start not in slot.people, f"{start} occurs twice"
                slot.people[start] = value["data"]["age"]
            elif value["edge"] == "Knows":
                assert (start, value["to"]) not in slot.knows
                slot.knows[start, value["to"]] = value["data"]["since"]
            else:
                assert (start, value["to"]) not in slot.likes
                slot.likes.add((start, value["to"]))
        return slot


def run(graph, operation, prefix, say, branch="main"):
    """One operation as one mutation, or as one merge of several."""
    kind, name, number = operation
    if kind == "merge":
        side = f"{prefix}{number}"
        graph.branches.create(side)
        for part in name:
            run(graph, part, prefix, say, side)
        say("merging", side)
        graph.branches.merge(side, into=branch, actor="kill")
        graph.branches.delete(side)
    elif kind == "insert":
        values = {"a": f"{name}a", "b": f"{name}b", "n": number}
        graph.mutate(INSERT, values, branch=branch, actor="kill")
    elif kind == "update":
        graph.mutate(UPDATE, {"a": name, "n": number}, branch=branch, actor="kill")
    else:
        graph.mutate(DELETE, {"a": name}, branch=branch, actor="kill")


def choose(slot, randomness, prefix, number, merge_share):
    """The next operation of a writer."""
    roll = randomness.random()
    insert = ["insert", f"{prefix}{number}", number]
    if len(slot.people) < 2:
        return insert
    name, other = randomness.sample(sorted(slot.people), 2)
    update, delete = ["update", name, number], ["delete", other, number]
    if randomness.random() < merge_share:
        return ["merge", [insert, update, delete], number]
    return insert if roll < 0.5 else update if roll < 0.8 else delete


def work(command):
    """Write until killed. An outcome the caller cannot know is settled by reopening and looking."""
    import omnigraph
    from omnigraph.core.errors import ConflictError, RecoveryRequired, ResourceBusy

    with Path(command["log"]).open("a") as log:

        def say(word, value):
            log.write(json.dumps([word, value]) + "\n")
            log.flush()
            os.fsync(log.fileno())

        say("pid", os.getpid())
        randomness = random.Random(command["seed"])
        prefix = command["prefix"]
        graph = omnigraph.open(command["path"])
        for side in graph.branches.list():
            if side.startswith(prefix):  # of a merge that was killed
                graph.branches.delete(side)
        slot = Slot.read(graph.export(), prefix)
        number = command["number"]
        while True:
            number += 1
            operation = choose(slot, randomness, prefix, number, command["merge_share"])
            say("start", operation)
            try:
                run(graph, operation, prefix, say)
            except (ConflictError, ResourceBusy):
                say("refused", operation)
                continue
            except RecoveryRequired:
                graph = omnigraph.open(command["path"])
                found = Slot.read(graph.export(), prefix)
                done = slot.copy().apply(operation)
                if found not in (slot, done):
                    say("violation", f"{operation}: neither before nor after")
                    return
                say("returned" if found == done else "refused", operation)
                slot = found
                continue
            slot.apply(operation)
            say("returned", operation)


def promised(log_lines, before):
    """What the graph may show: everything acknowledged, with or without the operation that was running."""
    state, running = before.copy(), None
    count = 0
    for line in log_lines:
        try:
            word, value = json.loads(line)
        except ValueError:
            break  # the last line may be torn by the kill; what it announced never started
        match word:
            case "start":
                running = value
            case "returned":
                state.apply(value)
                running = None
                count += 1
            case "refused":
                running = None
            case "violation":
                raise AssertionError(value)
    return [state] if running is None else [state, state.copy().apply(running)], count
