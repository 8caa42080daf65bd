"""Opening a run directory: what a killed process left behind."""

import pytest

from hydragnn_hpo.campaign.setup import tidy
from hydragnn_hpo.layout import RunDir

LEFT = ("events.part", "data/.tiny.bp.1.part", "trials/t0000/checkpoints/.last.json.2.part")


@pytest.mark.parametrize("alive", [False, True])
def test_what_was_left_unfinished_goes_but_not_what_a_trial_is_writing(tmp_path, alive):
    for name in (*LEFT, ".summary.json.9.part", "trials/t0000/trial.toml"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    tidy(RunDir(tmp_path), trials_may_live=alive)
    left = {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()}
    kept = {"trials/t0000/trial.toml", "events.part"}
    assert left == kept | ({LEFT[2]} if alive else set())
