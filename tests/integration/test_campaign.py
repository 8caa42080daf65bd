"""A whole campaign: what it leaves behind, and that it repeats itself."""

import csv
import json
import shutil
import tomllib
import zipfile

import pytest
from ase.io import read as read_atoms
from safetensors.numpy import load_file

TRIALS, FINALISTS = 6, 3
"""As workflows/ci.toml says."""


def test_every_trial_has_an_end_in_the_journal(finished):
    kinds = [event["event"] for event in finished.hpo.events(finished.run)]
    assert kinds.count("proposed") == TRIALS
    assert kinds.count("placed") == kinds.count("ended") == TRIALS + FINALISTS
    promoted = finished.hpo.events(finished.run, "promoted")
    assert sum(len(event["trials"]) for event in promoted) == FINALISTS
    assert [event["last"] for event in promoted] == [False] * (len(promoted) - 1) + [True]
    assert kinds.count("finished") == 1
    assert kinds[-1] == "finished"


def test_no_two_attempts_hold_a_slot_at_a_time(finished):
    held: dict[str, str] = {}
    for event in finished.hpo.events(finished.run, "placed", "ended"):
        if event["event"] == "placed":
            assert len(event["slots"]) == event["width"]
            for slot in event["slots"]:
                assert slot not in held
                held[slot] = event["trial"]
        else:
            held = {slot: trial for slot, trial in held.items() if trial != event["trial"]}
    assert not held


def test_results_journal_and_leaderboard_agree(finished):
    board = finished.hpo.json("leaderboard", finished.run)
    rows = {row["trial"]: row for row in board["trials"]}
    ended = finished.hpo.events(finished.run, "ended")
    assert len(rows) == TRIALS
    for event in ended:
        folder = finished.run / "trials" / event["trial"]
        place = folder / "attempts" / f"{event['attempt']:03d}"
        result = json.loads((place / "result.json").read_text())
        config = tomllib.loads((folder / "trial.toml").read_text())
        assert result["objective"] == event["objective"]
        assert result["val_mae"] == event["val_mae"]
        assert result["trial"] == config["trial"] == event["trial"]
        assert set(result["val_mae"]) == set(config["heads"])
    for name, row in rows.items():
        last = [event for event in ended if event["trial"] == name][-1]
        keys = ("objective", "val_mae")
        assert {key: row[key] for key in keys} == {key: last[key] for key in keys}
        assert row["epochs"] == last["reached"] == (6 if row["status"] == "completed" else 3)
    finalists = [row for row in board["trials"] if row["status"] == "completed"]
    assert len(finalists) == FINALISTS
    assert board["trials"][:FINALISTS] == sorted(finalists, key=lambda row: row["objective"])


def test_the_proposed_values_are_what_trials_train_with(finished):
    for event in finished.hpo.events(finished.run, "proposed"):
        config = tomllib.loads(
            (finished.run / "trials" / event["trial"] / "trial.toml").read_text()
        )
        for key, value in event["values"].items():
            part, _, name = key.partition(".")
            assert config[part][name] == value


def test_each_split_is_predicted_but_for_train_and_test(finished):
    splits = finished.hpo.json("dataset", "info", finished.run / "data" / "g2_xtb.bp")["splits"]
    assert sum(splits.values()) == 1332, "148 molecules of G2, 9 copies each"
    seen: set[int] = set()
    path = finished.run / "trials" / "t0000" / "attempts" / "001" / "predictions.safetensors"
    arrays = load_file(path)
    for split in ("val", "sel", "cal"):
        indices = arrays[f"{split}/index"]
        assert len(indices) == splits[split]
        assert not seen & set(indices.tolist())
        seen |= set(indices.tolist())
    assert {key.split("/")[0] for key in arrays} == {"val", "sel", "cal"}


def test_summary_and_status(finished):
    summary = json.loads((finished.run / "summary.json").read_text())
    assert summary == finished.printed
    assert set(summary) == {"verdict", "ensemble", "leaderboard", "figures"}
    figures = summary["figures"]
    assert figures["trials"] == TRIALS
    assert figures["attempts"] == TRIALS + FINALISTS
    assert figures["completed"] == FINALISTS
    assert 0 < figures["first_step_seconds"] < figures["cold_start_seconds"]
    assert 0 < figures["utilization"] <= 1
    status = finished.hpo.json("status", finished.run)
    assert status["finished"]
    assert status["controller"] is None
    assert status["running"] == {}
    assert status["best"] == summary["leaderboard"]["trials"][0]["trial"]


def test_the_ensemble_opens_and_tells_what_it_is(finished):
    with zipfile.ZipFile(finished.run / "ensemble.zip") as packed:
        assert packed.testzip() is None
        suffixes = {name.rpartition(".")[2] for name in packed.namelist()}
    assert suffixes <= {"safetensors", "json", "toml", "md", "SHA256SUMS"}, "no code"
    info = finished.hpo.json("ensemble", "info", finished.run / "ensemble.zip")
    assert set(info["heads"]) == {"atomization_energy_per_atom", "partial_charge"}
    for head in info["heads"]:
        shares = [member["weights"].get(head, 0.0) for member in info["members"]]
        assert sum(shares) == pytest.approx(1.0)
    assert info == finished.hpo.json("ensemble", "info", finished.run)


