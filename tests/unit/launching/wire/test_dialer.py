"""An agent's way to its controller: patient, never in haste, never back to an older one."""

import json
from dataclasses import asdict, replace

import pytest

from hydragnn_hpo.launching.wire import dialer as dialers
from hydragnn_hpo.launching.wire.dialer import Dialer
from hydragnn_hpo.launching.wire.door import DoorPlate, door_file

PLATE = DoorPlate("127.0.0.1", 1, 3, "token", 10.0, "tag")


@pytest.fixture
def dialled(monkeypatch):
    """Note whom a dialer calls; everybody answers."""
    called = []
    monkeypatch.setattr(dialers, "dial", lambda plate, seconds: called.append(plate) or object())
    return called


def test_the_door_file_tells_the_way(tmp_path, dialled):
    PLATE.write(tmp_path)

    assert Dialer(str(door_file(tmp_path)), 0.0).dial(0.0)
    assert Dialer(json.dumps(asdict(PLATE)), 0.0).dial(0.0)

    assert dialled == [PLATE, PLATE]


def test_tries_have_pauses_between_them(tmp_path, dialled):
    dialer = Dialer(str(door_file(tmp_path)), 0.0)

    assert dialer.dial(0.0) is None
    PLATE.write(tmp_path)
    assert dialer.dial(0.4) is None
    assert dialer.dial(1.6)  # the pause is half a second to one and a half


def test_a_newer_controller_is_preferred_and_an_older_never_called(tmp_path, dialled):
    PLATE.write(tmp_path)
    dialer = Dialer(str(door_file(tmp_path)), 0.0)
    dialer.dial(0.0)
    assert not dialer.newer()

    replace(PLATE, epoch=4).write(tmp_path)
    assert dialer.newer()
    replace(PLATE, epoch=2).write(tmp_path)
    assert not dialer.newer()
    assert dialer.dial(10.0) is None
    assert [plate.epoch for plate in dialled] == [3]


def test_without_a_controller_hope_ends(tmp_path, dialled):
    PLATE.write(tmp_path)
    dialer = Dialer(str(door_file(tmp_path)), 0.0)
    assert not dialer.hopeless(60.0)
    assert dialer.hopeless(60.1)

    dialer.dial(0.0)
    dialer.connected(100.0)

    assert not dialer.hopeless(220.0)  # twelve leases of ten seconds
    assert dialer.hopeless(220.1)


def test_a_damaged_door_file_is_no_way(tmp_path, dialled):
    for text in ("{", "[1]", '{"address": 1}', "nonsense"):
        (tmp_path / "door.json").write_text(text)
        assert Dialer(str(tmp_path / "door.json"), 0.0).dial(0.0) is None
        assert Dialer("{" + text, 0.0).dial(0.0) is None
    assert dialled == []
