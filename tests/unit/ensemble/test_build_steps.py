"""Law 6: the calibration knows the labels of ``cal`` and no others."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from hydragnn_hpo.config.data_config import SPLITS, CardConfig
from hydragnn_hpo.config.schema import dump_config, load_config
from hydragnn_hpo.config.trial_config import TrialConfig
from hydragnn_hpo.data.columns import Columns
from hydragnn_hpo.data.store_access import open_store
from hydragnn_hpo.data.store_parts import write_store
from hydragnn_hpo.ensemble.artefact import read_artefact
from hydragnn_hpo.ensemble.build import build_ensemble
from hydragnn_hpo.ensemble.calibrate import Calibration, calibrate
from hydragnn_hpo.ensemble.engine import Member
from hydragnn_hpo.ensemble.inference import Ensemble
from hydragnn_hpo.model.gnn import MultiHeadGNN, variance_key
from hydragnn_hpo.training import checkpoint

Make = Callable[..., Path]


def calibrations(run: Path) -> dict[str, Calibration]:
    build_ensemble(run)
    manifest = read_artefact(run / "ensemble.zip").manifest
    return {name: head.calibration for name, head in manifest.heads.items()}


def change_labels(run: Path, *splits: str) -> None:
    """Add noise to the labels of some splits; what was recorded of the store stays."""
    store = run / "data/toy.bp"
    columns = open_store(store)
    assert isinstance(columns, Columns)
    card, rng = load_config(store / "card.toml", CardConfig), np.random.default_rng(1)
    chosen = np.isin(columns.split, [SPLITS.index(name) for name in splits])
    for name, values in columns.targets.items():
        rows = np.repeat(chosen, columns.num_nodes()) if name == "charge" else chosen
        columns.targets[name] = values + rows[:, None] * rng.normal(size=values.shape)
    shutil.rmtree(store)
    stats = {name: value for name, value in columns.stats.items() if name != "checksum"}
    write_store(store, [columns], stats, card)


@pytest.mark.slow
def test_only_labels_of_cal_change_the_calibration(make_run: Make) -> None:
    run = make_run(trials=4, method="top")
    before = calibrations(run)
    change_labels(run, "train", "val", "sel", "test")
    assert calibrations(run) == before
    change_labels(run, "cal")
    after = calibrations(run)
    for name in before:
        assert after[name].quantiles != before[name].quantiles
        assert (after[name].a, after[name].b) != (before[name].a, before[name].b)


def test_kinds_of_structures_come_from_the_campaign(make_run: Make) -> None:
    run = make_run(trials=2, intervals="size")
    build_ensemble(run)
    strata = read_artefact(run / "ensemble.zip").manifest.strata
    assert strata.by == "size"
    cal = open_store(run / "data/toy.bp")
    sizes = np.sort(cal.num_nodes()[cal.indices_of("cal")])
    assert set(strata.edges) <= set(sizes.tolist())


def predict_variances(run: Path, trials: list[str], predict_alone: Callable[..., dict]) -> None:
    """Give the energy heads of some trials a variance; stored predictions lack it, as ever."""
    columns = open_store(run / "data/toy.bp")
    for number, trial in enumerate(trials):
        folder = run / "trials" / trial
        config = load_config(folder / "trial.toml", TrialConfig)
        heads = dict(config.heads)
        heads["energy"] = heads["energy"].model_copy(update={"loss": "nll"})
        config = config.model_copy(update={"heads": heads})
        (folder / "trial.toml").write_text(dump_config(config))
        torch.manual_seed(number)
        model = MultiHeadGNN(config.model, config.heads, columns.stats["targets"])
        checkpoint.write_checkpoint(folder / "checkpoints/best.safetensors", model.state_dict(), {})
        member = Member(trial, {}, model.eval(), config.model.cutoff, torch.float32)
        arrays = {}
        for split in ("val", "sel", "cal"):
            arrays[f"{split}/index"] = columns.indices_of(split)
            for head, values in predict_alone(member, columns, arrays[f"{split}/index"]).items():
                if head != variance_key("energy"):
                    arrays[f"{split}/{head}"] = values
        save_file(arrays, folder / "attempts/001/predictions.safetensors")


def test_variances_that_members_predict_reach_sigma(
    make_run: Make, predict_alone: Callable[..., dict]
) -> None:
    """The mean of the members' variances, 0 of the one that predicts none, times c."""
    run = make_run(trials=3, method="top", members=3)
    predict_variances(run, ["t0001", "t0002"], predict_alone)
    build_ensemble(run)
    columns, ensemble = open_store(run / "data/toy.bp"), Ensemble.load(run / "ensemble.zip")
    known = ensemble.manifest.heads["energy"].calibration
    indices = columns.indices_of("test")
    noises = []
    for member in ensemble.members:
        said = predict_alone(member, columns, indices)
        noises.append(said.get(variance_key("energy"), np.zeros((len(indices), 1))))
    assert sum(bool(noise.any()) for noise in noises) == 2
    head = ensemble.predict(columns, indices).heads["energy"]
    noise = sum(noises) / 3
    expected = np.sqrt(known.a * head.std_epistemic**2 + known.c * noise + known.b)
    np.testing.assert_allclose(head.std, expected, rtol=1e-5)
    cal = mixed_on_cal(run, ensemble)
    assert known.c == pytest.approx(cal.c)
    assert known.quantiles["0.9"] == pytest.approx(cal.quantiles["0.9"], rel=1e-4)


def mixed_on_cal(run: Path, ensemble: Ensemble) -> Calibration:
    """Calibrate once more, with what the finished ensemble itself says of ``cal``."""
    columns = open_store(run / "data/toy.bp")
    indices = columns.indices_of("cal")
    moments = ensemble.moments(columns, indices)["energy"]
    truth = columns.targets["energy"][indices]
    return calibrate(
        truth - moments.mean,
        moments.spread,
        group=columns.group[indices],
        largest=moments.spread[:, 0],
        scale=float(columns.stats["targets"]["energy"]["std"]),
        noise=moments.noise,
    )
