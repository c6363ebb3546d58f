"""Many threads that write small things until the process is killed in the midst of a window.

`python crowd_child.py GRAPH DIRECTORY ROUND WINDOW ARRIVAL THREADS`: the process is killed at that arrival at
the window. A file names every request before it is sent, another one every request that was acknowledged.
With `-` for the window it lives, and ends when there is nothing more to read.
"""

import itertools
import os
import signal
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

import omnigraph
from omnigraph.core.failpoints import Callback, Window, activate

LIVES = "-"
WRITE = """query w($tag: String) {
  insert Person { name: $tag }
  insert Note { text: $tag } }"""


def send(graph, tag):
    return graph.mutate(WRITE, {"tag": tag}, idempotency_key=tag, actor="crowd")


def main(path, directory, round_number, window, arrival, threads):
    sent, acknowledged = (
        os.open(Path(directory) / name, os.O_CREAT | os.O_APPEND | os.O_WRONLY) for name in ("sent", "acked")
    )
    arrivals = itertools.count(1)

    def kill(_window):
        if next(arrivals) == int(arrival):
            os.kill(os.getpid(), signal.SIGKILL)

    over = threading.Event()

    def work(graph, thread):
        for number in itertools.count():
            if over.is_set():
                return
            tag = f"{round_number}-{thread}-{number}"
            os.write(sent, f"{tag}\n".encode())
            send(graph, tag)
            os.write(acknowledged, f"{tag}\n".encode())

    with omnigraph.open(path) as graph, ExitStack() as killed:
        if window != LIVES:
            killed.enter_context(activate(Window(window), Callback(kill)))
        working = [threading.Thread(target=work, args=(graph, n)) for n in range(int(threads))]
        for thread in working:
            thread.start()
        if window == LIVES:
            print("writing", flush=True)
            sys.stdin.read()
            over.set()
        for thread in working:
            thread.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
