"""Options of commands that may run on Spark, and the settings they make."""

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from omnigraph.cli.addressing import settings as effective_settings
from omnigraph.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from omnigraph.core.settings import Settings

SparkMaster = Annotated[str | None, typer.Option("--spark-master", metavar="URL", help="Where Spark runs.")]
SparkConf = Annotated[
    list[str] | None, typer.Option("--spark-conf", metavar="KEY=VALUE", help="A Spark setting; repeatable.")
]


def spark_settings(master: str | None, conf: "Sequence[str] | None") -> "Settings":
    """The settings in effect, with what a command says about Spark."""
    settings = effective_settings()
    pairs: dict[str, str] = {}
    for item in conf or ():
        key, separator, value = item.partition("=")
        if not separator or not key:
            raise UsageError(f"--spark-conf takes KEY=VALUE, not '{item}'")
        pairs[key] = value
    return replace(
        settings, spark_master=master or settings.spark_master, spark_conf={**settings.spark_conf, **pairs}
    )
