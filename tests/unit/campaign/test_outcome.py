"""How an attempt ended, from the exit codes of its ranks."""

import signal

import pytest

from hydragnn_hpo.campaign.outcome import outcome_of
from hydragnn_hpo.config.trial import DISK_FULL, INTERRUPTED, PEER_LOST, STALE

SENTENCE = "rank 0 has not moved for 300 s, rank 3 is at step 120 (data) for 301 s; ending"


def ended(folder, codes, *, restarts=0, asked=False):
    return outcome_of(folder, codes, asked_to_stop=asked, restarts=restarts, max_restarts=2)


def test_a_rank_that_named_another_makes_the_attempt_stale(tmp_path):
    """The others saw their peer vanish, and the one that hung was killed."""
    (tmp_path / "log").write_text(f"first\n{SENTENCE}\n")
    found = ended(tmp_path, [STALE, PEER_LOST, -signal.SIGKILL])
    assert (found["outcome"], found["reason"]) == ("interrupted", "stale")
    assert SENTENCE in found["message"]


def test_who_hangs_again_and_again_is_a_bug(tmp_path):
    (tmp_path / "log").write_text(SENTENCE)
    found = ended(tmp_path, [STALE, PEER_LOST], restarts=2)
    assert (found["outcome"], found["reason"]) == ("failed", "bug")
    assert SENTENCE in found["message"]


@pytest.mark.parametrize(
    ("codes", "reason"),
    [
        ([INTERRUPTED, STALE], "walltime"),
        ([DISK_FULL, STALE], "disk_full"),
        ([PEER_LOST, 1], "host_lost"),
    ],
)
def test_other_codes_say_more_or_less(tmp_path, codes, reason):
    assert ended(tmp_path, codes)["reason"] == reason
