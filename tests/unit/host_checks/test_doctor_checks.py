"""Findings, and every check, with facts of good, slow and wrong hosts written by hand."""

import msgspec
import pytest

from hydragnn_hpo.config.machine import find_profile
from hydragnn_hpo.host_checks.doctor_checks import (
    Expected,
    Finding,
    clean,
    find_outliers,
    plugin_names,
    run_checks,
    to_exclude,
    worst,
)
from hydragnn_hpo.host_checks.host_probe import HostFacts, ProbeRequest

NICS = ("hsn0", "hsn1", "hsn2", "hsn3")


PARTS = {
    "system": {
        "cores": 64,
        "allowed": "1-7,9-15,17-23,25-31,33-39,41-47,49-55,57-63",
        "memory_mb": 515_000,
        "installed_mb": 515_800,
        "open_files": 131_072,
        "locked_bytes": -1,
        "shm_mb": 250_000,
    },
    "devices": {"count": 8, "memory_mb": 65_520},
    "network": {"addresses": {"lo": "127.0.0.1", "hsn0": "10.0.0.1"}, "fabric": NICS},
    "libraries": {"loaded": "librccl-net.so"},
    "scratch": {
        **{"path": "/mnt/bb/me", "filesystem": "xfs"},
        **{"free_mb": 1_800_000, "write": 2e9, "read": 5e9},
    },
    "shared": {
        **{"path": "/lustre/run", "filesystem": "lustre", "free_mb": 10_000_000},
        **{"won": (), "rename": True, "sync_seconds": 0.02, "ahead_seconds": 0.01},
    },
    "software": {
        "python": "3.11.7",
        "version": "1.0",
        "package": "abc",
        "torch_at": "/mnt/bb/me/env/torch/__init__.py",
        "torch_filesystem": "xfs",
    },
    "torch": {"seconds": 3.0},
}
"""Facts of a good host of Frontier."""


def host(name, *, clock=1000.0, errors=None, **changes):
    """Return the facts of a good host, with some facts of some parts changed."""
    parts = {part: facts | changes.pop(part, {}) for part, facts in PARTS.items()}
    assert not changes
    plain = {"host": name, "clock": clock, "errors": errors or {}, **parts}
    return msgspec.convert(plain, HostFacts, strict=True)


def answers(bad=None, count=8, **changes):
    """Return hosts n0 ... with one ``bad``; n0 made all files that one host alone may make."""
    result = {f"n{k}": host(f"n{k}") for k in range(count)}
    result["n0"] = host("n0", shared={"won": (0, 1, 2)})
    if bad:
        result[bad] = host(bad, **changes)
    return result


def expect(hosts=8, **more):
    profile = find_profile("frontier")
    order = ProbeRequest(
        folder="/lustre/run",
        interfaces=profile.interfaces,
        libraries=plugin_names(profile, {}),
    )
    values = {
        "hosts": tuple(f"n{k}" for k in range(hosts)),
        "asked_at": 999.0,
        "answered_at": 1001.0,
        "given": {f"n{k}": 8 for k in range(hosts)},
    }
    return Expected(profile=profile, request=order, **(values | more))


def bad(findings):
    return {(f.check, f.state, f.hosts) for f in findings if f.state != "ok"}


def test_good_hosts_of_frontier_are_all_well():
    findings = run_checks(answers(), expect())
    assert bad(findings) == set()
    assert not [f for f in findings if f.cure], "who is well needs no cure"
    checks = {finding.check for finding in findings}
    assert checks >= {"affinity", "devices (driver)", "devices (Slurm)", "network plugin", "clock"}
    assert to_exclude(findings, expect().hosts) == {}


def sets(**environment):
    return {"software": {"environment": environment}}


