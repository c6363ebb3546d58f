import os

import pytest

from omnigraph.pipeline.spark.launch import ARCHIVE_SETTING
from omnigraph.pipeline.spark.session import SparkRuntime, spark_runtime

# The suite uses an archive that is there and never trains one behind the tests' back.
os.environ.setdefault(ARCHIVE_SETTING, "use")


def pytest_collection_modifyitems(items) -> None:
    for item in items:
        if "tests/spark/" in item.nodeid:
            item.add_marker(pytest.mark.spark)


@pytest.fixture(scope="session")
def runtime() -> SparkRuntime:
    """The one Spark of this test process."""
    return spark_runtime(quick_start=True)
