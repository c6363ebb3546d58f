"""Chains of random schema changes among live branches: nothing is lost, every commit stays readable."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from model.schema_chains import run

# A chain takes seconds: the one that fails is told as it is, and not made shorter.
PHASES = (Phase.explicit, Phase.generate)
NUMBERS = st.integers(0, 34)
CHAINS = st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS), min_size=20, max_size=20)


def chain(steps):
    with tempfile.TemporaryDirectory() as place:
        try:
            return run(Path(place) / "graph", steps)
        except BaseException as error:
            error.add_note(f"steps = {steps}")
            raise


@pytest.mark.slow
@settings(
    deadline=None, max_examples=3, derandomize=True, suppress_health_check=list(HealthCheck), phases=PHASES
)
@given(CHAINS)
def test_a_chain_of_changes_among_branches_shows_what_the_model_shows(steps):
    chain(steps)


@pytest.mark.torture
@settings(deadline=None, max_examples=300, suppress_health_check=list(HealthCheck), phases=PHASES)
@given(CHAINS)
def test_many_chains_of_changes_among_branches_show_what_the_model_shows(steps):
    chain(steps)