CASES = {
    "lost core": ("cores", "wrong", {"system": {"cores": 63}}),
    "lost memory": ("memory", "wrong", {"system": {"memory_mb": 400_000}}),
    "lost device": ("devices (driver)", "wrong", {"devices": {"count": 7}}),
    "small device": ("device memory", "wrong", {"devices": {"memory_mb": 32_000}}),
    "other mask": ("affinity", "wrong", {"system": {"allowed": "0-46,49-63"}}),
    "no mask": ("affinity", "wrong", {"system": {"allowed": "1-7,9-15,17-23,25-31,33-39,49-63"}}),
    "nic down": ("fabric interfaces", "wrong", {"network": {"fabric": ("hsn0",)}}),
    "no nic": ("fabric interfaces", "wrong", {"network": {"fabric": ()}}),
    "no plugin": ("network plugin", "wrong", {"libraries": {"loaded": "", "problem": "cannot"}}),
    "no scratch": ("scratch", "wrong", {"scratch": {"problem": "is no folder here"}}),
    "foreign scratch": ("scratch", "wrong", {"scratch": {"ours": False}}),
    "full scratch": ("scratch", "wrong", {"scratch": {"free_mb": 900}}),
    "shared scratch": ("scratch", "wrong", {"scratch": {"filesystem": "nfs4"}}),
    "slow writing": ("scratch write", "slow", {"scratch": {"write": 2e8}}),
    "slow reading": ("scratch read", "slow", {"scratch": {"read": 5e8}}),
    "unseen folder": ("shared folder", "wrong", {"shared": {"problem": "is no folder here"}}),
    "full folder": ("shared folder", "wrong", {"shared": {"free_mb": 10}}),
    "torn rename": ("shared rename", "wrong", {"shared": {"rename": False}}),
    "slow sync": ("shared fsync", "slow", {"shared": {"sync_seconds": 0.5}}),
    "clock ahead": ("clock", "slow", {"shared": {"ahead_seconds": 3.0}}),
    "clock behind": ("clock", "wrong", {"shared": {"ahead_seconds": -60.0}}),
    "other python": ("versions", "wrong", {"software": {"python": "3.9.1"}}),
    "other package": ("versions", "wrong", {"software": {"package": "def"}}),
    "no torch": ("torch", "wrong", {"software": {"torch_at": ""}}),
    "broken torch": ("torch", "wrong", {"torch": {"problem": "libamdhip64.so: missing"}}),
    "torch on NFS": ("torch", "slow", {"software": {"torch_filesystem": "nfs"}}),
    "slow import": ("torch import", "slow", {"torch": {"seconds": 25.0}}),
    "few files": ("limits", "wrong", {"system": {"open_files": 1024}}),
    "small shm": ("limits", "wrong", {"system": {"shm_mb": 64}}),
    "memory not to be locked": ("limits", "wrong", {"system": {"locked_bytes": 65536}}),
    "memhooks": ("environment", "wrong", sets(FI_MR_CACHE_MONITOR="memhooks")),
    "RDV": ("environment", "wrong", sets(FI_CXI_RDV_PROTO="x")),
    "MIOOPEN": ("environment", "wrong", sets(MIOOPEN_X="1")),
    "CUDA on ROCm": ("environment", "wrong", sets(CUDA_VISIBLE_DEVICES="0")),
    "hidden twice": (
        *("environment", "wrong"),
        sets(ROCR_VISIBLE_DEVICES="0", HIP_VISIBLE_DEVICES="0"),
    ),
    "hanging driver": ("answer", "wrong", {"errors": {"devices": "no answer in time"}}),
    "puzzled probe": ("answer", "unknown", {"errors": {"devices": "KeyError: 'x'"}}),
}


@pytest.mark.parametrize(("check", "state", "changes"), CASES.values(), ids=CASES)
def test_one_host_of_eight_is_named_with_a_cure(check, state, changes):
    findings = run_checks(answers("n5", **changes), expect())

    assert bad(findings) == {(check, state, ("n5",))}
    (finding,) = [finding for finding in findings if finding.state == state]
    assert finding.observed
    assert bool(finding.cure) == finding.bad
    excluded = to_exclude(findings, expect().hosts)
    assert list(excluded) == (["n5"] if finding.bad else [])
    assert all(why.startswith(f"{check}: ") for why in excluded.values())


def test_a_host_that_slurm_gave_less_is_named():
    findings = run_checks(answers(), expect(given={**expect().given, "n3": 7}))
    assert bad(findings) == {("devices (Slurm)", "wrong", ("n3",))}


def test_hosts_that_do_not_answer_are_wrong():
    some = answers()
    del some["n7"]
    findings = run_checks(some, expect(missing={"n7": "no answer within 180 s"}))
    assert bad(findings) == {("answer", "wrong", ("n7",))}
    assert to_exclude(findings, expect().hosts) == {
        "n7": findings[0].check + ": no answer within 180 s, expected one line within the time"
    }


def test_a_file_that_two_hosts_made_and_one_that_no_host_made():
    twice = answers("n1", shared={"won": (2, 3)})
    findings = run_checks(twice, expect())
    assert bad(findings) == {("shared exclusive creation", "wrong", ())}
    assert [f.observed for f in findings if f.state == "wrong"] == [
        "1 of 4 files made by several hosts"
    ]
    nobody = {"n1": host("n1"), "n2": host("n2")}
    assert ("shared exclusive creation", "wrong", ()) in bad(run_checks(nobody, expect(2)))


def test_a_clock_that_no_file_server_judges_is_compared_with_ours():
    late = host("n4", clock=900.0, shared={"ahead_seconds": None})
    findings = run_checks(answers() | {"n4": late}, expect())
    assert bad(findings) == {("clock", "wrong", ("n4",))}
    (finding,) = [finding for finding in findings if finding.state == "wrong"]
    assert finding.observed == "99.0 s behind the controller"  # 900 - 999


def test_half_may_be_excluded_but_not_more():
    hosts = [f"n{k}" for k in range(4)]
    for count, excluded in ((1, 1), (2, 2), (3, 0), (4, 0)):
        findings = [
            Finding("c", "wrong" if k < count else "ok", "x", hosts=(h,))
            for k, h in enumerate(hosts)
        ]
        assert len(to_exclude(findings, hosts)) == excluded


