"""What a command leaves unprepared is there when it is asked for, as in any other process."""

import subprocess
import sys

SPARED = "from omnigraph.cli.startup import spare\nspare()\n"


def run(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_function_of_arrow_is_there_and_works() -> None:
    names = run(
        "import pyarrow.compute as pc\nprint(*sorted(n for n in vars(pc) if callable(getattr(pc, n))))"
    )
    program = (
        "import pyarrow as pa, pyarrow.compute as pc\n"
        "before = len(vars(pc))\n"
        f"missing = [name for name in {names.split()!r} if not callable(getattr(pc, name, None))]\n"
        "assert not missing, missing\n"
        "assert len(vars(pc)) > before + 200, (before, len(vars(pc)))\n"
        "assert not hasattr(pc, 'no_such_function') and not hasattr(pc, 'hash_sum')\n"
        "assert pc.and_(pa.array([True]), pa.array([False])).to_pylist() == [False]\n"
        "assert pc.index_in(pa.array(['b']), value_set=pa.array(['a', 'b'])).to_pylist() == [1]\n"
        "assert pc.round(pa.array([1.25]), ndigits=1).to_pylist() == [1.2]\n"
        "assert pc.function_registry().get_function('add').name == 'add'\n"
        "assert pa.table({'a': [1]}).to_pandas().shape == (1, 1)\n"
    )
    run(SPARED + program)
