"""Memory of hosts and GPUs, as the system says it."""

import pytest

from hydragnn_hpo.launching.host import memory


@pytest.mark.parametrize(
    ("limit", "expected"),
    [("max\n", 16384), (str(2 << 30), 2048), (str(1 << 60), 16384), (None, 16384)],
)
def test_a_host_has_its_memory_or_what_its_container_may_take(tmp_path, limit, expected):
    (tmp_path / "meminfo").write_text("MemTotal:       16777216 kB\nMemFree:  1 kB\n")
    if limit:
        (tmp_path / "max").write_text(limit)

    assert memory.host_memory_mb(tmp_path / "meminfo", tmp_path / "max") == expected


def test_a_host_that_does_not_tell_has_an_unknown_memory(tmp_path):
    assert memory.host_memory_mb(tmp_path / "none", tmp_path / "none") == 0


def tool(folder, text, monkeypatch):
    path = folder / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_the_smallest_card_counts(tmp_path, monkeypatch):
    tool(tmp_path, "printf '81559\\n40960\\n'", monkeypatch)
    assert memory.device_memory_mb(tmp_path) == 40960


def test_a_tool_that_fails_tells_nothing(tmp_path, monkeypatch):
    tool(tmp_path, "echo 'No devices were found'; exit 6", monkeypatch)
    assert memory.device_memory_mb(tmp_path) == 0


def test_cards_of_amd_are_asked_through_the_kernel(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    for number, gib in enumerate((64, 64)):
        card = tmp_path / f"card{number}" / "device"
        card.mkdir(parents=True)
        (card / "mem_info_vram_total").write_text(f"{gib << 30}\n")

    assert memory.device_memory_mb(tmp_path) == 65536
