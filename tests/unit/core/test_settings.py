from pathlib import Path

import pytest

from omnigraph.core.errors import BadRequest, IoFailure
from omnigraph.core.settings import Settings


def test_defaults() -> None:
    settings = Settings.from_environment({})
    assert settings.durability == "full"
    assert settings.load_concurrency == 8
    assert settings.maintenance_concurrency == 8
    assert settings.spark_master == "local[*,3]"
    assert settings.spark_conf == {}
    assert settings.cache_bytes > 0
    assert settings.merge_staging_dir.is_dir()


@pytest.mark.parametrize("text", ["", "0", "-3", "eight", "1.5", " "])
def test_a_number_that_is_none_or_not_positive_counts_as_not_given(text: str) -> None:
    settings = Settings.from_environment({"OMNIGRAPH_LOAD_CONCURRENCY": text, "OMNIGRAPH_CACHE_BYTES": text})
    assert settings.load_concurrency == 8
    assert settings.cache_bytes == Settings().cache_bytes


def test_the_environment_is_read() -> None:
    settings = Settings.from_environment(
        {
            "OMNIGRAPH_LOAD_CONCURRENCY": "3",
            "OMNIGRAPH_CACHE_BYTES": "1048576",
            "OMNIGRAPH_DURABILITY": "syncfs",
            "OMNIGRAPH_SPARK_MASTER": "spark://host:7077",
            "OMNIGRAPH_SPARK_CONF_executor_memory": "4g",
            "OMNIGRAPH_MERGE_STAGING_DIR": "/var/scratch",
            "OMNIGRAPH_DEBUG": "1",
            "UNRELATED": "x",
        }
    )
    assert settings.load_concurrency == 3
    assert settings.cache_bytes == 1_048_576
    assert settings.durability == "syncfs"
    assert settings.spark_master == "spark://host:7077"
    assert settings.spark_conf == {"spark.executor.memory": "4g"}
    assert settings.merge_staging_dir == Path("/var/scratch")
    assert settings.debug


def test_an_unknown_durability_is_never_guessed() -> None:
    with pytest.raises(BadRequest) as caught:
        Settings.from_environment({"OMNIGRAPH_DURABILITY": "sometimes"})
    assert "full, os, syncfs" in (caught.value.hint or "")


def test_the_environment_wins_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "omnigraph.toml"
    file.write_text(
        '[settings]\nload_concurrency = 5\ndurability = "os"\nspark_conf = { "spark.ui.enabled" = false }\n'
    )
    settings = Settings.from_environment({"OMNIGRAPH_LOAD_CONCURRENCY": "6"}, file)
    assert settings.load_concurrency == 6
    assert settings.durability == "os"
    assert settings.spark_conf == {"spark.ui.enabled": "False"}


def test_a_missing_or_broken_file_is_a_typed_error(tmp_path: Path) -> None:
    with pytest.raises(IoFailure):
        Settings.from_environment({}, tmp_path / "absent.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("[settings\n")
    with pytest.raises(BadRequest):
        Settings.from_environment({}, broken)
    broken.write_bytes(b"\xff\xfe")
    with pytest.raises(BadRequest):
        Settings.from_environment({}, broken)
    broken.write_text("settings = 3\n")
    with pytest.raises(BadRequest):
        Settings.from_environment({}, broken)


def test_the_settings_of_embedding_have_defaults_and_zero_is_no_deadline(tmp_path: Path) -> None:
    settings = Settings.from_environment(
        {"OMNIGRAPH_EMBED_PROVIDER": " ", "OMNIGRAPH_EMBED_DEADLINE_MS": "x"}
    )
    assert (settings.embed_provider, settings.embed_base_url, settings.embed_model) == (None, None, None)
    assert (settings.embed_deadline_ms, settings.embed_timeout_ms) == (60_000, 30_000)
    assert (settings.embed_retry_attempts, settings.embed_retry_backoff_ms) == (4, 200)
    assert Settings.from_environment({"OMNIGRAPH_EMBED_DEADLINE_MS": "0"}).embed_deadline_ms == 0
    file = tmp_path / "omnigraph.toml"
    file.write_text('[settings]\nembed_provider = "mock"\nembed_deadline_ms = 0\nembed_model = "m1"\n')
    settings = Settings.from_environment({"OMNIGRAPH_EMBED_MODEL": "m2"}, file)
    assert (settings.embed_provider, settings.embed_model, settings.embed_deadline_ms) == ("mock", "m2", 0)


@pytest.mark.parametrize("text", ["", "0", "false", "False"])
def test_the_mock_flag_is_read_like_every_flag(text: str) -> None:
    assert not Settings.from_environment({"OMNIGRAPH_EMBEDDINGS_MOCK": text}).embeddings_mock
    assert Settings.from_environment({"OMNIGRAPH_EMBEDDINGS_MOCK": f"{text}yes"}).embeddings_mock


def test_a_key_is_refused_in_files_and_never_part_of_the_settings(tmp_path: Path) -> None:
    file = tmp_path / "omnigraph.toml"
    file.write_text('[settings]\nembed_api_key = "hush"\n')
    for given in ({"file": file}, {"values": {"embed_api_key": "hush"}}):
        with pytest.raises(BadRequest) as caught:
            Settings.from_environment({}, **given)
        assert "hush" not in str(caught.value.to_dict())
        assert "OMNIGRAPH_EMBED_API_KEY" in (caught.value.hint or "")
    assert "hush" not in repr(Settings.from_environment({"OMNIGRAPH_EMBED_API_KEY": "hush"}))


def test_what_cannot_be_read_leaves_the_file_its_say(tmp_path: Path) -> None:
    file = tmp_path / "omnigraph.toml"
    file.write_text(
        '[settings]\ndurability = "os"\nload_concurrency = 3\nembed_deadline_ms = 0\nspark_master = "local[1]"\n'
        'cache_dir = "/kept"\ndebug = true\n[settings.spark_conf]\n"spark.a" = 1\n"spark.b" = 2\n'
    )
    blank = {"DURABILITY": "", "LOAD_CONCURRENCY": "many", "EMBED_DEADLINE_MS": "-1", "SPARK_MASTER": " "}
    blank |= {"CACHE_DIR": "", "DEBUG": "", "SPARK_CONF_b": "3"}
    found = Settings.from_environment({f"OMNIGRAPH_{name}": text for name, text in blank.items()}, file)
    assert (found.durability, found.load_concurrency, found.embed_deadline_ms) == ("os", 3, 0)
    assert (found.spark_master, found.cache_dir, found.debug) == ("local[1]", Path("/kept"), True)
    assert found.spark_conf == {"spark.a": "1", "spark.b": "3"}
    assert not Settings.from_environment({"OMNIGRAPH_DEBUG": "0"}, file).debug
