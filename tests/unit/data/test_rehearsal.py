"""Staging a store for a look: the same bytes each time, and nothing left behind."""

import json

import pytest

from hydragnn_hpo.data.open_store import open_store
from hydragnn_hpo.data.store.rehearsal import job_main, rehearse


@pytest.fixture
def scratch(tmp_path, monkeypatch):
    monkeypatch.setenv("HYDRAGNN_HPO_SCRATCH", str(tmp_path / "scratch"))
    return tmp_path / "scratch"


def test_a_store_is_staged_twice_alike_and_taken_away(many_windows, scratch):
    one, other = (rehearse(many_windows, name) for name in ("one", "other"))
    assert one["digest"] == other["digest"]
    assert one["place"].startswith(str(scratch))
    assert one["seconds"] > 0.0
    assert one["free_bytes"] > one["bytes"] > 0
    assert not [path for path in scratch.rglob("*") if path.is_file()]


def test_the_bytes_are_those_of_a_stage_that_trials_use(many_windows, scratch):
    told = rehearse(many_windows, "look")
    open_store(many_windows)
    (stage,) = (path.parent for path in scratch.rglob("manifest.json"))
    assert told["bytes"] == sum(file.stat().st_size for file in stage.glob("*.npy"))


def test_another_byte_is_another_digest(many_windows, scratch, monkeypatch):
    whole = rehearse(many_windows, "whole")["digest"]
    from hydragnn_hpo.data.store import rehearsal

    make = rehearsal.make_stage

    def spoilt(target, index):
        made = make(target, index)
        file = target / "positions.npy"
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        file.write_bytes(content)
        return made

    monkeypatch.setattr(rehearsal, "make_stage", spoilt)
    assert rehearse(many_windows, "spoilt")["digest"] != whole


def test_a_place_that_cannot_be_written_is_said(many_windows, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("HYDRAGNN_HPO_SCRATCH", str(tmp_path / "file"))
    answer = tmp_path / "answer.json"
    assert job_main({"store": str(many_windows), "name": "x", "answer": str(answer)}) == 0
    assert "file" in json.loads(answer.read_text())["error"]
