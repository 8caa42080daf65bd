"""How wide a trial may be: by the graphs that each rank has of a step."""

from pathlib import Path

import pytest

from hydragnn_hpo.campaign.dispatch import Dispatch, choose_profile, fill_profile, merge_slots
from hydragnn_hpo.campaign.state import State, Trial
from hydragnn_hpo.campaign.trial_kind import CommandTrials, TrainingTrials
from hydragnn_hpo.config.campaign_config import CampaignConfig
from hydragnn_hpo.config.machine import find_profile
from hydragnn_hpo.config.schema import parse_config
from hydragnn_hpo.config.trial_config import TrialConfig
from hydragnn_hpo.launching.job import Slot
from hydragnn_hpo.layout import RunDir
from hydragnn_hpo.placement.task import StartTask

STATS = {
    "splits": {"train": 1000},
    "train_nodes": 10_000,
    "train_edges": 90_000,
    "nodes": {"mean": 40, "min": 40, "max": 40},
    "edges": {"mean": 500, "min": 500, "max": 500},
    "degree": {"5.0": 9.0},
}
CAMPAIGN = {
    "name": "x",
    "data": [{"card": "x"}],
    "trial": {},
    "space": {"model.features": [8, 16]},
    "search": {"trials": 6, "rungs": [2]},
}


MODEL = {"conv": "schnet", "features": 256, "layers": 6}


@pytest.fixture
def dispatch(tmp_path):
    """Of a campaign of trainings on a machine without slots."""
    campaign = parse_config(CAMPAIGN, CampaignConfig, "x")
    run = RunDir(tmp_path)
    kind = TrainingTrials(campaign, run, {Path("x"): "x"})
    dispatch = Dispatch(campaign, run, kind, find_profile())
    dispatch.settle(STATS, ())
    return dispatch


def choices(dispatch, slots, model=MODEL, **training):
    dispatch.lay_out([Slot("h", number, (), "cpu") for number in range(slots)], State())
    values = {"data": {"store": "x"}, "model": model, "heads": {"e": {}}, "training": training}
    dispatch.configs["t"] = TrialConfig.model_validate(values)
    return dispatch.choices(Trial("t", {}, until=10))


@pytest.mark.parametrize(
    ("training", "width"),
    [
        ({"global_batch": 64, "min_graphs_per_rank": 32}, 2),
        ({"global_batch": 64, "min_graphs_per_rank": 16}, 4),
        # 10,000 atoms in 67 steps of 190 - 40 atoms: 15 graphs a step are 3 times 4.
        ({"batch_atoms": 190}, 2),
        # 90,000 edges in 60 steps: 17 graphs a step.
        ({"batch_edges": 2000}, 4),
        ({"batch_edges": 2000, "min_graphs_per_rank": 16}, 1),
    ],
)
def test_a_trial_is_no_wider_than_its_steps_have_graphs(dispatch, training, width):
    widths, shared = choices(dispatch, 64, **training)
    assert (widths[-1], shared) == (width, False)


def test_a_trial_without_memory_is_given_no_width_that_is_not_there(dispatch):
    """It waited for ever for twice the ranks, and so did its campaign."""
    assert choices(dispatch, 2, model={"conv": "schnet"})[0][-1] == 2


def test_slots_of_a_lost_host_stay_known_to_what_was_placed_there(dispatch):
    dispatch.lay_out([Slot("a", 0, (), "cpu")], State())
    dispatch.lay_out([Slot("b", 0, (), "cpu")], State())
    assert dispatch._places(StartTask("t", ("a:0",), 1, ""))[0].host == "a"
    assert dispatch.pool.hosts == ("b",)


@pytest.mark.parametrize(
    ("command", "width", "other_hosts"),
    [
        ({"per": "rank"}, 4, ()),
        ({"per": "trial"}, 1, ("b",)),
        ({"launcher": "srun"}, 1, ("b",)),
    ],
)
def test_a_command_names_the_hosts_on_which_it_has_no_rank(tmp_path, command, width, other_hosts):
    values = {"name": "x", "trial": {}, "space": {"rate": [1, 2]}, "search": CAMPAIGN["search"]}
    values["command"] = {"argv": ["do"], "width": 4, **command}
    campaign = parse_config(values, CampaignConfig, "x")
    run = RunDir(tmp_path)
    dispatch = Dispatch(campaign, run, CommandTrials(campaign, campaign.command), find_profile())
    dispatch.lay_out([Slot(host, n, (), "cpu") for host in "ab" for n in (0, 1)], State())
    dispatch.configs["t"] = {"trial": "t"}
    start = StartTask("t", ("a:0", "a:1", "b:0", "b:1"), width=4, reason="x")
    job = dispatch.prepare(Trial("t", {}, until=2, attempt=1), start)
    assert (job.width, job.other_hosts) == (width, other_hosts)


def slot(device="cpu", memory_mb=0):
    return Slot("h", 0, (0,), device, memory_mb=memory_mb)


def test_a_profile_is_that_of_the_devices():
    here, generic, frontier = (find_profile(n) for n in (None, "generic-slurm", "frontier"))
    assert choose_profile([slot()], here, 1) == here
    assert choose_profile([slot("cuda:0")], here, 1).device == "gpu"
    assert fill_profile(frontier, [slot("cuda:0", 32_000)], 1) == frontier, "it says all itself"
    assert fill_profile(frontier, [], 1) == frontier, "they are not known yet"
    assert fill_profile(here, [slot("cuda:0")], 1).flops_per_second == generic.flops_per_second
    result = fill_profile(generic, [slot("cpu", 2000)], 1)
    assert (result.device, result.flops_per_second) == ("cpu", here.flops_per_second)
    kept = ("name", "backend", "cold_start_seconds", "hosts_per_group", "batch")
    assert [getattr(result, key) for key in kept] == [getattr(generic, key) for key in kept]


def test_memory_that_a_profile_does_not_say_is_that_of_the_smallest_device_not_of_a_share():
    slots = [slot("cuda:0", 20_000), slot("cuda:0", 10_000)]
    generic = find_profile("generic-slurm")
    for profile in (choose_profile(slots, find_profile(), 4), fill_profile(generic, slots, 4)):
        assert profile.memory_bytes == pytest.approx(4 * 10_000 * 2**20)


def test_a_job_may_have_less_memory_than_its_profile_says():
    """A site's default for jobs that ask for none, say; ``MemoryGroup`` finds it."""
    here = find_profile().model_copy(update={"memory_gb": 8.0})
    assert fill_profile(here, [slot("cpu", 500)], 1).memory_bytes == 500 * 2**20
    assert fill_profile(here, [slot("cpu", 90_000)], 1).memory_gb == 8.0
    assert fill_profile(here, [slot("cpu")], 1).memory_gb == 8.0


def test_a_rank_that_needs_its_device_alone_has_all_its_cores_and_memory():
    shares = [Slot("h", n, (n, 8 + n), "cuda:0", "3", memory_mb=10_000) for n in range(4)]
    cores = (0, 1, 2, 3, 8, 9, 10, 11)
    assert merge_slots(shares) == Slot("h", 0, cores, "cuda:0", "3", memory_mb=40_000)
    assert merge_slots(shares[:1]) == shares[0]
