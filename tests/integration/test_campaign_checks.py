"""What ``run`` refuses before its first trial, its dry run, ``plan`` and ``submit`` refuse, too.

One bad campaign at least for each check of ``campaign.campaign_checks.CHECKS``; all commands make
these checks and say one sentence.
"""

import os
import sys
from pathlib import Path

import pytest

from hydragnn_hpo.campaign import campaign_checks
from hydragnn_hpo.campaign.campaign_checks import CHECKS

CONVS = {
    "syntax": "def (",
    "raises": "raise ValueError('no licence')",
    "exits": "import os; os._exit(3)",
    "sleeps": "import time; time.sleep(900)",
    "empty": "",
}


def conv(module, name="Mine"):
    return {"space": {"model.conv": [f"users_{module}:{name}"]}}


BAD = {
    "space": {
        "key": ({"space": {"training.learning_rat": {"low": 1e-3, "high": 1e-2}}}, "learning_rat"),
        "constraint": ({"search": {"constraints": ["model.layers > 9"]}}, "search.constraints"),
    },
    "objective": {
        "number": ({"search": {"objective": "wieghted"}}, "Did you mean 'weighted'?"),
        "head": ({"search": {"objective": "val_mae.energy"}}, "unknown head 'energy'"),
    },
    "data": {
        "head": ({"trial": {"heads": {"energy_lik": {}}}}, "Did you mean 'energy_like'?"),
        "name": ({"trial": {"heads": {"forward": {}}}}, "torch keeps this name for itself"),
        "vector": ({"trial": {"heads": {"force_like": {}}}}, "carries no vectors"),
        "cutoff": ({"trial": {"model": {"cutoff": 9.0}}}, "lower one or raise the other"),
        "attribute": (
            {"trial": {"model": {"attributes": ["nothing"]}}},
            "which the data do not have. Known: none.",
        ),
        "encoding": (
            {"trial": {"model": {"encoding": "laplacian", "encoding_size": 4}}},
            "the store holds 0 Laplacian encodings",
        ),
        "budget": (
            {"trial": {"training": {"batch_atoms": 1, "global_batch": None}}},
            "training.batch_atoms is 1, the largest graph has 7 atoms: set at least 14",
        ),
        "package": (conv("nowhere"), "which is not installed here"),
    },
    "warm_start": {
        "missing": ({"search": {"warm_start": ["/nonexistent"]}}, "/nonexistent: holds no campaign")
    },
    "packages": {
        "tensorboard": ({"trial": {"training": {"tensorboard": True}}}, "[tensorboard]"),
        "brain": ({"search": {"brain": "optuna"}}, "search.brain 'optuna' needs Optuna, which"),
    },
    "software": {
        "pack": ({"machine": {"pack": "p.tar.gz"}}, "machine.pack does not work"),
        "container": ({"machine": {"container": "c.sif"}}, "no such container image"),
    },
    "models": {
        "start_from": (
            {"trial": {"training": {"start_from": "/none.safetensors"}}},
            "training.start_from: /none.safetensors: cannot be read",
        ),
        "syntax": (conv("syntax"), "its module cannot be imported (invalid syntax"),
        "raises": (conv("raises"), "its module cannot be imported (no licence)"),
        "empty": (conv("empty"), "holds no torch module of this name"),
        "os": ({"space": {"model.conv": ["os:system"]}}, "holds no torch module of this name"),
    },
}
"""By check and name: what is changed in a good campaign, and words of the sentence."""

CASES = [
    pytest.param({"data": [{"card": "g2_xtbb"}]}, "Did you mean 'g2_xtb'?", id="card"),
    pytest.param({"shared": ["energy_like"]}, "which no two data sets have", id="shared"),
] + [
    pytest.param(change, says, id=f"{check}-{name}")
    for check, cases in BAD.items()
    for name, (change, says) in cases.items()
]


