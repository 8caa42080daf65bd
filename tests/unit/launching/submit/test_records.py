"""The records of batch jobs: one file for each fact, in any order of writers."""

import stat

import pytest

from hydragnn_hpo.errors import StorageError
from hydragnn_hpo.launching.submit.records import BatchJob, JobRecords


def job(name="7", **changes):
    facts = {"scheduler": "slurm", "script": "001.sh", "hosts": 2, "link": 1, "jobs": 4}
    return BatchJob(id=name, submitted=1.0, **{**facts, **changes})


def test_nothing_is_there_before_the_first_job(tmp_path):
    records = JobRecords(tmp_path)
    assert (records.jobs(), records.next_number()) == ([], 1)
    assert list(tmp_path.iterdir()) == []


def test_scripts_are_readable_by_nobody_else(tmp_path):
    records = JobRecords(tmp_path)
    path = records.prepare(1, "#!/bin/bash\n", "name = 'x'\n")
    assert (path.name, records.campaign(1).name) == ("001.sh", "001.toml")
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert stat.S_IMODE(records.folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(records.campaign(1).stat().st_mode) == 0o600
    assert records.next_number() == 2


def test_a_job_is_what_its_facts_say(tmp_path):
    records = JobRecords(tmp_path)
    records.prepare(1, "", "")
    records.note("7", "began", time=3.0, progress=5, host="n1")
    assert records.jobs() == [], "it began before it was written down"
    records.add(job())
    records.add(job("8_2", after="7", link=2, task=2))
    records.note("7", "ended", time=4.0, code=75, said="drained")

    first, second = records.jobs()

    assert (first.id, first.began, first.progress, first.ended) == ("7", 3.0, 5, 4.0)
    assert (first.code, first.said) == (75, "drained")
    assert (second.id, second.after, second.task, second.began) == ("8_2", "7", 2, None)
    assert records.find("8_2") == second
    assert records.find("9") is None


def test_copies_of_scripts_do_not_count(tmp_path):
    records = JobRecords(tmp_path)
    records.prepare(3, "", "")
    (records.folder / "009-mine.sh").touch()
    assert records.next_number() == 4


@pytest.mark.parametrize("text", ["[]", '{"a": 1}', '"x"', "{}"])
def test_a_record_of_somebody_else_is_a_sentence(tmp_path, text):
    records = JobRecords(tmp_path)
    records.prepare(1, "", "")
    (records.folder / "7.submitted.json").write_text(text)
    with pytest.raises(StorageError, match=r"7\.\*\.json: do not say .*; remove them"):
        records.jobs()
