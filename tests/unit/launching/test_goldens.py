"""Every shipped profile: what its steps and ranks are, as it was read against sites' documents."""

from pathlib import Path

import golden_places
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hydragnn_hpo.config.machine import find_profile, known_profiles
from hydragnn_hpo.launching.job import Job, Slot
from hydragnn_hpo.launching.job_table import JobTable, JobTracker
from hydragnn_hpo.launching.profile_adapter import layout_of
from hydragnn_hpo.launching.rank_environment import Rendezvous, make_rank_starts
from hydragnn_hpo.placement.pool import SlotPool

GOLDENS = sorted(path.stem for path in golden_places.FOLDER.glob("*.txt"))


def test_a_profile_without_a_golden_changes_nothing_for_ranks():
    """Such as that of one more scheduler: by ``extends`` it has the ranks of another one."""
    base = find_profile("generic-slurm")
    for name in {*known_profiles()} - {*GOLDENS}:
        profile = find_profile(name)
        for key in ("rank", "layout", "slots_per_host", "slot_order", "interfaces", "scratch"):
            assert getattr(profile, key) == getattr(base, key), f"{name} needs a golden: {key}"


@pytest.mark.parametrize("name", GOLDENS)
def test_ranks_find_what_was_read_against_the_documents(name):
    golden = (golden_places.FOLDER / f"{name}.txt").read_text()

    assert golden_places.render(name) == golden, (
        "if it is meant to differ, run tests/golden_places.py, and read what it wrote line by line"
    )


ADDRESSES = {f"n{number:02d}": f"10.0.0.{number}" for number in range(4)}


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_no_two_trials_share_a_port_a_device_or_a_core(data):
    profile = find_profile(data.draw(st.sampled_from(["frontier", "lumi", "perlmutter", "aurora"])))
    slots = {
        slot.name: slot for host in ADDRESSES for slot in golden_places.slots_of(profile, host)
    }
    pool = SlotPool.of(slots, slot_order=profile.slot_order)
    table = JobTable()
    running = {}
    number = 0
    for width in data.draw(st.lists(st.integers(-3, 24), max_size=30)):
        if width <= 0 and running:  # one ends, and leaves room
            ended = data.draw(st.sampled_from(sorted(running)))
            pool.give_back(running[ended][0].slots)
            table.leave_meeting(running.pop(ended)[0])
        elif width > 0 and (names := pool.take(width)) is not None:
            number += 1
            running[f"t{number}"] = started(f"t{number}", [slots[n] for n in names], table, profile)
        alone(running.values())


def started(name: str, slots: list[Slot], table: JobTable, profile):
    """Return the work and the places of a job, as a fleet would."""
    files = {"log": Path("/l"), "watch": None}
    job = Job(name, "train", len(slots), {}, slots=tuple(slots), **files)
    work = JobTracker.of(job)
    places = []
    for host, part in work.parts.items():
        meeting = table.choose_meeting(work, ADDRESSES[host])
        meet = Rendezvous(meeting.address, meeting.port, "hsn0")
        placed = make_rank_starts(job, part.ranks, site=profile, meet=meet, tag="t")
        places += [(host, place.cores, place.environment) for place in placed]
    variable = layout_of(profile).variable
    return work, [(host, cores, env, env[variable]) for host, cores, env in places]


def alone(running) -> None:
    """Look at all that runs, rank by rank and host by host."""
    ports = set()
    taken = set()
    for work, places in running:
        meeting = {(env["MASTER_ADDR"], env["MASTER_PORT"]) for _, _, env, _ in places}
        assert len(meeting) == 1
        address, port = meeting.pop()
        assert address == ADDRESSES[work.slots[0].rpartition(":")[0]]
        assert 20000 <= int(port) <= 29999
        assert (address, port) not in ports
        ports.add((address, port))
        for host, cores, env, device in places:
            assert int(env["OMP_NUM_THREADS"]) == len(cores) > 0
            mine = {(host, "device", device)} | {(host, core) for core in cores}
            assert not mine & taken
            taken |= mine
        assert sorted(int(env["RANK"]) for _, _, env, _ in places) == list(range(len(places)))
