"""What `cli/startup` makes libraries put off is put off with the versions that are installed.

A version that is built otherwise breaks nothing: the command only loads more again. So each saving is looked
at here, or nobody would notice.
"""

import subprocess
import sys

import pytest

SAVINGS = {
    "pyarrow does not ask for pandas": """
import pyarrow as pa
assert pa.array([1, None]).to_pylist() == [1, None] and pa.table({"a": [1]}).num_rows == 1
assert "pandas" not in sys.modules
""",
    "pyarrow.compute wraps what is named": """
import pyarrow, pyarrow.compute as pc
functions = set(pc.function_registry().list_functions())
assert len(functions) > 200
assert len(functions & vars(pc).keys()) < 20, sorted(functions & vars(pc).keys())
before = len(vars(pc))
assert pc.add(1, 2).as_py() == 3 and "add" in vars(pc) and len(vars(pc)) == before + 1
""",
    "pyarrow.compute reads no documentation": """
import pyarrow.compute as pc
pc.add, pc.sum
docscrape = sys.modules["pyarrow.vendored.docscrape"]
assert "NumpyDocString" not in vars(docscrape)
assert docscrape.NumpyDocString and "NumpyDocString" in vars(docscrape)
""",
    "numpy leaves masked arrays out": """
import numpy as np, pyarrow as pa
assert pa.array(np.arange(3)).to_pylist() == [0, 1, 2]
assert "numpy.ma" not in sys.modules
""",
    "numpy leaves its documentation out": """
from omnigraph.cli.startup import _Undocumented
import numpy as np
assert len(_Undocumented.waiting) == 2 and not np.arange.__doc__ and not np.float64.is_integer.__doc__
import numpy.ma
assert not _Undocumented.waiting and np.arange.__doc__ and np.ma.arange.__doc__
""",
    "msgspec needs no typing_extensions": """
import msgspec
assert msgspec.json.decode(b'{"a": [1]}') == {"a": [1]}
assert "typing_extensions" not in sys.modules
""",
    "lance makes its data classes late": """
from omnigraph.core import late_dataclass
made = []
usual = late_dataclass.dataclass
late_dataclass.dataclass = lambda *given, **how: made.append(how) or usual(*given, **how)
import lance
assert len(made) > 25, len(made)
from lance.fragment import DataFile
assert DataFile("a", [0], [0], 2, 1, 10) == DataFile("a", [0], [0], 2, 1, 10)
""",
    "modules of the package are found by their names": """
from omnigraph.cli.startup import _OwnFinder
assert [type(each) for each in sys.meta_path[:2]][1] is _OwnFinder
assert sys.meta_path[1].find_spec("omnigraph.cli.tables", sys.modules["omnigraph.cli"].__path__).origin.endswith("tables.py")
import omnigraph.cli.tables
""",
    "every module it waits for comes, under the name it waits for": """
finder = sys.meta_path[0]
import lance, msgspec, numpy.ma, pyarrow.compute as pc
pc.add
assert finder not in sys.meta_path, sorted(finder._loaders)
""",
}


@pytest.mark.parametrize("saving", SAVINGS)
def test_a_saving_is_made(saving: str) -> None:
    program = f"import sys\nfrom omnigraph.cli.startup import spare\nspare()\n{SAVINGS[saving]}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_without_the_savings_each_library_does_what_is_put_off() -> None:
    """Or there would be nothing left to put off, and the trick could go."""
    program = """
import sys
import numpy, pyarrow as pa, pyarrow.compute as pc, msgspec
pa.array([1])
functions = set(pc.function_registry().list_functions())
print(len(functions & vars(pc).keys()) > 200, bool(numpy.arange.__doc__), "pyarrow.vendored.docscrape" in sys.modules)
print("numpy.ma" in sys.modules, "typing_extensions" in sys.modules, "pandas" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["True"] * 6, done.stdout + done.stderr
