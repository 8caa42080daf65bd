"""Wishes arrive whole, in order and once; nonsense is refused, hostile files are removed."""

import json
import logging
import os

import pytest

from hydragnn_hpo.campaign import requests
from hydragnn_hpo.campaign.requests import Request, answer, read_requests, write_request
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.layout import RunDir


@pytest.fixture
def run(tmp_path):
    return RunDir(tmp_path)


def test_wishes_are_read_in_the_order_in_which_they_were_written(run):
    write_request(run, "cancel", trial="t0007")
    write_request(run, "add-trials", count=3)
    write_request(run, "add-trials", values=[{"model.conv": "egnn", "model.layers": 2}])
    write_request(run, "stop")
    asked = [request for _, request in read_requests(run)]
    assert asked == [
        Request(request="cancel", trial="t0007"),
        Request(request="add-trials", count=3),
        Request(request="add-trials", values=({"model.conv": "egnn", "model.layers": 2},)),
        Request(request="stop"),
    ]


def test_an_answered_wish_is_gone(run):
    first = write_request(run, "pause")
    write_request(run, "stop")
    answer(first)
    answer(first)
    assert [request.request for _, request in read_requests(run)] == ["stop"]


def test_a_run_without_wishes_has_none(run):
    assert read_requests(run) == []


def test_only_the_owner_may_wish(run):
    path = write_request(run, "stop")
    assert run.requests.stat().st_mode & 0o777 == 0o700
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("cancel", {}),
        ("retry", {"trial": "../t0001"}),
        ("retry", {"trial": ""}),
        ("stop", {"trial": "t0001"}),
        ("pause", {"count": 2}),
        ("add-trials", {}),
        ("add-trials", {"count": 0}),
        ("add-trials", {"count": 2, "values": [{"a": 1}]}),
        ("add-trials", {"count": 10**9}),
        ("resize", {}),
    ],
)
def test_a_wish_that_makes_no_sense_is_not_written(run, kind, values):
    with pytest.raises(ConfigError, match=r"^request: .*\.$"):
        write_request(run, kind, **values)
    assert not run.requests.exists()


HOSTILE = {
    "empty": b"",
    "torn": b'{"request": "sto',
    "list": b'["stop"]',
    "unknown": b'{"request": "format"}',
    "extra": b'{"request": "stop", "shell": "rm"}',
    "path": b'{"request": "cancel", "trial": "../../etc"}',
    "number": b'{"request": "add-trials", "count": 1e400}',
    "text": b"\xff\xfe\x00",
    "deep": b"[" * 200_000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_no_wish_is_named_and_removed(run, name, caplog):
    write_request(run, "stop")
    bad = run.requests / "00000000000000000000-x.json"
    bad.write_bytes(HOSTILE[name])
    with caplog.at_level(logging.WARNING):
        assert [request.request for _, request in read_requests(run)] == ["stop"]
    assert bad.name in caplog.text
    assert not bad.exists()


def test_links_pipes_folders_and_large_files_are_not_opened(run, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(requests, "LARGEST", 100)
    run.requests.mkdir()
    secret = tmp_path / "secret.json"
    secret.write_text(json.dumps({"request": "stop"}))
    (run.requests / "1.json").symlink_to(secret)
    os.mkfifo(run.requests / "2.json")
    (run.requests / "3.json").mkdir()
    (run.requests / "3.json" / "inside").touch()
    (run.requests / "4.json").write_text(json.dumps({"request": "stop"}) + " " * 100)
    with caplog.at_level(logging.WARNING):
        assert read_requests(run) == []
    assert read_requests(run) == []
    assert len(caplog.records) == 4, "each is named once"
    assert secret.exists()


def test_a_half_written_file_is_not_looked_at(run):
    run.requests.mkdir()
    part = run.requests / ".00000000000000000001-x.json.abc.part"
    part.write_text("{")
    assert read_requests(run) == []
    assert part.exists()
