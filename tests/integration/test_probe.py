"""Real ranks that sum: the job ``probe``, from its order to its verdict."""

import time

import pytest
from processes import until

from hydragnn_hpo.config.machine import find_profile
from hydragnn_hpo.errors import JobError
from hydragnn_hpo.host_checks.network_probe import check_pairs, make_probe_job, read_answer
from hydragnn_hpo.launching.transports.local import LocalBackend

pytestmark = pytest.mark.slow

SECONDS = 400.0
"""Patience, and a lease that a pause of this machine does not reach."""


@pytest.fixture(scope="module")
def backend(tmp_path_factory):
    with LocalBackend(
        slots=2, run_dir=tmp_path_factory.mktemp("run"), lease_seconds=SECONDS
    ) as made:
        yield made


def ended(backend, job):
    """Run a job; gives the codes of its ranks."""
    backend.start(job)
    events = []

    def over():
        events.extend(backend.poll(0.1))
        return [event for event in events if event.kind == "ended" and event.job == job.id]

    return until(over, "end of the job", SECONDS)[0].data["codes"]


def test_two_ranks_sum_rightly_and_say_how_fast(backend, tmp_path):
    job = make_probe_job(tmp_path / "pair", backend.slots)
    began = time.monotonic()

    codes = ended(backend, job)

    assert codes == [0, 0], job.log.read_text()
    answer = read_answer(job.log.parent)
    took = time.monotonic() - began
    assert [rank["wrong"] for rank in answer["ranks"]] == [0, 0]
    assert 0.0 < answer["latency_seconds"] < took
    for entry in answer["bandwidth"]:  # two ranks: each byte passes once
        assert entry["bus_bytes_per_second"] * entry["seconds"] == pytest.approx(entry["bytes"])
        assert entry["seconds"] < took
    findings = check_pairs({("a", "b"): answer}, {}, find_profile())
    states = {finding.check: finding.state for finding in findings}
    assert states["all-reduce sums"] == states["network used"] == "ok"


def test_a_rank_alone_answers_too(backend, tmp_path):
    job = make_probe_job(tmp_path / "alone", backend.slots[:1])
    assert ended(backend, job) == [0], job.log.read_text()
    assert read_answer(job.log.parent)["world"] == 1


def test_ranks_that_cannot_do_their_part_say_why(backend, tmp_path):
    job = make_probe_job(tmp_path / "greedy", backend.slots)
    job.spec["sizes"] = [2**60]
    assert any(ended(backend, job))
    with pytest.raises(JobError, match=r"rank [01] on .*memory"):
        read_answer(job.log.parent)