def test_a_pair_blames_the_host_whose_other_pairs_are_bad_too():
    hosts = ("a", "b", "c", "d")
    pair_states = {("a", "b"): "ok", ("c", "d"): "slow", ("a", "c"): "slow", ("b", "d"): "ok"}
    findings = [Finding("sum", state, "1 GB/s", hosts=pair) for pair, state in pair_states.items()]
    assert list(to_exclude(findings, hosts)) == ["c"]
    alone = [Finding("sum", "slow", "1 GB/s", hosts=("c", "d"))]
    assert to_exclude(alone, hosts) == {}, "nobody knows which of the two"


def test_hosts_are_compared_with_each_other_where_no_profile_speaks():
    profile = find_profile("generic-slurm")
    expected = Expected(profile, ProbeRequest(folder="/f"), tuple(f"n{k}" for k in range(8)))
    some = answers("n5", devices={"count": 7}, system={"cores": 32})
    assert bad(run_checks(some, expected, ["cores", "devices"])) == {
        ("devices (driver)", "wrong", ("n5",)),
        ("cores", "wrong", ("n5",)),
    }


def test_small_differences_of_times_are_not_slow():
    """A file system that syncs in 7 ms elsewhere and in 53 ms here costs nothing."""
    some = answers("n5", shared={"sync_seconds": 0.053}, torch={"seconds": 9.5})
    some |= {h: host(h, shared={"sync_seconds": 0.007}) for h in ("n1", "n2", "n3", "n4", "n6")}
    assert bad(run_checks(some, expect())) == set()


def test_every_check_survives_hosts_that_reported_nothing():
    silent = {f"n{k}": HostFacts(host=f"n{k}", clock=1000.0) for k in range(3)}
    findings = run_checks(silent, expect(3))
    assert {finding.state for finding in findings} == {"ok"}
    assert {finding.check for finding in findings} <= {*("answer", "clock", "devices (Slurm)")}


def test_devices_that_no_tool_lists_are_not_called_lost():
    """Aurora's hosts have 12 tiles, and neither nvidia-smi nor the kernel's kfd."""
    expected = Expected(find_profile("aurora"), ProbeRequest(folder="/f"), ("n0",))
    answers = {"n0": host("n0", devices={"count": 0, "memory_mb": None})}
    (finding,) = run_checks(answers, expected, ("devices",))
    assert (finding.state, finding.check) == ("unknown", "devices (driver)")


def test_nothing_that_moves_a_terminal_is_kept():
    hostile = "node1\x1b[2J\x07\nrm\u202e\x9b31m"
    finding = Finding("a\tcheck", "wrong", hostile, hostile, hostile, (hostile,))
    for text in (finding.check, finding.observed, finding.expected, finding.cure, *finding.hosts):
        assert text.isprintable()
    assert clean("node1\x1b[2J") == r"node1\x1b[2J"
    assert clean("x" * 400) == "x" * 400
    assert len(Finding("check", "ok", "x" * 401).observed) == 400


@pytest.mark.parametrize(
    ("states", "expected"),
    [([], "ok"), (["ok", "unknown"], "unknown"), (["slow", "ok", "wrong"], "wrong")],
)
def test_the_worst_state_counts(states, expected):
    assert worst(Finding("check", state, "") for state in states) == expected


@pytest.mark.parametrize(
    ("values", "slow"),
    [
        ([10, 10, 10, 3], [3]),
        ([10, 11, 9, 10, 2, 1], [4, 5]),
        ([10, 9, 8, 7, 6, 5, 4], []),  # spread is usual there
        ([10, 3, 10], []),  # too few for a majority
        ([10, 10, 10, 10, 6], []),  # not by a factor
        ([0, 0, 0, 0], []),
    ],
)
def test_slow_is_far_behind_the_median(values, slow):
    named = {str(k): float(value) for k, value in enumerate(values)}
    assert list(find_outliers(named, 2.0, low_is_bad=True)) == [str(k) for k in slow]
    times = {"a": 1.0, "b": 1.0, "c": 1.1, "d": 5.0}
    assert list(find_outliers(times, 3.0, low_is_bad=False)) == ["d"], "of times the long are bad"


def test_a_job_with_a_part_of_its_hosts_memory_is_told_how_to_get_all():
    few = {name: host(name, system={"memory_mb": 500}) for name in ("n0", "n1")}
    found = [f for f in run_checks(few, expect(in_job=True)) if f.check == "limits"]
    assert {f.state for f in found} == {"wrong"}
    assert found[0].observed == "0.5 GB of 540.9 GB memory for the job"
    assert "salloc --mem=0" in found[0].cure
    here = [f for f in run_checks(few, expect(in_job=False)) if f.check == "limits"]
    assert {f.state for f in here} == {"ok"}
