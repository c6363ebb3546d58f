from pathlib import Path

import pytest

from stores import ALL_STORES, TABLE_STORES, Store, StoreCase


@pytest.fixture(params=ALL_STORES, ids=str)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """A fresh store of every kind: the same suite runs on each."""
    case: StoreCase = request.param
    return case.make(tmp_path)


@pytest.fixture(params=TABLE_STORES, ids=str)
def table_store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """A fresh store of every kind that holds tables."""
    case: StoreCase = request.param
    return case.make(tmp_path)
