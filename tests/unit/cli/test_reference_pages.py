"""The reference pages say what the code says, and every setting and option stands on them."""

import importlib
import pkgutil
import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import pytest
from annotated_types import Len
from pydantic import Field, NonNegativeInt, PositiveFloat, TypeAdapter
from reference_pages import commands_page, settings_page
from typer.main import get_command

import hydragnn_hpo.config
from hydragnn_hpo.cli.command_line import app
from hydragnn_hpo.cli.reference_settings import describe_kind, read_files, read_settings
from hydragnn_hpo.config.convs.spec import UserOptions
from hydragnn_hpo.config.data_config import MixedConfig, TargetKind
from hydragnn_hpo.config.machine import SiteConfig
from hydragnn_hpo.config.schema import Config
from hydragnn_hpo.config.trial_config import TrialHeads

UNWRITTEN = {Config, MixedConfig, SiteConfig, TargetKind, TrialHeads, UserOptions}
"""Configs that only others derive from, and two that no file holds."""


@pytest.fixture(scope="module")
def page() -> str:
    return settings_page()


def test_every_config_has_its_table(page: str) -> None:
    for module in pkgutil.walk_packages(hydragnn_hpo.config.__path__, "hydragnn_hpo.config."):
        importlib.import_module(module.name)
    documented_configs = {table.config for file in read_files() for table in file.tables}
    documented_configs |= {config.__name__ for config in UNWRITTEN}
    made = {one for one in every(Config) if one.__module__.startswith("hydragnn_hpo.config")}
    assert not sorted({one.__name__ for one in made} - documented_configs)


def every(config: type[Config]) -> set[type[Config]]:
    below = [every(one) for one in config.__subclasses__()]
    return {config}.union(*below)


def test_every_setting_is_documented() -> None:
    settings = [setting for _, setting in read_settings()]
    assert len(settings) > 200
    assert not [setting.name for setting in settings if not setting.text]


def test_every_option_of_every_command_is_documented() -> None:
    text = commands_page(get_command(app))
    options = re.findall(r"^\* `(.*?)`(.*)$", text, re.MULTILINE)
    assert len(options) > 150
    assert not [name for name, meaning in options if not meaning.startswith(": ")]
    assert {"run", "dataset build", "ensemble pick"} <= set(
        re.findall(r"^##+ `hydragnn-hpo (.*)`$", text, re.MULTILINE)
    )
    assert not [name for name in option_names(get_command(app)) if f"`{name}" not in text]


def option_names(group: Any) -> Iterator[str]:
    """Yield the long names of the options of all commands below a group that are not hidden."""
    for command in (one for one in group.commands.values() if not one.hidden):
        if hasattr(command, "commands"):
            yield from option_names(command)
        options = (one for one in command.params if not getattr(one, "hidden", False))
        yield from (one.opts[0] for one in options if one.opts[0].startswith("--"))


def test_no_number_of_an_option_may_be_infinite() -> None:
    numbers = re.findall(r"^.*<float.*$", commands_page(get_command(app)), re.MULTILINE)
    assert len(numbers) > 5
    assert [line for line in numbers if "<=x<=" not in line] == []


def test_anchors_are_there_once_and_links_find_them(page: str) -> None:
    ids = re.findall(r'<a id="([^"]+)">', page)
    assert len(ids) == len(set(ids))
    slugs = {slug(title) for title in re.findall(r"^## (.*)$", page, re.MULTILINE)}
    wanted = set(re.findall(r"\]\(#([^)]+)\)", page))
    assert wanted
    assert not wanted - slugs - set(ids)


def slug(title: str) -> str:
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


@pytest.mark.parametrize(
    ("annotation", "words"),
    [
        (int, "integer"),
        (int | None, "integer"),
        (PositiveFloat | None, "number > 0"),
        (Annotated[float, Field(ge=0.0, lt=1.0)], "number >= 0 and < 1"),
        (Literal["a", "b"], '`"a"` `"b"`'),
        (int | float, "number"),
        (bool | str, "`true` or `false` or text"),
        (tuple[NonNegativeInt, ...], "list of integer >= 0"),
        (tuple[float, float, float], "list of 3 x number"),
        (Annotated[tuple[str, ...], Len(2)], "list of text, at least 2"),
        (dict[str, float], "table of number"),
        (dict[str, Any], "table"),
    ],
    ids=str,
)
def test_types_are_written_in_words(annotation: Any, words: str) -> None:
    schema = TypeAdapter(annotation).json_schema()
    assert describe_kind(schema, schema.get("$defs", {})) == words
