"""The files of deploy/ are started by nobody here; that they can be read is checked."""

import configparser
import shlex
from pathlib import Path

import typer
import yaml

from omnigraph.cli.app import tree

DEPLOY = Path(__file__).parents[2] / "deploy"


def options_of_serve() -> set[str]:
    command = typer.main.get_command(tree(("serve",))).commands["serve"]
    return {name for each in command.params for name in each.opts}


def test_the_compose_file_names_files_and_options_that_exist() -> None:
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    server = compose["services"]["server"]
    assert (DEPLOY / server["build"]["context"] / server["build"]["dockerfile"]).resolve().is_file()
    assert {word for word in server["command"] if word.startswith("--")} <= options_of_serve()
    assert set(compose["volumes"]) == {"objects"}
    assert server["depends_on"] == [name for name in compose["services"] if name != "server"]


def test_the_unit_starts_serve_with_options_that_exist() -> None:
    unit = configparser.ConfigParser(interpolation=None, strict=True)
    unit.optionxform = str
    unit.read_string((DEPLOY / "omnigraph.service").read_text())
    command = shlex.split(unit["Service"]["ExecStart"])
    assert command[1] == "serve"
    assert {word for word in command if word.startswith("--")} <= options_of_serve()


def test_the_image_installs_the_extra_and_serves_as_somebody() -> None:
    lines = [line.split(maxsplit=1) for line in (DEPLOY / "Dockerfile").read_text().splitlines()]
    assert [word for word, _ in lines] == [
        "FROM",
        "RUN",
        "COPY",
        "RUN",
        "USER",
        "ENV",
        "EXPOSE",
        "ENTRYPOINT",
    ]
    assert dict(lines)["USER"] != "root"
    assert any("[server]" in rest for word, rest in lines if word == "RUN")
