"""Commands as trials: what they are told, and what counts as their end."""

import json
import tomllib
from pathlib import Path

import pytest

from hydragnn_hpo.campaign.outcome import EndedAttempt
from hydragnn_hpo.campaign.trial_kind import CommandTrials, MpiTrainings, make_trial_kind
from hydragnn_hpo.config.campaign_config import CampaignConfig
from hydragnn_hpo.config.schema import parse_config
from hydragnn_hpo.launching.job import Slot
from hydragnn_hpo.layout import RunDir, TrialDir

SLOTS = tuple(Slot("here", index, (index,), "cpu") for index in range(2))


def work(objective="weighted", per="rank"):
    values = {
        "name": "any",
        "trial": {"ranks": 8, "launch": {"nested": True}},
        "space": {"launch.tensor": [1, 2]},
        "search": {"trials": 1, "finalists": 1, "rungs": [2, 6], "objective": objective},
        "command": {"argv": ["do"], "per": per, "width": 2},
    }
    config = parse_config(values, CampaignConfig, where="c.toml")
    return CommandTrials(config, config.command)


def test_trial_toml_holds_template_values_name_and_seed():
    config = work().configure("t0003", {"launch.tensor": 2})
    seed = config.pop("seed")
    assert config == {"trial": "t0003", "ranks": 8, "launch": {"nested": True, "tensor": 2}}
    assert isinstance(seed, int)
    assert work().configure("t0004", {"launch.tensor": 2})["seed"] != seed
    assert tomllib.loads(work().render_config(config)) == config


def ended(folder: Path, result=None, codes=(0, 0), *, objective="weighted", **more):
    if result is not None:
        text = result if isinstance(result, str) else json.dumps(result)
        (folder / "result.json").write_text(text)
    (folder / "log").write_text("something\nsaid last\n")
    return work(objective).read_end(EndedAttempt(folder, codes, **more), until=6)


def test_a_result_proves_an_end_whatever_the_codes_and_may_say_how_far_it_came(tmp_path):
    result = ended(tmp_path, {"status": "completed", "objective": 0.5, "speed": 7}, (3, -9))
    assert (result["outcome"], result["objective"], result["speed"]) == ("completed", 0.5, 7)
    assert result["reached"] == 6
    stopped = {"status": "stopped", "seconds": 3.5, "epochs": 4}
    result = ended(tmp_path, stopped, objective="seconds")
    assert (result["outcome"], result["reached"]) == ("stopped", 4)


def test_names_that_the_journal_uses_and_what_cannot_be_shown_are_left_out(tmp_path):
    names = ("time", "event", "epoch", "trial", "attempt", "outcome", "reached", "score", "kind")
    result = {"status": "completed", "objective": 1, "mine": 4} | dict.fromkeys(names, 3)
    actual = ended(tmp_path, result | {"message": 3, "durable": 3, "width": 3})
    ours = {"outcome": "completed", "reason": None, "reached": 6, "val_mae": {}}
    assert actual == ours | {"objective": 1, "mine": 4}
    result = {"status": "completed", "objective": 1, "epochs": "all", "reason": 5}
    actual = ended(tmp_path, result | {"val_mae": {"a": 2, "b": "low"}})
    assert (actual["reached"], actual["reason"], actual["val_mae"]) == (6, None, {"a": 2.0})
    assert ended(tmp_path, result | {"val_mae": 3})["val_mae"] == {}


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ('{"status": "completed", "objective": NaN}', "has no finite number for objective"),
        ({"status": "done", "objective": 1}, "status is 'done'"),
        ({"status": "failed", "reason": "tired"}, "failed for the reason 'tired'"),
        ("{", "is damaged"),
        ("[]", "status is None"),
    ],
)
def test_a_malformed_result_is_a_bug(tmp_path, result, message):
    results = ended(tmp_path, result)
    assert (results["outcome"], results["reason"]) == ("failed", "bug")
    assert message in results["message"]


@pytest.mark.parametrize("result", [{}, {"objective": "low"}, {"objective": None}, {"speed": 1}])
def test_a_result_without_the_number_means_that_the_campaign_is_wrong(tmp_path, result):
    results = ended(tmp_path, {"status": "completed", **result})
    assert (results["outcome"], results["reason"]) == ("failed", "bad_config")
    assert "result.json: has no finite number for objective: something" in results["message"]


def test_a_failure_keeps_its_reason(tmp_path):
    actual = ended(tmp_path, {"status": "failed", "reason": "out_of_memory", "message": "70 GB"})
    assert actual == {"outcome": "failed", "reason": "out_of_memory", "message": "70 GB"}


@pytest.mark.parametrize(
    ("codes", "first"),
    [((0,), None), ((1, 0), None), ((3, 3), None), ((5,), 0), ((-9, 1), 1), ((139,), 0)],
)
def test_no_result_is_a_bug_of_a_command_that_ended_by_itself(tmp_path, codes, first):
    """3 and 5 mean something else where our own trainings end with them."""
    result = ended(tmp_path, codes=codes, first=first)
    assert (result["outcome"], result["reason"]) == ("failed", "bug")
    assert result["message"].endswith("without result.json: something | said last")


@pytest.mark.parametrize(
    ("codes", "first"),
    [((), None), ((-9, -9), None), ((-9, 1), 0), ((-9, 3), 0), ((75, 5), 0), ((143, 1), 0)],
)
def test_what_was_ended_from_outside_goes_on_later(tmp_path, codes, first):
    result = ended(tmp_path, codes=codes, first=first)
    assert (result["outcome"], result["reason"]) == ("interrupted", "host_lost")


