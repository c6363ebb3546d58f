"""A Spark that nobody answers for is refused at once, in one line."""

import socket

import pytest

from omnigraph.core.errors import IoFailure
from omnigraph.core.settings import Settings
from omnigraph.pipeline.spark.session import refuse_silent_master, spark_runtime


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("grpc_proxy", "https_proxy", "http_proxy"):
        monkeypatch.delenv(name, raising=False)


def test_a_server_behind_a_proxy_is_left_to_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://proxy:3128")
    refuse_silent_master("sc://127.0.0.1:9")


@pytest.mark.parametrize(
    ("master", "named"),
    [
        ("sc://127.0.0.1:9", "no Spark Connect server answers at 'sc://127.0.0.1:9' (Connection refused)"),
        ("sc://127.0.0.1:9/;token=secret", "no Spark Connect server answers at 'sc://127.0.0.1:9' (Conn"),
        ("sc://[::1]:9/", "no Spark Connect server answers at 'sc://[::1]:9' ("),
        ("spark://127.0.0.1:9", "no Spark master answers at 'spark://127.0.0.1:9' (Connection refused)"),
        ("spark://127.0.0.1", "no Spark master answers at 'spark://127.0.0.1' ("),
    ],
)
def test_an_address_where_nobody_listens_is_named(master: str, named: str) -> None:
    with pytest.raises(IoFailure) as caught:
        refuse_silent_master(master)
    assert str(caught.value).startswith(named)
    assert "secret" not in str(caught.value)
    assert "--spark-master" in (caught.value.hint or "")


def test_an_address_that_takes_a_connection_is_left_to_spark() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        for master in (
            f"sc://127.0.0.1:{port}",
            f"sc://127.0.0.1:{port}/;a=b",
            f"spark://h,127.0.0.1:{port}",
        ):
            refuse_silent_master(master)
    refuse_silent_master("local[2]")


def test_a_connect_server_has_a_port_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, int]] = []

    def connect(address: tuple[str, int], _seconds: float) -> socket.socket:
        asked.append(address)
        return socket.socket()

    monkeypatch.setattr(socket, "create_connection", connect)
    for master in ("sc://host", "sc://host/", "sc://host/;token=x", "sc://[::1]"):
        refuse_silent_master(master)
    assert asked == [("host", 15002)] * 3 + [("::1", 15002)]


def test_a_session_is_not_even_begun_where_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omnigraph.pipeline.spark.session._adopted", lambda: None)
    monkeypatch.setattr("omnigraph.pipeline.spark.session._Current.runtime", None)
    with pytest.raises(IoFailure, match="no Spark Connect server answers"):
        spark_runtime(Settings(spark_master="sc://127.0.0.1:9"))
