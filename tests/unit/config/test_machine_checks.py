"""What is wrong or doubtful in profiles: traps of public scripts, and maps that do not add up."""

import re
from functools import reduce

import pytest
from pydantic import ValidationError

from hydragnn_hpo.config.machine import find_profile, known_profiles, read_profile
from hydragnn_hpo.config.machine_checks import find_doubts, misspelt
from hydragnn_hpo.errors import ConfigError


def changed(base, **changes):
    """Give a profile with some values changed, by dotted key (``__`` for a dot)."""
    values = find_profile(base).model_dump()
    for place, value in changes.items():
        *tables, key = place.split("__")
        reduce(lambda table, name: table[name], tables, values)[key] = value
    return type(find_profile()).model_validate(values)


@pytest.mark.parametrize("name", known_profiles())
def test_nothing_is_doubtful_in_what_ships(name):
    assert read_profile(name).warnings == ()


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("FI_CXI_RDV_PROTO", "FI_CXI_RDZV_PROTO"),
        ("MIOOPEN_USER_DB_PATH", "MIOPEN_USER_DB_PATH"),
        ("FI_CXI_OVFLOW_BUF_SIZE", "FI_CXI_OFLOW_BUF_SIZE"),
    ],
)
def test_the_misspellings_of_public_scripts_are_refused(written, meant):
    """Source: reference/hpc.md, known traps; the last is in ALCF's own example script."""
    assert misspelt(written) == meant
    for table in ("rank__environment", "rank__one_host", "rank__many_hosts", "batch__environment"):
        with pytest.raises(ValidationError, match=f"{written}: nothing reads .*; write {meant}"):
            changed("frontier", **{table: {written: "1"}})


CORES = ["49-55", "57-63", "17-23", "25-31", "1-7", "9-15", "33-39", "41-47"]


def with_cores(slot, text):
    return {"layout__cores_of_slot": [*CORES[:slot], text, *CORES[slot + 1 :]]}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (with_cores(1, "49-55"), "slots 0 and 1 both have core 49"),
        (with_cores(5, "7,9-15"), "slots 4 and 5 both have core 7"),
        (with_cores(4, "0-7"), "core 0 of slot 4 is reserved"),
        (with_cores(2, ""), "slot 2 has no cores"),
        ({"layout__device_of_slot": [0, 1, 2, 3, 4, 5, 6, 6]}, "device 6 has 2 slots"),
        ({"rank__many_hosts": {"FI_MR_CACHE_MONITOR": "memhooks"}}, "memhooks deadlocks"),
        ({"rank__environment": {"ROCR_VISIBLE_DEVICES": "0"}}, "use rank.visible"),
        ({"rank__environment": {"MASTER_PORT": "3442"}}, "each rank gets its own"),
        ({"rank__visible": "ZE_AFFINITY_MASK"}, "does not show devices of 'cuda'"),
        ({"rank__folders": {"X": "{scratch}/{node}"}}, "'node' is not filled in"),
        ({"rank__folders": {"X": "{scratch}/{}"}}, "'' is not filled in"),
        ({"rank__folders": {"X": "{scratch}/{trial"}}, "is not filled in"),
        ({"rank__folders": {"X": "{scratch}/{trial!r}"}}, "'trial!r' is not filled in"),
        ({"rank__folders": {"X": "{scratch}/{trial:>{slot}}"}}, "is not filled in"),
        ({"rank__folders": {"X": "{scratch}/{trial}/{{x}}"}}, "is not filled in"),
        ({"rank__folders": {"X": "caches/{trial}"}}, "begin it with {scratch} or /"),
    ],
)
def test_what_cannot_be_meant_is_refused(changes, says):
    with pytest.raises(ValidationError, match=re.escape(says)):
        changed("frontier", **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"layout__device_of_slot": [0, 0, 1, 1, 2, 2, 3, 3]},
        {"layout__device_of_slot": [7, 6, 5, 4, 3, 2, 1, 0]},
        {"layout__cores_of_slot": ()},
    ],
)
def test_what_can_be_meant_is_taken(changes):
    changed("frontier", **changes)


@pytest.mark.parametrize(
    ("base", "changes", "says"),
    [
        ("frontier", with_cores(4, "1-7,65-71"), "core 65 of slot 4 is a second thread"),
        ("frontier", {"interfaces": ["hsn0", "hsn1", "hsn2"]}, "'hsn3' is not among interfaces"),
        ("frontier", {"rank__folders": {"X": "{scratch}/x"}}, "trials share it"),
        ("frontier", {"batch__scheduler": "none"}, "no scheduler that would read them"),
    ],
)
def test_what_is_probably_not_meant_is_doubted(base, changes, says):
    profile = changed(base, **changes)
    doubts = list(find_doubts(profile))
    assert len(doubts) == 1
    assert says in doubts[0]


RUN = (r"x\ny", "$(touch x)", "`touch x`", "$(SLURM_NODEID)")
ESCAPED = (r"x\ny", r"x\u001b[31m", r"x\u0000", r"x\u202e")
LINES = {
    "name = {}": RUN,
    "scratch = {}": RUN,
    "interfaces = [{}]": RUN,
    "[layout]\nnic_of_slot = [{}]": RUN,
    "[rank.environment]\nX = {}": RUN,
    "[rank.many_hosts]\nX = {}": RUN,
    "[rank.environment]\n{} = '1'": RUN,
    "[rank.folders]\nX = {}": RUN,
    "[step]\nagents = [{}]": RUN,
    "[step]\ntrials = [{}]": RUN,
    "[batch]\ndirectives = [{}]": RUN,
    "[batch]\nqueue = {}": RUN,
    "[batch]\nmodules = [{}]": RUN,
    "[batch.environment]\nX = {}": RUN,
    "description = {}": ESCAPED,
    "source = [{}]": ESCAPED,
    "[rank]\nwrapper = {}": ESCAPED,
    "[container]\nflags = [{}]": ESCAPED,
    "[container]\ncommand = [{}]": ESCAPED,
}
"""What a shell might run is plain text, what is only shown or passed on is one line of print."""


@pytest.mark.parametrize(
    ("line", "value"), [(line, value) for line, values in LINES.items() for value in values]
)
def test_nothing_that_a_shell_would_run_gets_into_a_profile(tmp_path, line, value):
    path = tmp_path / "mine.toml"
    path.write_text('extends = "workstation"\n' + line.format(f'"{value}"') + "\n")
    pattern = "write one line" if LINES[line] is ESCAPED else str(path)
    with pytest.raises(ConfigError, match=pattern):
        find_profile(str(path))
