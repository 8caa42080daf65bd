"""What ``run`` refuses before its first trial, its dry run, ``plan`` and ``submit`` refuse, too.

One bad campaign at least for each check of ``campaign.campaign_checks.CHECKS``; all commands say
one sentence.
"""

import sys

import pytest

from hydragnn_hpo.campaign import CHECKS, campaign_checks

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
        "exits": (conv("exits"), "ends the process that imports and builds it (exit code 3)"),
        "empty": (conv("empty"), "holds no torch module of this name"),
        "os": ({"space": {"model.conv": ["os:system"]}}, "holds no torch module of this name"),
    },
}
"""By check and name: what is changed in a good campaign, and words of the sentence."""

CASES = [
    pytest.param({"data": [{"card": "g2_xtbb"}]}, "Did you mean 'g2_xtb'?", id="card"),
    pytest.param({"shared": ["energy_like"]}, "which no two data sets have", id="shared"),
] + [
    pytest.param(change, says, id=f"{check}-{name}", marks=[pytest.mark.slow] * (check == "models"))
    for check, cases in BAD.items()
    for name, (change, says) in cases.items()
]


@pytest.fixture
def desk(hpo, monkeypatch):
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


def test_every_check_has_a_bad_campaign():
    assert list(BAD) == list(CHECKS)


@pytest.mark.parametrize(("change", "says"), CASES)
def test_what_run_refuses_its_dry_run_and_plan_refuse_with_one_sentence(desk, change, says):
    campaign = desk.campaign(**change)
    before = desk.files_of(desk.folder)
    commands = {
        "run": ("run", campaign, "--run", "run"),
        "dry run": ("run", campaign, "--run", "run", "--dry-run"),
        "plan": ("plan", campaign),
    }
    said = {name: desk.refused(*command, says=(says,)) for name, command in commands.items()}
    assert len(set(said.values())) == 1, said
    [sentence] = set(said.values())
    assert str(campaign) in sentence
    assert ".." not in sentence
    assert len(sentence.partition(" Known: ")[0]) <= 300 + len(str(campaign))
    assert desk.files_of(desk.folder) == before, "nothing is written"


@pytest.mark.slow
def test_a_conv_that_never_comes_back_is_given_up(desk, monkeypatch):
    monkeypatch.setattr(campaign_checks, "IMPORT_SECONDS", 5.0)
    campaign = desk.campaign(**conv("sleeps"))
    desk.refused("run", campaign, "--dry-run", says=("users_sleeps:Mine", "within 5 s", "mend"))


@pytest.mark.parametrize("check", ["objective", "data", "warm_start"])
def test_submit_makes_the_same_checks(desk, check):
    change, says = next(iter(BAD[check].values()))
    campaign = desk.campaign(**change)
    plan = desk.refused("plan", campaign, says=(says,))
    asked = ("submit", campaign, "--machine", "generic-slurm", "--hosts", "1", "--time", "1:00")
    assert desk.refused(*asked, "--dry-run", says=(says,)) == plan


def test_a_good_campaign_passes_all_checks(desk):
    campaign = desk.campaign()
    for command in (("run", campaign, "--dry-run"), ("plan", campaign)):
        done = desk.here(*command)
        assert done.code == 0, done.err


@pytest.mark.parametrize("place", ["/dev/null", "/proc/x", "tiny.toml", "tiny.toml/run"])
def test_a_place_where_no_run_can_be_is_refused_by_the_dry_run(desk, place):
    said = [
        desk.refused("run", desk.campaign(), "--run", place, *more, says=(place, "--run"))
        for more in ((), ("--dry-run",))
    ]
    assert said[0] == said[1]


def test_options_that_mean_nothing_are_refused(desk):
    """Each was a success although nothing was done as asked."""
    campaign = desk.campaign()
    done = desk.here("run", campaign, "--run", "", "--dry-run")
    assert done.code == 2
    assert "name a directory" in done.err
    desk.refused("plan", campaign, "--figure", "x.jpg", says=("x.jpg", ".png"))
    desk.refused("status", "run", "--interval", "5", says=("--interval", "--watch"))
    desk.refused("doctor", "--run", "nope", says=("nope", "no such run directory"))
    assert not (desk.folder / "nope").exists()
