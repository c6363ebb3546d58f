"""Which embedder is configured, and which answers of one are accepted."""

import threading
import time
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pytest

from omnigraph.core.cancel import Cancellation
from omnigraph.core.errors import BadRequest, Cancelled, DeadlineExceeded, EmbedderError
from omnigraph.core.events import Warned, listen
from omnigraph.core.settings import Settings
from omnigraph.engine.read.limits import Limits
from omnigraph.engine.search.embedding import (
    Embedder,
    _awaited,
    check_embedder,
    configured_embedder,
    unit_vectors,
)
from omnigraph.engine.search.http_embedder import HttpEmbedder
from omnigraph.engine.search.offline_embedder import OfflineEmbedder

OFFLINE = OfflineEmbedder("m")


def accepted(answer, texts=1, dimension=2):
    return unit_vectors(answer, texts=texts, dimension=dimension, embedder=OFFLINE)


# --- answers ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer",
    [
        [[3, 4]],
        [[3.0, 4.0]],
        np.array([[3, 4]], np.float32),
        np.array([[3, 4]], np.float64),
        pa.array([[3.0, 4.0]], pa.list_(pa.float32(), 2)),
        [[3e300, 4e300]],
        [[3e-300, 4e-300]],
    ],
)
def test_accepted_vectors_are_scaled_to_unit_length(answer):
    assert accepted(answer) == pytest.approx(np.array([[0.6, 0.8]]), abs=1e-7)
    assert accepted(answer).dtype == np.float32


def test_a_vector_of_unit_length_is_kept_bit_by_bit():
    vectors = OFFLINE.embed([f"text {number}" for number in range(500)], 7)
    assert accepted(vectors, 500, 7).tolist() == vectors.tolist()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ([[1.0, float("nan")]], "component 2 is not finite"),
        ([[float("-inf"), 0.0]], "component 1 is not finite"),
        ([[0.0, -0.0]], "a vector of zeros for text 1 of 1"),
        ([[1.0, 2.0, 3.0]], "a vector of 3 components for text 1 of 1; 2 are needed"),
        ([[1.0]], "a vector of 1 components"),
        ([[]], "a vector of 0 components"),
        ([], "0 vectors for 1 texts"),
        ([[1.0, 0.0], [0.0, 1.0]], "2 vectors for 1 texts"),
        ([["1", "0"]], "not a list of numbers"),
        ([[True, False]], "not a list of numbers"),
        ([[None, 1.0]], "not a list of numbers"),
        ([[[1.0], [2.0]]], "not a list of numbers"),
        ([[[1.0], [2.0, 3.0]]], "not a list of numbers"),
        ([None], "not a list of numbers"),
        (None, "gave a NoneType"),
        (pa.array([None], pa.list_(pa.float32(), 2)), "not a list of numbers"),
    ],
)
def test_an_answer_that_cannot_be_used_is_refused(answer, said):
    with pytest.raises(EmbedderError, match=said) as caught:
        accepted(answer)
    assert "'m' (mock)" in caught.value.message
    assert caught.value.retry == "never"
    assert caught.value.details == {"provider": "mock", "model": "m"}


# --- configuration ---------------------------------------------------------------------------------------


def configured(environ):
    return configured_embedder(Settings.from_environment(environ), environ)


def test_a_key_alone_configures_nobody():
    assert configured({}) is None
    assert configured({"OPENAI_API_KEY": "sk-1", "OPENROUTER_API_KEY": "sk-2"}) is None
    assert configured({"OMNIGRAPH_EMBED_API_KEY": "sk-3"}) is None


@pytest.mark.parametrize("name", ["mock", "offline"])
def test_the_offline_embedder_is_a_provider(name):
    assert configured({"OMNIGRAPH_EMBED_PROVIDER": name}) == OfflineEmbedder("mock")
    assert configured({"OMNIGRAPH_EMBED_PROVIDER": name, "OMNIGRAPH_EMBED_MODEL": "m1"}) == OfflineEmbedder(
        "m1"
    )


def test_the_flag_overrides_a_provider_and_says_so():
    heard = []
    with listen(heard.append):
        assert configured({"OMNIGRAPH_EMBEDDINGS_MOCK": "1"}) == OfflineEmbedder("mock")
        assert configured({"OMNIGRAPH_EMBEDDINGS_MOCK": "1", "OMNIGRAPH_EMBED_PROVIDER": "mock"})
        assert configured({"OMNIGRAPH_EMBEDDINGS_MOCK": "0"}) is None
        assert heard == []
        assert configured({"OMNIGRAPH_EMBEDDINGS_MOCK": "yes", "OMNIGRAPH_EMBED_PROVIDER": "openai"}) == (
            OfflineEmbedder("mock")
        )
    (warned,) = heard
    assert isinstance(warned, Warned)
    assert "'openai'" in warned.message


