"""An exclusion list is written whole, kept, and read back; nothing else passes for a host."""

import pytest

from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.launching.excluded_hosts import (
    add_excluded,
    read_excluded,
    read_run_excluded,
)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "exclude.hosts"


def test_what_is_written_is_read(path, tmp_path):
    assert read_run_excluded(tmp_path) == {}
    add_excluded(path, {"n2": "devices: found 7", "n1": ""})
    add_excluded(path, {"n3": "scratch\nfull # now", "n2": "something later"})

    known = {"n1": "", "n2": "devices: found 7", "n3": "scratch full # now"}
    assert read_run_excluded(tmp_path) == known
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    assert lines == ["n1", "n2  # devices: found 7", "n3  # scratch full # now"]


def test_people_write_host_lists(path):
    path.write_text("# mine\n\nnode[08-10],login1 # noisy\n  node2\n")
    assert list(read_excluded(path)) == ["node08", "node09", "node10", "login1", "node2"]
    with pytest.raises(ConfigError, match="cannot be read"):
        read_excluded(path.with_name("missing"))


@pytest.mark.parametrize("line", ["n[1", "-rf", "$(reboot)", "a b", "n1;ls", "\x1b[2J", "../x"])
def test_what_is_no_host_is_refused(path, line):
    path.write_text(f"n1\n{line}\n")
    with pytest.raises(ConfigError, match="line 2") as refused:
        read_excluded(path)
    assert str(refused.value).isprintable()
    with pytest.raises(ConfigError):
        add_excluded(path.with_name("other"), {line: "bad"})
    assert not path.with_name("other").exists()
