"""What the tests of this directory share in one process: the server of children, and graphs that are made once."""

import functools

import pytest

from crash.harness import Children
from powercut.scene import Scene


@pytest.fixture(scope="session")
def children():
    with Children("full") as started:
        yield started


@pytest.fixture(scope="session")
def scene_of(children, tmp_path_factory):
    """The scene of a writer; every use of it begins with the graph as it was made."""
    return functools.cache(lambda writer: Scene(children, tmp_path_factory.mktemp(writer.name), writer))
