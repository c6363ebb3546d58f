"""`make bench`: every workload of this directory, one after the other, each in its own process.

`python -m benchmarks [NAME...]` runs the named ones only. A workload is a module with a `main`: it prints
ratios against what a user would pick instead and exits with 1 when a goal is missed.
"""

import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent


def workloads() -> list[str]:
    """The names of all workloads, in order."""
    return sorted(path.stem for path in HERE.glob("*.py") if not path.stem.startswith("_"))


def main(chosen: list[str]) -> int:
    """Run the chosen workloads, or all of them, and say which missed a goal."""
    known = workloads()
    unknown = sorted(set(chosen) - set(known))
    if unknown:
        print(f"unknown workload {', '.join(unknown)}; known: {', '.join(known)}")
        return 2
    missed: list[str] = []
    for name in chosen or known:
        print(f"\n== {name}", flush=True)
        start = time.perf_counter()
        # A fresh process each: caches, threads and a JVM of one workload must not help or hinder the next.
        done = subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], cwd=HERE.parent, check=False)
        print(f"-- {name}: {time.perf_counter() - start:.0f} s", flush=True)
        if done.returncode != 0:
            missed.append(name)
    print(f"\nmissed goals: {', '.join(missed)}" if missed else "\nevery workload met its goals")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
