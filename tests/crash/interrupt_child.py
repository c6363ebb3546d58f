"""Four threads write to one graph while the main one of them is interrupted again and again.

`python interrupt_child.py <uri> <interrupts> <seed>` prints one JSON object: what was acknowledged, what
landed, and every error that is neither an interrupt nor the advice to reopen.
"""

import json
import random
import signal
import sys
import threading

import omnigraph
from omnigraph.core.errors import RecoveryRequired

SCHEMA = "node Person { name: String @key  age: I32? }\nedge Knows: Person -> Person\n"
WRITE = """query write($name: String, $age: I32) {
    insert Person { name: $name, age: $age }
    insert Knows { from: $name, to: $name }
}"""
NAMES = "query names() { match { $p: Person  $p knows $p } return { $p.name } }"
WAIT_S = 60


class Writers:
    """What every thread tried and what was acknowledged to it."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.graph = omnigraph.init(uri, schema=SCHEMA)
        self.acknowledged: list[set[str]] = [set() for _ in range(4)]
        self.tried: set[str] = set()
        self.errors: list[str] = []
        self.reopened = 0

    def write(self, thread: int, name: str) -> bool:
        """Write one person and one edge; False when an earlier write had to be settled by an open first."""
        self.tried.add(name)
        try:
            self.graph.mutate(WRITE, {"name": name, "age": thread})
        except RecoveryRequired:
            self.reopened += 1
            omnigraph.open(self.uri).close()
            return False
        self.acknowledged[thread].add(name)
        return True


def write_until(stop: threading.Event, writers: Writers, thread: int) -> None:
    number = 0
    while not stop.is_set():
        number += 1
        try:
            writers.write(thread, f"{thread}-{number}")
        except BaseException as error:
            writers.errors.append(f"thread {thread}: {type(error).__name__}: {error}")


def interrupted_writes(writers: Writers, interrupts: int, seed: int) -> None:
    """Write in this, the main thread, and be interrupted at instants nobody chose."""
    rng = random.Random(seed)
    ready, pause, number = threading.Event(), threading.Event(), 0
    left = interrupts

    def interrupt() -> None:
        while left:
            ready.wait(5)  # an interrupt inside a finalizer is dropped by the interpreter: send another one
            ready.clear()
            pause.wait(rng.random() * 0.06)  # nothing sets it: any instant of the next writes will do
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    thread = threading.Thread(target=interrupt, daemon=True)
    thread.start()
    while left:
        try:
            ready.set()
            while True:
                number += 1
                writers.write(0, f"0-{number}")
        except KeyboardInterrupt:
            left -= 1
        except BaseException as error:
            writers.errors.append(f"main: {type(error).__name__}: {error}")
    ready.set()
    while thread.is_alive():
        try:
            thread.join()
        except KeyboardInterrupt:
            continue


def last_words(writers: Writers) -> list[bool]:
    """Whether each thread number can still write, from a thread of its own."""
    done = [False] * 4

    def write(thread: int) -> None:
        done[thread] = any(writers.write(thread, f"{thread}-last-{attempt}") for attempt in range(3))

    for thread in range(4):
        worker = threading.Thread(target=write, args=(thread,), daemon=True)
        worker.start()
        worker.join(WAIT_S)
    return done


def main() -> None:
    uri, interrupts, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    writers = Writers(uri)
    writers.write(0, "first")  # imports are done; an interrupt inside the import system is not ours to mend
    stop = threading.Event()
    threads = [threading.Thread(target=write_until, args=(stop, writers, n), daemon=True) for n in (1, 2, 3)]
    for thread in threads:
        thread.start()
    interrupted_writes(writers, interrupts, seed)
    stop.set()
    for thread in threads:
        thread.join(WAIT_S)
    present = {row["p.name"] for row in writers.graph.query(NAMES)}
    stuck = [n for n, thread in enumerate(threads, 1) if thread.is_alive()]
    can_write = last_words(writers)
    acknowledged = set().union(*writers.acknowledged)
    after = {row["p.name"] for row in writers.graph.query(NAMES)}
    print(
        json.dumps(
            {
                "acknowledged": len(acknowledged),
                "lost": sorted(acknowledged - after),
                "invented": sorted(present - writers.tried),
                "stuck": stuck,
                "can_write": can_write,
                "errors": writers.errors,
                "reopened": writers.reopened,
                "violations": [str(each) for each in writers.graph.verify().violations],
                "edges": writers.graph.query(
                    "query e() { match { $a: Person  $a knows $b } return { count($b) as n } }"
                )[0]["n"],
                "nodes": writers.graph.query("query n() { match { $a: Person } return { count($a) as n } }")[
                    0
                ]["n"],
            }
        ),
        flush=True,
    )


if __name__ == "__main__":
    main()
