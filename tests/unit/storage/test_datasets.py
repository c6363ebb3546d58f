"""What is asked of a shared dataset while another thread changes it."""

import lance
import pyarrow as pa
import pytest

from omnigraph.storage.datasets import field_ids


class Borrowed:
    """A dataset that another thread has for itself, the first few times it is asked."""

    def __init__(self, dataset, times, problem="Already mutably borrowed"):
        self.dataset, self.times, self.problem = dataset, times, problem

    @property
    def lance_schema(self):
        if self.times:
            self.times -= 1
            raise RuntimeError(self.problem)
        return self.dataset.lance_schema


def test_a_dataset_that_another_thread_has_for_itself_is_asked_again(tmp_path):
    dataset = lance.write_dataset(pa.table({"a": [1], "b": [{"c": 2}]}), str(tmp_path / "t"))
    assert field_ids(Borrowed(dataset, 3)) == field_ids(dataset) == [0, 1, 2]
    with pytest.raises(RuntimeError, match="something else"):
        field_ids(Borrowed(dataset, 1, "something else"))
