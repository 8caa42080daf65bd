"""Every number of the section on importances equals the one computed independently."""

import pytest
from made_campaign import make_campaign
from unit.report.independent_importance import importance
from unit.report.test_course_numbers import numbers_of

from hydragnn_hpo.report.facts import read_facts
from hydragnn_hpo.report.page_blocks import Doubtful
from hydragnn_hpo.report.sections.importance import make_section

# The plain campaign is one of those whose whole page is computed anew: see test_numbers.
WISHES = {
    "few": {"trials": 9, "hosts": 2, "slots": 1},
    "several goals, unfinished, two controllers": {
        "trials": 60,
        "seed": 5,
        "objective": ["val_mae.gap", "val_mae.charge"],
        "finished": False,
        "controllers": 2,
        "reseed": 2,
    },
}


@pytest.mark.parametrize("wishes", WISHES.values(), ids=WISHES)
def test_all_numbers_are_right(tmp_path, wishes):
    run = make_campaign(tmp_path / "run", **wishes)
    found = make_section(read_facts(run))
    assert found is not None
    shown, expected = numbers_of(found.blocks), importance(run.path)
    assert shown.keys() == expected.keys()
    for name, value in shown.items():
        assert value == pytest.approx(expected[name], rel=1e-6, abs=1e-9), name


def test_what_cannot_be_trusted_is_greyed_out(tmp_path):
    run = make_campaign(tmp_path / "run", trials=40, noise_only=True)
    found = make_section(read_facts(run))
    grey = [block for block in found.blocks if isinstance(block, Doubtful)]
    keys = {inner.key for block in grey for inner in block.blocks}
    assert {"mae", "mae.bars", "mae.swarm"} <= keys
    assert all("out-of-bag R2" in block.why or "failed" in block.why for block in grey)
    bare = {getattr(block, "key", None) for block in found.blocks}
    assert "mae" not in bare


def test_nothing_is_said_before_a_trial_has_said_something(tmp_path):
    run = make_campaign(tmp_path / "run", trials=12)
    lines = run.journal.read_bytes().splitlines(keepends=True)
    run.journal.write_bytes(b"".join(line for line in lines[:4]))
    assert make_section(read_facts(run)) is None