def test_the_ensemble_beats_predicting_the_mean(finished):
    for head in finished.printed["ensemble"]["heads"].values():
        assert head["test_mae"] < 0.6 * head["mean_baseline_mae"]


def test_predictions_come_in_every_format(finished):
    molecules = finished.hpo.root / "workflows" / "molecules.xyz"
    sizes = [len(atoms) for atoms in read_atoms(molecules, ":")]
    ensemble = ("--ensemble", finished.run / "ensemble.zip")
    plain = finished.hpo.json("predict", molecules, *ensemble)
    assert len(plain["structures"]) == len(sizes)
    done = finished.hpo.here("predict", molecules, *ensemble, "--out", "new.csv")
    assert done.code == 0, done.err
    with (finished.hpo.folder / "new.csv").open() as file:
        rows = list(csv.DictReader(file))
    energy = "atomization_energy_per_atom"
    for row in rows:
        low, mean, high = (float(row[energy + end]) for end in ("_lo90", "", "_hi90"))
        assert low < mean < high
        assert float(row[energy + "_std"]) > 0
    done = finished.hpo.here("predict", molecules, *ensemble, "--out", "new.extxyz")
    assert done.code == 0, done.err
    frames = read_atoms(finished.hpo.folder / "new.extxyz", ":")
    assert [len(atoms.arrays["partial_charge"]) for atoms in frames] == sizes
    for atoms, row in zip(frames, rows, strict=True):
        assert atoms.info[energy] == pytest.approx(float(row[energy]), rel=1e-5)


def test_running_a_finished_campaign_again_changes_nothing(finished):
    def results() -> dict[str, tuple[int, bytes]]:
        kept = [p for p in finished.run.rglob("*") if p.is_file() and "controller" not in p.parts]
        kept = [p for p in kept if p.name not in ("events.jsonl", "agent.log")]
        return {str(p): (p.stat().st_mtime_ns, p.read_bytes()) for p in kept}

    before = results()
    placed = len(finished.hpo.events(finished.run, "placed"))
    done = finished.hpo("run", "ci", "--run", finished.run, "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out) == finished.printed
    assert results() == before
    assert len(finished.hpo.events(finished.run, "placed")) == placed


def cut_behind(run, last):
    """Leave a run as a crash right behind an event leaves it, before anything was done about it."""
    journal = run / "events.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    end = next(n for n, line in enumerate(lines) if f'"event":"{last}"'.encode() in line)
    journal.write_bytes(b"".join(lines[: end + 1]))
    for made in ("trials", "report"):
        shutil.rmtree(run / made)
    (run / "summary.json").unlink()


@pytest.mark.slow
def test_one_slot_and_one_seed_make_one_campaign_and_one_whose_journal_was_cut_goes_on(hpo):
    """Of commands: ``test_golden_trials.py`` says that nets repeat themselves."""
    campaign = hpo.fake_campaign(search={"trials": 4, "initial": 3, "rungs": [1, 2]})
    run = hpo.folder / "run"

    def course():
        done = hpo("run", campaign, "--run", run, "--slots", "1")
        assert done.code == 0, done.err
        proposed = [(e["trial"], e["values"]) for e in hpo.events(run, "proposed")]
        keys = ("trial", "outcome", "reached", "objective")
        ended = [{key: e.get(key) for key in keys} for e in hpo.events(run, "ended")]
        return proposed, ended

    proposed, ended = course()
    assert len(proposed) == 4
    cut_behind(run, "placed")
    proposed_again, (cut, *ended_again) = course()
    assert (cut["trial"], cut["outcome"]) == ("t0000", "interrupted")
    assert (proposed_again, ended_again) == (proposed, ended)
    names = {name for name, _ in proposed}
    assert {path.parent.name for path in run.glob("trials/*/trial.toml")} == names


def test_no_number_comes_from_a_log(finished, tmp_path):
    """Law 2: garbage in every log changes no leaderboard, no status and no ensemble."""
    import torch

    run = tmp_path / "run"
    shutil.copytree(finished.run, run)
    logs = [*run.glob("*.log"), *run.glob("trials/*/attempts/*/log")]
    assert len(logs) > TRIALS
    for log in logs:
        log.write_text("val MAE 0.0000 objective -1 epoch 999\n")
    board = finished.hpo.json("leaderboard", run)
    assert board == finished.hpo.json("leaderboard", finished.run)
    torch.set_num_threads(1)  # as a job has it
    built = finished.hpo.json("ensemble", "build", run)
    ensemble = finished.printed["ensemble"]
    names = [[member["trial"] for member in each["members"]] for each in (built, ensemble)]
    assert names[0] == names[1]
    for name, head in ensemble["heads"].items():
        numbers = {key: value for key, value in head.items() if isinstance(value, float)}
        assert {"test_mae", "test_rmse"} <= numbers.keys()
        # the last digits of sums depend on the process
        again = {key: built["heads"][name][key] for key in numbers}
        assert again == pytest.approx(numbers, rel=1e-6)
