"""What a finished run leaves: the commands that it proposes, and who may read its files."""

import os
import shlex
import stat
from functools import partial
from pathlib import Path

import pytest
from ase.build import molecule
from ase.io import write

CONV = """
from torch import nn

class MyConv(nn.Module):
    def __init__(self, dimensions, options):
        super().__init__()
        self.filter = nn.Linear(dimensions.basis_size, dimensions.features)

    def forward(self, scalars, state, edges):
        filters = self.filter(edges.pair_basis) * edges.pair_envelope
        return edges.filtered_sum(scalars, filters), None
"""

SECRET = ("controller", "requests", "jobs", "checkpoints", "agents")
"""Folders that this user alone may enter; what lies in them is private, too."""


def run_small_campaign(hpo, conv="schnet", umask=0o022, **environment):
    hpo.card(hpo.molecules(60))
    campaign = hpo.campaign(
        machine={"slots": 1},
        search={"trials": 1, "finalists": 1, "initial": 1, "rungs": [1]},
        space={"model.conv": [conv], "model.layers": None},
        ensemble={"members": 1},
    )
    start = partial(os.umask, umask)
    done = hpo("run", campaign, "--run", "run", preexec_fn=start, **environment)
    assert done.code == 0, done.err
    return done.out


def wanted_modes(path: Path, run: Path, umask: int) -> set[int]:
    """Return the modes that a file or a folder of a run may have."""
    whole = 0o755 if path.is_dir() else 0o644
    if not set(path.relative_to(run).parts) & set(SECRET):
        return {whole & ~umask}
    return {0o700} if path.is_dir() else {0o600}


def see_modes(run: Path, umask: int) -> None:
    """See that results follow the umask, and that secrets do not."""
    assert (run / "controller" / "keys.json").exists()
    for path in [run, *run.rglob("*")]:
        mode = stat.S_IMODE(path.lstat().st_mode)
        assert mode in wanted_modes(path, run, umask | 0o022), f"{path}: {mode:o}"


@pytest.mark.slow
def test_the_proposed_commands_run_as_they_stand_and_files_are_as_private_as_they_should(
    hpo, monkeypatch
):
    """With a layer of one's own, which needs --trust, and a umask that keeps others out."""
    package = hpo.folder / "code" / "users_layers"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(CONV)
    environment = {"PYTHONPATH": f"{package.parent}:{os.environ.get('PYTHONPATH', '')}"}
    out = run_small_campaign(hpo, "users_layers:MyConv", umask=0o077, **environment)
    see_modes(hpo.folder / "run", 0o077)
    proposed = [line.strip() for line in out.partition("Try next:\n")[2].splitlines()]
    evaluation, prediction, about = proposed
    assert about == "(NEW_FILE: a file with structures of yours)"
    write(hpo.folder / "mine.xyz", molecule("CH3OH"), format="extxyz")
    monkeypatch.syspath_prepend(str(package.parent))
    for line in (evaluation, prediction.replace("NEW_FILE", "mine.xyz")):
        words = shlex.split(line)
        begin = next(n for n, word in enumerate(words) if word in ("ensemble", "predict"))
        done = hpo.here(*words[begin:])
        assert done.code == 0, done.err
    assert "mine.xyz@0" in done.out


@pytest.mark.stress
def test_without_a_umask_others_may_read_results_and_no_secrets(hpo):
    run_small_campaign(hpo, umask=0)
    see_modes(hpo.folder / "run", 0)


def test_a_run_directory_that_everybody_can_write_is_refused(hpo):
    run = hpo.folder / "run"
    run.mkdir()
    run.chmod(0o777)
    hpo.card(hpo.molecules(60))
    done = hpo.here("run", hpo.campaign(), "--run", run)
    assert done.code != 0
    assert done.err == (
        f"error: {run}: everybody can write into it; run 'chmod o-w {run}', or choose another "
        "directory with --run.\n"
    )
    assert not list(run.iterdir())
