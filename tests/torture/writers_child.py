"""One process of the torture run: `python writers_child.py <uri> <seed> <threads> <seconds> <log>`."""

import json
import random
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import omnigraph
from omnigraph.core.errors import OmnigraphError
from torture.writers_model import query_text, random_mutation


def write_until(graph, seed: int, end: float, log, lock: threading.Lock) -> None:
    rng = random.Random(seed)
    while time.monotonic() < end:
        steps = random_mutation(rng)
        text, params = query_text(steps)
        entry = {"steps": steps, "before": graph.commits.head().id}
        try:
            result = graph.mutate(text, params, actor=f"w{seed}")
            entry["commit"] = None if result.commit is None else result.commit.id
            entry["counts"] = [result.affected_nodes, result.affected_edges]
            entry["ids"] = [each.id for each in result.inserted]
        except OmnigraphError as error:
            entry["kind"] = error.kind
            entry["rule"] = error.to_dict().get("constraint", {}).get("rule")
            entry["text"] = str(error)
        entry["after"] = graph.commits.head().id
        with lock:
            log.write(json.dumps(entry) + "\n")


def main() -> None:
    uri, seed, threads, seconds, log_path = sys.argv[1:]
    lock = threading.Lock()
    failures: list[BaseException] = []
    with Path(log_path).open("w") as log, omnigraph.open(uri) as graph:
        end = time.monotonic() + float(seconds)

        def guarded(number: int) -> None:
            try:
                write_until(graph, int(seed) * 100 + number, end, log, lock)
            except BaseException as error:
                failures.append(error)
                raise

        workers = [threading.Thread(target=guarded, args=(n,)) for n in range(int(threads))]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    if failures:
        raise SystemExit(f"{len(failures)} writers failed: {failures[0]!r}")


if __name__ == "__main__":
    main()
