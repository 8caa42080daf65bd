"""How an attempt ended, and what becomes of its trial."""

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import get_type_hints

import pytest
from unit.campaign.stub_campaign import campaign

from hydragnn_hpo.campaign.journal import encode, read_journal
from hydragnn_hpo.campaign.outcome import (
    EndedAttempt,
    find_failed_host,
    read_outcome,
    retry_out_of_memory,
)
from hydragnn_hpo.campaign.trial_kind import make_trial_kind
from hydragnn_hpo.config.trial_config import (
    DISK_FULL,
    FILES_AWAY,
    INTERRUPTED,
    OUT_OF_MEMORY,
    PEER_LOST,
    STALE,
)
from hydragnn_hpo.errors import StorageError
from hydragnn_hpo.journal_events import AttemptOutcome
from hydragnn_hpo.layout import RunDir

SENTENCE = "rank 0 has not moved for 300 s, rank 3 is at step 120 (data) for 301 s; ending"


def ended(folder, codes, *, restarts=0, stop_reason=None):
    return read_outcome(EndedAttempt(folder, codes, stop_reason, restarts, max_restarts=2))


def test_a_rank_that_named_another_makes_the_attempt_stale_and_again_and_again_a_bug(tmp_path):
    """The others saw their peer vanish, and the one that hung was killed."""
    (tmp_path / "log").write_text(f"first\n{SENTENCE}\n")
    codes = [STALE, PEER_LOST, -signal.SIGKILL]
    for restarts, ends in ((1, ("interrupted", "stale")), (2, ("failed", "bug"))):
        result = ended(tmp_path, codes, restarts=restarts)
        assert (result["outcome"], result["reason"]) == ends
        assert SENTENCE in result["message"]


@pytest.mark.parametrize(
    ("codes", "reason"),
    [
        ([INTERRUPTED, STALE], "walltime"),
        ([DISK_FULL, STALE], "disk_full"),
        ([PEER_LOST, 1], "host_lost"),
        ([PEER_LOST, FILES_AWAY], "files_away"),
    ],
)
def test_other_codes_say_more_or_less(tmp_path, codes, reason):
    assert ended(tmp_path, codes)["reason"] == reason


def test_a_result_that_a_file_server_keeps_back_is_no_failure(tmp_path, monkeypatch):
    """The next controller finds it there: no finished result is lost."""
    (tmp_path / "result.json").write_text('{"status": "completed", "epochs": 4, "objective": 0.5}')

    def away(path):
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", away)
        with pytest.raises(StorageError, match="Stale file handle"):
            ended(tmp_path, [0])
    assert ended(tmp_path, [0])["outcome"] == "completed"


@pytest.mark.parametrize(
    ("stop_reason", "status", "outcome", "reason"),
    [
        (None, "completed", "completed", None),
        (None, "cancelled", "cancelled", None),
        ("median", "cancelled", "stopped", "median"),
        ("median", "stopped", "stopped", None),
        ("cancelled", "cancelled", "cancelled", None),
    ],
)
def test_a_result_says_how_it_ended_unless_a_rule_had_requested_it(
    tmp_path, stop_reason, status, outcome, reason
):
    result = {"status": status, "epochs": 4, "objective": 0.5, "parameters": 10, "note": "x"}
    (tmp_path / "result.json").write_text(json.dumps(result))
    results = ended(tmp_path, [0], stop_reason=stop_reason)
    assert (results["outcome"], results.get("reason")) == (outcome, reason)
    kept = {key: results[key] for key in results if key not in ("outcome", "reason")}
    assert kept == {"reached": 4, "objective": 0.5, "parameters": 10}


@pytest.mark.parametrize("content", ["", "[1]", '{"status": "fine"}', '{"status": "failed"}'])
def test_a_result_that_is_none_is_a_bug_of_who_wrote_it(tmp_path, content):
    (tmp_path / "result.json").write_text(content)
    result = ended(tmp_path, [0])
    assert (result["outcome"], result["reason"]) == ("failed", "bug")
    assert "result.json" in result["message"]


@pytest.mark.parametrize(
    ("stop_reason", "outcome", "reason"),
    [
        ("resized", "interrupted", "resized"),
        ("paused", "interrupted", "paused"),
        ("cancelled", "cancelled", "cancelled"),
    ],
)
def test_without_a_result_it_ended_as_it_was_requested_to(tmp_path, stop_reason, outcome, reason):
    result = ended(tmp_path, [INTERRUPTED], stop_reason=stop_reason)
    assert (result["outcome"], result["reason"]) == (outcome, reason)


FULL = {"outcome": "failed", "reason": "out_of_memory", "message": "no memory left"}


def test_without_memory_it_first_gets_its_device_alone_then_more_ranks():
    alone = retry_out_of_memory(FULL, width=1, widths=(1, 2, 4), shared=True)
    assert (alone["outcome"], alone["whole"]) == ("interrupted", True)
    wider = retry_out_of_memory(FULL, width=1, widths=(1, 2, 4), shared=False)
    assert (wider["outcome"], wider["least"]) == ("interrupted", 2)
    assert retry_out_of_memory(FULL, width=4, widths=(1, 2, 4), shared=False) == FULL
    other = {"outcome": "failed", "reason": "diverged"}
    assert retry_out_of_memory(other, width=1, widths=(1, 2, 4), shared=True) == other