@pytest.mark.parametrize(
    ("environ", "base_url", "model", "key"),
    [
        (
            {"OMNIGRAPH_EMBED_PROVIDER": "openai", "OPENAI_API_KEY": " sk-1\n", "OPENROUTER_API_KEY": "sk-2"},
            "https://api.openai.com/v1",
            "text-embedding-3-large",
            "sk-1",
        ),
        (
            {"OMNIGRAPH_EMBED_PROVIDER": "openai-compatible", "OPENROUTER_API_KEY": "sk-2"},
            "https://openrouter.ai/api/v1",
            "openai/text-embedding-3-large",
            "sk-2",
        ),
        (
            {"OMNIGRAPH_EMBED_MODEL": "m1", "OMNIGRAPH_EMBED_API_KEY": "sk-3", "OPENROUTER_API_KEY": "sk-2"},
            "https://openrouter.ai/api/v1",
            "m1",
            "sk-3",
        ),
    ],
)
def test_a_provider_brings_its_address_model_and_key(environ, base_url, model, key):
    found = configured(environ)
    assert isinstance(found, HttpEmbedder)
    assert (found.base_url, found.model, found.api_key) == (base_url, model, key)
    assert (found.timeout_s, found.deadline_s, found.attempts_max, found.backoff_s) == (30, 60, 4, 0.2)


def test_the_key_of_a_vendor_goes_to_nobody_else():
    environ = {
        "OMNIGRAPH_EMBED_BASE_URL": "http://127.0.0.1:9/v1/",
        "OPENROUTER_API_KEY": "sk-2",
        "OPENAI_API_KEY": "x",
    }
    found = configured(environ)
    assert isinstance(found, HttpEmbedder)
    assert (found.base_url, found.api_key) == ("http://127.0.0.1:9/v1", None)
    found = configured({**environ, "OMNIGRAPH_EMBED_API_KEY": "sk-3"})
    assert found.api_key == "sk-3"


def test_bounds_are_settings():
    found = configured(
        {
            "OMNIGRAPH_EMBED_BASE_URL": "http://127.0.0.1:9",
            "OMNIGRAPH_EMBED_TIMEOUT_MS": "1500",
            "OMNIGRAPH_EMBED_DEADLINE_MS": "0",
            "OMNIGRAPH_EMBED_RETRY_ATTEMPTS": "2",
            "OMNIGRAPH_EMBED_RETRY_BACKOFF_MS": "10",
        }
    )
    assert (found.timeout_s, found.deadline_s, found.attempts_max, found.backoff_s) == (1.5, None, 2, 0.01)


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"OMNIGRAPH_EMBED_PROVIDER": "nobody"}, "no embedding provider 'nobody'"),
        ({"OMNIGRAPH_EMBED_PROVIDER": "openai"}, "'openai' needs a key"),
        ({"OMNIGRAPH_EMBED_PROVIDER": "openai", "OPENAI_API_KEY": "  "}, "'openai' needs a key"),
        ({"OMNIGRAPH_EMBED_PROVIDER": "openai", "OPENAI_API_KEY": "s3cret\nx"}, "characters that no key has"),
        ({"OMNIGRAPH_EMBED_BASE_URL": "ftp://s3cret"}, "not an http or https address"),
        ({"OMNIGRAPH_EMBED_BASE_URL": "http://u:s3cret@host/v1"}, "without credentials"),
        ({"OMNIGRAPH_EMBED_BASE_URL": "http://host/v1?key=s3cret"}, "without credentials"),
        ({"OMNIGRAPH_EMBED_BASE_URL": "http://[s3cret"}, "not an http or https address"),
        ({"OMNIGRAPH_EMBED_BASE_URL": "http://host:s3cret/"}, "not an http or https address"),
        ({"OMNIGRAPH_EMBED_BASE_URL": "http:///v1"}, "not an http or https address"),
    ],
)
def test_what_cannot_be_used_is_refused_without_showing_secrets(environ, said):
    with pytest.raises(EmbedderError, match=said) as caught:
        configured(environ)
    assert caught.value.hint
    assert caught.value.retry == "never"
    assert "s3cret" not in str(caught.value.to_dict())


def test_an_embedder_is_recognised_by_what_it_has():
    class Whole:
        model = "m"

        def embed(self, texts, dimension):
            return []

    class Nameless(Whole):
        model = ""

    check_embedder(Whole())
    assert isinstance(Whole(), Embedder)
    for wrong in (Nameless(), object(), "openai", lambda texts: []):
        with pytest.raises(BadRequest, match="is not an embedder"):
            check_embedder(wrong)


# --- limits ----------------------------------------------------------------------------------------------


@dataclass
class Held:
    """A call that does not return before it is let go."""

    entered: threading.Event = field(default_factory=threading.Event)
    release: threading.Event = field(default_factory=threading.Event)

    def __call__(self):
        self.entered.set()
        self.release.wait(30)
        return "late"


@pytest.fixture
def held():
    call = Held()
    yield call
    call.release.set()


def test_the_time_limit_of_a_query_holds_while_it_waits(held):
    begun = time.monotonic()
    with pytest.raises(DeadlineExceeded):
        _awaited(held, Limits(0, deadline=begun + 0.1))
    assert 0.1 <= time.monotonic() - begun < 5


def test_a_query_that_waits_can_be_cancelled(held):
    cancel = Cancellation()
    threading.Thread(target=lambda: (held.entered.wait(30), cancel.request())).start()
    with pytest.raises(Cancelled):
        _awaited(held, Limits(0, cancellation=cancel))


def test_what_the_call_raises_arrives_under_limits_too():
    def failing():
        raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="its own"):
        _awaited(failing, Limits(0, deadline=time.monotonic() + 30))
    assert _awaited(lambda: 7, Limits(0, deadline=time.monotonic() + 30)) == 7


def test_a_query_out_of_time_does_not_begin_to_embed():
    with pytest.raises(DeadlineExceeded):
        _awaited(pytest.fail, Limits(0, deadline=time.monotonic() - 1))