DUMP = """Fatal Python error: Segmentation fault

Current thread 0x00007f0 (most recent call first):
  File "/usr/lib/python3.12/ctypes/__init__.py", line 530 in string_at
  File "/home/x/project/train.py", line 7 in descend
  File "/home/x/project/train.py", line 20 in <module>

Extension modules: numpy (total: 1)
"""


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (["{python}", "/home/x/project/train.py", "{trial}"], True),
        (["{python}", "-m", "project.train"], True),
        (["sh", "other.sh"], False),
    ],
)
def test_a_command_that_crashed_is_a_bug_at_a_line_of_its_script(tmp_path, argv, named):
    (tmp_path / "log").write_text(DUMP)
    trials = work()
    trials.command = trials.command.model_copy(update={"argv": tuple(argv)})
    result = trials.read_end(EndedAttempt(tmp_path, (139,), first=0), until=6)
    assert (result["outcome"], result["reason"]) == ("failed", "bug")
    message = "ended (exit code 139) without result.json: "
    place = "/home/x/project/train.py:7 in descend"
    assert result["message"].startswith(message)
    assert result["message"].endswith(place) == named


@pytest.mark.parametrize("restarts", [0, 9])
@pytest.mark.parametrize(("codes", "first"), [((1,), 0), ((139,), None), ((1, -9), 0)])
def test_a_command_that_lost_a_host_is_no_bug_whatever_its_code(tmp_path, codes, first, restarts):
    more = {"first": first, "away": ("b",), "restarts": restarts, "max_restarts": 5}
    result = ended(tmp_path, codes=codes, **more)
    assert (result["outcome"], result["reason"]) == ("interrupted", "host_lost")
    assert result["excused"]


@pytest.mark.parametrize(
    ("how", "outcome", "reason"),
    [
        ({"codes": (-9,), "restarts": 4, "max_restarts": 5}, "interrupted", "host_lost"),
        ({"codes": (-9,), "restarts": 5, "max_restarts": 5}, "failed", "bug"),
        ({"codes": (1,), "stop_reason": "paused"}, "interrupted", "paused"),
        ({"codes": (1,), "stop_reason": "cancelled"}, "cancelled", "cancelled"),
        ({"codes": (73,), "error": "no lease."}, "interrupted", "host_lost"),
    ],
)
def test_an_end_without_a_result_is_what_led_to_it(tmp_path, how, outcome, reason):
    result = ended(tmp_path, **how)
    assert (result["outcome"], result["reason"]) == (outcome, reason)


def trainings(tmp_path, *access, backend="mpiexec"):
    values = {
        "name": "mixed",
        "data": [{"card": f"{number}.toml", "access": one} for number, one in enumerate(access)],
        "space": {"model.layers": [1, 2]},
        "search": {"brain": "random", "trials": 1, "finalists": 1, "rungs": [2, 6]},
        "machine": {"backend": backend, "interface": "lo"},
    }
    config = parse_config(values, CampaignConfig, where="c.toml")
    cards = {Path(entry.card): Path(entry.card).stem for entry in config.data}
    return make_trial_kind(config, RunDir(tmp_path), cards)


@pytest.mark.parametrize(("backend", "launcher"), [("mpiexec", "mpiexec"), ("slurm", "srun")])
def test_ranks_that_share_graphs_are_started_by_a_launcher(tmp_path, backend, launcher):
    work = trainings(tmp_path, "stage", "distributed", backend=backend)
    assert isinstance(work, MpiTrainings)
    assert work.choose_rank_slots(SLOTS) == SLOTS[:1]
    spec = work.make_spec(TrialDir(tmp_path / "t0"), attempt=3, epochs=6, slots=SLOTS)
    assert spec["command"]["launcher"] == launcher
    trial = ["-m", "hydragnn_hpo", "trial", "{trial}", "--attempt", "3"]
    assert spec["command"]["argv"] == ["{python}", "-P", "-m", "mpi4py", *trial]
    assert [rank["environment"]["RANK"] for rank in spec["launch"]["order"]["ranks"]] == ["0", "1"]


def test_ranks_that_share_nothing_are_forked(tmp_path):
    work = trainings(tmp_path, "stage", "windows")
    assert (work.kind, work.choose_rank_slots(SLOTS)) == ("train", SLOTS)
    assert [entry.access for entry in work._stores] == ["stage", "windows"]


@pytest.mark.parametrize(
    ("code", "outcome", "reason"),
    [
        (3, "interrupted", "walltime"),
        (5, "interrupted", "disk_full"),
        (6, "interrupted", "resized"),
        (75, "interrupted", "host_lost"),
        (139, "interrupted", "crashed"),
        (265, "failed", "out_of_memory"),
        (1, "failed", "bug"),
    ],
)
def test_the_code_of_a_launched_training_means_what_that_of_a_forked_one_means(
    tmp_path, code, outcome, reason
):
    (tmp_path / "log").write_text("mpiexec: no such host\n")
    work = trainings(tmp_path, "distributed")
    end = work.read_end(EndedAttempt(tmp_path, (code,), first=0), until=6)
    assert (end["outcome"], end["reason"]) == (outcome, reason)
    if code == 1:
        assert end["message"] == "was not started: mpiexec: no such host"