def test_a_rank_that_the_kernel_killed_for_memory_is_tried_again_then_a_failure(tmp_path):
    killed = ended(tmp_path, [PEER_LOST, OUT_OF_MEMORY], restarts=9)
    assert (killed["outcome"], killed["reason"]) == ("failed", "out_of_memory")
    assert killed["message"].startswith("the kernel killed rank 1, as the memory")
    again = retry_out_of_memory(killed, width=1, widths=(1,), shared=False, as_it_is=True)
    assert (again["outcome"], again["reason"]) == ("interrupted", "out_of_memory")
    assert not {"whole", "least"} & again.keys()
    assert retry_out_of_memory(killed, width=1, widths=(1,), shared=False) == killed
    wider = retry_out_of_memory(killed, width=1, widths=(1, 2), shared=False, as_it_is=True)
    assert wider["least"] == 2


CRASHING = """
import ctypes, faulthandler, threading
faulthandler.enable()
threading.Thread(target=threading.Event().wait, daemon=True).start()
class MyConv:
    def forward(self):
        ctypes.string_at(0)
MyConv().forward()
"""


@pytest.fixture
def crashed(tmp_path):
    """Leave the log of a rank that read where nothing is, in a user's package."""
    package = tmp_path / "users_package"
    package.mkdir()
    (package / "convs.py").write_text(CRASHING)
    call = "import runpy, numpy; runpy.run_path('users_package/convs.py')"
    with (tmp_path / "log").open("w") as log:
        done = subprocess.run([sys.executable, "-c", call], stderr=log, cwd=tmp_path, check=False)
    assert done.returncode == -signal.SIGSEGV
    assert "Extension modules: numpy" in (tmp_path / "log").read_text()
    return tmp_path


def crash(folder, codes=(-11,), package="users_package", **known):
    return read_outcome(EndedAttempt(folder, codes, package=package, **known))


def test_a_second_crash_is_a_bug_at_a_line_of_the_users_file_and_of_no_library(crashed):
    sentence = "users_package/convs.py:7 in forward: the program crashed here (SIGSEGV)."
    first = crash(crashed)
    assert (first["outcome"], first["reason"], first["message"]) == (
        *("interrupted", "crashed"),
        sentence,
    )
    second = crash(crashed, crashes=1)
    assert (second["outcome"], second["reason"], second["message"]) == ("failed", "bug", sentence)
    message = crash(crashed, package="hydragnn_hpo", crashes=1)["message"]
    assert message == "the program crashed (SIGSEGV) outside of any file of hydragnn_hpo."


@pytest.mark.parametrize(
    ("codes", "first", "away", "reason"),
    [
        ((-9, -6), 0, (), "host_lost"),
        ((-9, -6), None, (), "host_lost"),
        ((-15, -6), 1, (), "crashed"),
        ((-6, -6), None, ("h1",), "host_lost"),
        ((PEER_LOST, -6), 0, (), "host_lost"),
        ((-9,), 0, (), "host_lost"),
        ((-signal.SIGFPE,), 0, (), "crashed"),
        ((-signal.SIGILL,), 0, (), "crashed"),
    ],
)
def test_an_abort_after_a_lost_peer_is_no_crash(tmp_path, codes, first, away, reason):
    assert crash(tmp_path, codes, first=first, away=away)["reason"] == reason


@pytest.mark.parametrize(
    ("slots", "codes", "first", "signalled", "host"),
    [
        (["a:0", "b:0"], [-15, -9], 1, True, "b"),
        (["a:0", "b:0"], [1, -15], 0, True, None),
        (["a:0", "a:1"], [-9, -9], None, False, "a"),
        (["a:0", "b:1"], [-9, -9], None, False, None),
        (["a:0"], [-9], None, True, None),
        (["a:0", "b:0"], [-14, -15], 0, True, None),  # frozen alone until its lease was over
        (["a:0"], [-14], None, False, None),
    ],
)
def test_a_host_is_blamed_for_a_rank_that_was_killed_there(slots, codes, first, signalled, host):
    assert find_failed_host(slots, codes, first=first, signalled=signalled) == host


JUNK = [None, True, 0, -3, 2.5, 1e300, 10**400, float("nan"), "x", [1], {"a": "b"}, {"a": 1.0}]


@pytest.mark.parametrize("status", ["completed", "stopped", "cancelled", "failed"])
@pytest.mark.parametrize("key", get_type_hints(AttemptOutcome) | {"epochs": 0, "status": 0})
def test_whatever_a_command_writes_as_its_result_can_be_read_from_the_journal(
    tmp_path, status, key
):
    """The reader holds each event against its type: one that it refuses would end the campaign."""
    kind = make_trial_kind(campaign(), RunDir(tmp_path), {})
    for junk in JUNK:
        result = {"status": status, "objective": 0.5, "epochs": 3, key: junk}
        (tmp_path / "result.json").write_text(json.dumps(result))
        results = kind.read_end(EndedAttempt(tmp_path, [0]), until=4)
        event = {"event": "ended", "time": 1.0, "epoch": 1, "trial": "t0", **results}
        proposed = {"event": "proposed", "time": 1.0, "epoch": 1, "trial": "t0"}
        path = tmp_path / "events.jsonl"
        path.write_bytes(encode({**proposed, "values": {}, "until": 4}) + encode(event))
        assert len(list(read_journal(path))) == 2, junk
