"""What is looked at on this host, against what the kernel says in other ways."""

import os
import resource
import subprocess
from pathlib import Path

import pytest

from hydragnn_hpo.config.machine_checks import cores_of
from hydragnn_hpo.host_checks import host_probe as storage
from hydragnn_hpo.host_checks.host_probe import (
    LibraryFacts,
    ProbeRequest,
    TorchFacts,
    count_cores,
    filesystem_of,
    format_cores,
    host_id,
    is_shared,
    is_up,
    probe_libraries,
    probe_network,
    probe_scratch,
    probe_shared_folder,
    probe_software,
    probe_system,
    probe_torch,
)


def order(**more):
    return ProbeRequest(**{"folder": "/tmp", **more})


def test_cores_and_limits_are_those_of_the_kernel():
    result = probe_system(order())
    process_result = subprocess.run(
        ["taskset", "-p", str(os.getpid())], capture_output=True, text=True
    )
    mask = int(process_result.stdout.split()[-1], 16)
    assert sum(1 << core for core in cores_of(result.allowed)) == mask
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    assert result.open_files == (-1 if hard == resource.RLIM_INFINITY else hard)


def test_threads_of_a_core_count_once(tmp_path):
    for cpu, siblings in enumerate(("0,2", "1,3", "0,2", "1,3")):
        folder = tmp_path / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(siblings + "\n")
    assert count_cores(tmp_path) == 2


@pytest.mark.parametrize(
    ("cores", "text"), [({1, 2, 3, 8}, "1-3,8"), ({0}, "0"), (set(), ""), ({4, 5, 7}, "4-5,7")]
)
def test_cores_are_written_as_the_kernel_does(cores, text):
    assert format_cores(cores) == text


def test_interfaces_of_the_fabric_are_looked_at(tmp_path):
    result = probe_network(order(interfaces=("lo", "hsn9")))
    assert result.addresses["lo"] == "127.0.0.1"
    assert result.fabric == ("lo",)
    for name, state in (("a", "down"), ("b", "up"), ("c", "unknown")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "operstate").write_text(f"{state}\n")
    assert [is_up(name, tmp_path) for name in "abcd"] == [False, True, True, False]


def test_the_first_library_that_loads_is_named():
    actual = probe_libraries(order(libraries=("libnothing.so.9", "libc.so.6", "libm.so.6")))
    assert actual == LibraryFacts("libc.so.6")
    none = probe_libraries(order(libraries=("$(reboot)",)))
    assert none.loaded == ""
    assert "$(reboot)" in none.problem


def test_scratch_is_measured_and_left_clean(tmp_path, monkeypatch):
    monkeypatch.setattr(storage, "SIZE", 1 << 20)
    monkeypatch.setenv("PLACE", str(tmp_path))
    result = probe_scratch(order(scratch="$PLACE"))
    assert result.path == str(tmp_path)
    assert result.problem == ""
    assert result.write > 0
    assert result.read > 0
    assert list(tmp_path.iterdir()) == []
    assert "is no folder here" in probe_scratch(order(scratch="/nowhere/at all")).problem
    assert "names a variable" in probe_scratch(order(scratch="$NOT_SET_HERE/x")).problem


def test_one_of_two_hosts_makes_each_file(tmp_path):
    request = order(folder=str(tmp_path), sample=(host_id(),))
    first = probe_shared_folder(request)
    second = probe_shared_folder(request)
    assert first.won == tuple(range(storage.RACES))
    assert second.won == ()
    assert first.rename is True
    assert abs(first.ahead_seconds) < 40.0
    assert {path.name for path in tmp_path.iterdir()} == {f"race-{k}" for k in range(8)}


def test_a_file_server_whose_clock_is_late_is_noticed(tmp_path, monkeypatch):
    real = storage.time.time
    monkeypatch.setattr(storage.time, "time", lambda: real() + 100.0)
    result = probe_shared_folder(order(folder=str(tmp_path), sample=(host_id(),)))
    assert result.ahead_seconds == pytest.approx(100.0, abs=40.0)


def test_a_host_that_stood_still_while_it_wrote_is_not_ahead_for_that(tmp_path, monkeypatch):
    requests = order(folder=str(tmp_path), sample=(host_id(),))
    began = storage.time.time()
    moments = iter((began + 1.0, began + 201.0))
    monkeypatch.setattr(storage.time, "time", lambda: next(moments))
    assert 0.0 <= probe_shared_folder(requests).ahead_seconds < 2.0


def test_thousands_of_hosts_leave_the_shared_folder_and_torch_alone(tmp_path):
    request = order(folder=str(tmp_path), sample=("x1.site.gov", "x2"))
    assert probe_shared_folder(request).won is None
    assert probe_torch(request) == TorchFacts()
    assert list(tmp_path.iterdir()) == []
    actual = {host: request.samples(host) for host in ("x1", "x2.site.gov", "x3")}
    assert actual == {"x1": True, "x2.site.gov": True, "x3": False}, "with or without a domain"


def test_secrets_of_the_environment_are_not_reported(monkeypatch):
    monkeypatch.setenv("MY_TOKEN", "secret")
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    result = probe_software(order())
    assert result.environment["NCCL_DEBUG"] == "INFO"
    assert "secret" not in str(result)


@pytest.mark.parametrize(
    ("path", "kind", "shared"),
    [
        ("/home", "ext4", False),
        ("/lus", "lustre", True),
        ("/lus/x", "lustre", True),
        ("/lus/a b/c", "nfs4", True),
        ("/lux", "fuse.beegfs", True),
        ("/lu", "tmpfs", False),
    ],
)
def test_the_longest_mount_counts(tmp_path, path, kind, shared):
    mounts = tmp_path / "mounts"
    mounts.write_text(
        "a / ext4 rw 0 0\nb /lus lustre rw 0 0\nc /lus/a\\040b nfs4 rw 0 0\n"
        "d /lu tmpfs rw 0 0\ne /lux fuse.beegfs rw 0 0\n"
    )
    assert filesystem_of(Path(path), mounts) == kind
    assert is_shared(kind) is shared
