"""Packages of extras: the table against pyproject.toml and the imports, and what is said."""

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from messages import faults

import hydragnn_hpo
from hydragnn_hpo.cli.command_line import main
from hydragnn_hpo.lazy_exports import lazy_exports
from hydragnn_hpo.optional_packages import (
    OPTIONAL,
    MissingPackage,
    explain_import_error,
    explain_missing,
    missing_sentence,
    require_package,
)

PACKAGE = Path(hydragnn_hpo.__file__).parent
PROJECT = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())["project"]

BRINGS = packages_distributions()

GUARDED = {"IPython", "amdsmi", "pynvml", "hydragnn_hpo"}
"""What is imported only where it is there, and we ourselves."""


def names(requirements: list[str]) -> set[str]:
    """Return the names of distributions without versions, as PyPI writes them."""
    bare = (re.split(r"[\s<>=\[;]", each, maxsplit=1)[0] for each in requirements)
    return {each.lower().replace("_", "-") for each in bare}


def brought_by(module: str) -> set[str]:
    """Return the distributions that may bring a module; of one that is absent, by its name."""
    brings = BRINGS.get(module, [])
    absent = (f"{module}-skinny", f"{module}-torch")
    return {each.lower().replace("_", "-") for each in (*brings, module, *absent)}


@pytest.mark.parametrize("module", OPTIONAL)
def test_an_extra_brings_what_the_sentence_says(module: str) -> None:
    extra = OPTIONAL[module].extra
    listed = PROJECT["optional-dependencies"][extra] if extra else PROJECT["dependencies"]
    assert brought_by(module) & names(listed)


def test_every_import_is_of_the_core_or_optional() -> None:
    core = names(PROJECT["dependencies"])
    imported = {
        name.partition(".")[0]
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    others = imported - sys.stdlib_module_names - OPTIONAL.keys() - GUARDED
    assert len(others) > 10
    brought_with_others = {"pydantic_core", "e3nn"}  # by pydantic and mace-torch
    assert {each for each in others if not brought_by(each) & core} == brought_with_others


def test_all_and_campaign_hold_what_they_say() -> None:
    extras = PROJECT["optional-dependencies"]
    (both,) = extras["all"]
    for_users = {each.extra for each in OPTIONAL.values()} - {""}
    campaign = {"search", "report", "serve", "fast"}
    alone = {"mace"}  # it asks for an older e3nn than the set that is tested has
    assert (for_users - campaign - alone) | {"campaign"} <= set(re.findall(r"[\w]+", both))
    assert set(re.findall(r"\w+", extras["campaign"][0].partition("[")[2])) == campaign


@pytest.mark.parametrize("module", OPTIONAL)
def test_what_is_reported_is_a_sentence_with_a_remedy(module: str) -> None:
    assert faults(missing_sentence(module)) == []


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly", None)
    message = "a figure needs Plotly, which is not installed: pip install 'hydragnn-hpo[report]'."
    with pytest.raises(MissingPackage) as caught, explain_missing("a figure"):
        import plotly.graph_objects  # noqa: F401
    assert str(caught.value) == message
    with pytest.raises(MissingPackage, match=r"or wait\.$"):
        require_package("plotly", instead=", or wait")
    require_package("pandas")


def test_other_failed_imports_stay_what_they_are() -> None:
    assert explain_import_error(ModuleNotFoundError("no x", name="nothing_at_all")) is None
    assert explain_import_error(ModuleNotFoundError("no part", name="pandas.nothing")) is None
    assert explain_import_error(ValueError("plotly")) is None
    with pytest.raises(ModuleNotFoundError), explain_missing():
        import nothing_at_all  # noqa: F401


def test_a_public_name_says_which_package_it_lacks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "needy_face.py").write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from needy import thing\n"
    )
    (tmp_path / "needy.py").write_text("import plotly.graph_objects\nthing = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "plotly", None)
    load, _ = lazy_exports("needy_face", str(tmp_path / "needy_face.py"))
    with pytest.raises(MissingPackage, match=r"needs Plotly"):
        load("thing")


def test_a_command_ends_with_the_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def use() -> None:
        import uvicorn  # noqa: F401

    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.setattr("hydragnn_hpo.cli.command_line.app", use)
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 2
    assert capsys.readouterr().err == (
        "error: a dashboard or a service over HTTP needs uvicorn, which is not installed: "
        "pip install 'hydragnn-hpo[serve]'.\n"
    )
