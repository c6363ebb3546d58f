"""What a command leaves unprepared is there when it is asked for, as in any other process."""

import subprocess
import sys

import pytest

SPARED = "from omnigraph.cli.startup import spare\nspare()\n"


def run(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
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


@pytest.mark.slow
def test_masked_arrays_are_there_for_whoever_makes_one() -> None:
    run(
        SPARED
        + "import sys, numpy as np, pyarrow as pa\n"
        + "assert pa.array(np.arange(3)).to_pylist() == [0, 1, 2]\n"
        + "assert 'numpy.ma' not in sys.modules\n"
        + "masked = np.ma.masked_array([1, 2], mask=[False, True])\n"
        + "assert pa.array(masked).to_pylist() == [1, None]\n"
        + "import numpy.ma\n"
        + "assert np.ma is sys.modules['numpy.ma'] and np.ma.arange.__doc__ and np.arange.__doc__\n"
    )


@pytest.mark.slow
def test_the_functions_of_arrow_that_have_two_names_and_options_work() -> None:
    run(
        SPARED
        + "import pyarrow as pa, pyarrow.compute as pc\n"
        + "for fill in (pc.utf8_zero_fill, pc.utf8_zfill):\n"
        + "    assert fill(pa.array(['7']), 3).to_pylist() == ['007']\n"
        + "assert pc.equal(pc.field('a'), 1).equals(pc.field('a') == 1)\n"
    )


LANCE = (
    "import dataclasses, sys, lance\n"
    "from lance.fragment import DataFile, FragmentMetadata\n"
    "usual = dataclasses.dataclass\n"
    "file = DataFile('a.lance', [0], [0], 2, 1, 10)\n"
    "found = [repr(file), file == DataFile('a.lance', [0], [0], 2, 1, 10), usual.__module__]\n"
    "for place in (sys.modules['lance.dataset'], sys.modules['lance.fragment'], lance.LanceOperation):\n"
    "    for name, cls in sorted(vars(place).items()):\n"
    "        if isinstance(cls, type) and dataclasses.is_dataclass(cls):\n"
    "            found.append((name, [(f.name, str(f.type), f.init) for f in dataclasses.fields(cls)]))\n"
    "assert len(found) > 25\n"
    "print(*found, sep='\\n')\n"
)


@pytest.mark.slow
def test_data_classes_of_lance_are_what_they_are_elsewhere() -> None:
    assert run(SPARED + LANCE) == run(LANCE)


def test_modules_of_the_package_are_those_that_the_import_system_finds() -> None:
    program = (
        "import omnigraph.cli.tables as module, omnigraph.api as package\n"
        "for each in (module, package):\n"
        "    spec = each.__spec__\n"
        "    print(each.__file__, spec.cached, spec.loader.name, each.__package__, getattr(each, '__path__', 0))\n"
    )
    assert run(SPARED + program) == run(program)
