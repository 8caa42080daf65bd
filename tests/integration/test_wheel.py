"""The wheel with the packages of its core alone predicts, and says which extra brings the rest.

A new environment gets the wheel by pip, and links to the installed distributions that its core
requires, and that those require in turn; ``pip check`` says that none is missing.
"""

import os
import re
import subprocess
import sys
import venv
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.release


def required_by(name: str, extras: frozenset[str] = frozenset()) -> Iterator[tuple[str, frozenset]]:
    """Yield what a distribution requires here, with the extras that it wants of it."""
    for line in distribution(name).requires or ():
        wanted = Requirement(line)
        marker = wanted.marker
        if marker is None or any(marker.evaluate({"extra": each}) for each in extras or {""}):
            yield wanted.name, frozenset(wanted.extras)


def closure(names: list[str]) -> dict[str, Distribution]:
    """Return distributions with all that they require, by their normal name."""
    held: dict[str, Distribution] = {}
    open_ = [(name, frozenset()) for name in names]
    seen = set()
    while open_:
        name, extras = open_.pop()
        key = re.sub(r"[-_.]+", "-", name).lower()
        if (key, extras) not in seen:
            seen.add((key, extras))
            held[key] = distribution(name)
            open_ += required_by(name, extras)
    return held


def link(distribution: Distribution, folder: Path) -> None:
    """Link the top-level files and folders of an installed distribution into a folder."""
    for top in {Path(file).parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
        if not (folder / top).exists():
            (folder / top).symlink_to(Path(str(distribution.locate_file(top))))


class Environment:
    """A new environment that holds the wheel and its core, and an empty folder to work in."""

    def __init__(self, folder: Path) -> None:
        """Build the wheel and install it."""
        self.empty = folder / "empty"
        self.empty.mkdir()
        venv.create(folder / "env", symlinks=True)
        self.python = folder / "env/bin/python"
        alone = {k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "PYTHON"))}
        self.variables = {**alone, "PIP_CONFIG_FILE": os.devnull, "COLUMNS": "100"}
        build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder]
        subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
        self.pip("install", "--no-deps", "--no-index", *folder.glob("*.whl"))
        (site,) = (folder / "env/lib").glob("*/site-packages")
        (metadata,) = site.glob("hydragnn_hpo-*.dist-info/METADATA")
        lines = re.findall(r"^Requires-Dist: (.*)$", metadata.read_text(), re.MULTILINE)
        core = [Requirement(line).name for line in lines if "extra ==" not in line]
        self.core = closure(core)
        for each in self.core.values():
            link(each, site)

    def pip(self, *words: object) -> str:
        """Run pip on the environment; it must succeed."""
        argv = [sys.executable, "-m", "pip", "--python", self.python, *words]
        done = subprocess.run(argv, env=self.variables, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def run(self, *words: object, code: int = 0) -> subprocess.CompletedProcess[str]:
        """Run a command from the empty folder, and check its exit code."""
        argv = [self.python.parent / "hydragnn-hpo", *words]
        done = subprocess.run(
            argv, env=self.variables, cwd=self.empty, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return Environment(tmp_path_factory.mktemp("wheel"))


def test_the_core_is_whole_and_small(core: Environment) -> None:
    assert "No broken requirements found" in core.pip("check")
    extras = ("deephyper", "optuna", "plotly", "shap", "starlette", "torch-geometric", "uvicorn")
    assert not set(extras) & set(core.core)
    assert len(core.core) < 60


def test_the_core_predicts_from_an_empty_folder(core: Environment) -> None:
    names = ("workflows/molecules.xyz", "--ensemble", "workflows/small_organics.zip")
    printed_output = core.run("predict", *names).stdout
    assert "phenol" in printed_output
    assert "[eV]" in printed_output
    code = (
        "import ase.build, hydragnn_hpo as hh; from hydragnn_hpo.resources import resource_path\n"
        "ensemble = hh.Ensemble.load(resource_path('workflows/small_organics.zip'))\n"
        "rows = ensemble.predict([ase.build.molecule('CH3OH')])\n"
        "assert hh.Campaign.load('quickstart').config.search.brain == 'gp'\n"
        "try:\n"
        "    rows.to_frame()\n"
        "except hh.HydraError as error:\n"
        "    print(error)\n"
    )
    argv = [core.python, "-c", code]
    done = subprocess.run(
        argv, env=core.variables, cwd=core.empty, capture_output=True, text=True, timeout=300
    )
    assert done.stdout == (
        "a table needs pandas, which is not installed: pip install 'hydragnn-hpo[report]'.\n"
    ), done.stderr
    assert list(core.empty.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "needs", "extra"),
    [
        (
            "run quickstart --dry-run --set search.brain=deephyper",
            "search.brain 'deephyper' needs DeepHyper",
            "search",
        ),
        ("serve workflows/small_organics.zip", "a service over HTTP needs", "serve"),
        ("dashboard nowhere", "a service over HTTP needs Starlette", "serve"),
    ],
)
def test_a_sentence_names_the_extra(core: Environment, words: str, needs: str, extra: str) -> None:
    output = core.run(*words.split(), code=2).stderr
    assert output.startswith("error: ")
    assert needs in output
    assert f"pip install 'hydragnn-hpo[{extra}]'" in output
    assert "Traceback" not in output
    assert len(output.splitlines()) == 1


@pytest.mark.parametrize(
    "words", ["--help", "--version", "info", "reference learning_rate", "machine list"]
)
def test_what_asks_for_nothing_runs(core: Environment, words: str) -> None:
    assert core.run(*words.split()).stdout