@pytest.fixture
def hpo_with_card(hpo, monkeypatch):
    """Small molecules whose card also has a target that no head may have."""
    for name, code in CONVS.items():
        (hpo.folder / f"users_{name}.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(hpo.folder))
    monkeypatch.syspath_prepend(str(hpo.folder))
    for name in ("tensorboard", "optuna"):
        monkeypatch.setitem(sys.modules, name, None)
    forward = {"level": "graph", "unit": "eV", "key": "energy_like"}
    hpo.card(hpo.molecules(30), targets={"forward": forward})
    return hpo


@pytest.fixture
def forked(monkeypatch):
    """Build a user's model in a fork: a fresh process would import torch first."""
    monkeypatch.setattr(campaign_checks, "_run_quietly", build_in_fork)


def build_in_fork(argv: list[str]) -> int:
    """Do what the process does that imports a user's conv; return its exit code."""
    from hydragnn_hpo.training.training_parts import check_model

    assert argv[:3] == [sys.executable, "-c", campaign_checks.BUILD_MODEL]
    if not (pid := os.fork()):
        sys.dont_write_bytecode = True
        try:
            check_model(*map(Path, argv[3:]))
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_every_check_has_a_bad_campaign():
    assert list(BAD) == list(CHECKS)


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize(("change", "says"), CASES)
def test_what_makes_no_sense_is_one_sentence_and_nothing_is_written(hpo_with_card, change, says):
    campaign = hpo_with_card.campaign(**change)
    before = hpo_with_card.files_of(hpo_with_card.folder)
    sentence = hpo_with_card.refused("run", campaign, "--run", "run", says=(says,))
    assert str(campaign) in sentence
    assert ".." not in sentence
    assert len(sentence.partition(" Known: ")[0]) <= 300 + len(str(campaign))
    assert hpo_with_card.files_of(hpo_with_card.folder) == before


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize("check", BAD)
def test_all_commands_make_the_same_checks(hpo_with_card, check):
    change, says = next(iter(BAD[check].values()))
    campaign = hpo_with_card.campaign(**change)
    commands = [
        ("run", campaign, "--run", "run"),
        ("run", campaign, "--run", "run", "--dry-run"),
        ("plan", campaign),
    ]
    if check in ("objective", "data", "warm_start"):
        site = ("--machine", "generic-slurm", "--hosts", "1", "--time", "1:00")
        commands.append(("submit", campaign, *site, "--dry-run"))
    sentences = {hpo_with_card.refused(*command, says=(says,)) for command in commands}
    assert len(sentences) == 1, sentences


@pytest.mark.slow
def test_a_conv_that_ends_its_process_ends_no_command(hpo_with_card):
    """In a fresh process, as users have it."""
    campaign = hpo_with_card.campaign(**conv("exits"))
    hpo_with_card.refused(
        "run", campaign, "--dry-run", says=("users_exits:Mine", "ends the", "code 3)")
    )


@pytest.mark.slow
def test_a_conv_that_never_comes_back_is_given_up(hpo_with_card, monkeypatch):
    monkeypatch.setattr(campaign_checks, "IMPORT_SECONDS", 2.0)
    campaign = hpo_with_card.campaign(**conv("sleeps"))
    hpo_with_card.refused(
        "run", campaign, "--dry-run", says=("users_sleeps:Mine", "within 2 s", "mend")
    )


def test_a_good_campaign_passes_all_checks(hpo_with_card):
    campaign = hpo_with_card.campaign()
    for command in (("run", campaign, "--dry-run"), ("plan", campaign)):
        done = hpo_with_card.here(*command)
        assert done.code == 0, done.err


@pytest.mark.parametrize("place", ["/dev/null", "/proc/x", "tiny.toml", "tiny.toml/run"])
def test_a_place_where_no_run_can_be_is_refused_by_the_dry_run(hpo_with_card, place):
    sentences = {
        hpo_with_card.refused(
            "run", hpo_with_card.campaign(), "--run", place, *more, says=(place, "--run")
        )
        for more in ((), ("--dry-run",))
    }
    assert len(sentences) == 1


def test_options_that_mean_nothing_are_refused(hpo_with_card):
    """Each was a success although nothing was done as asked."""
    campaign = hpo_with_card.campaign()
    done = hpo_with_card.here("run", campaign, "--run", "", "--dry-run")
    assert done.code == 2
    assert "name a directory" in done.err
    hpo_with_card.refused("plan", campaign, "--figure", "x.jpg", says=("x.jpg", ".png"))
    hpo_with_card.refused("status", "run", "--interval", "5", says=("--interval", "--watch"))
    hpo_with_card.refused("doctor", "--run", "nope", says=("nope", "no such run directory"))
    assert not (hpo_with_card.folder / "nope").exists()
