"""What keeps one rank where a launcher starts it: it says in a sentence what it cannot do."""

import pytest

from hydragnn_hpo.files import write_json
from hydragnn_hpo.launching.launchers.keeper import Keeper
from hydragnn_hpo.launching.scratch_folders import remove_folders


@pytest.fixture
def keep(tmp_path):
    kept = []

    def make(template):
        place = {"rank": 0, "slot": 0, "environment": {}, "folders": {"CACHE": template}}
        order = {"job": "t0001.1", "ranks": [place], "scratch": None, "interfaces": []}
        order |= {"one_host": True, "lease": str(tmp_path / "lease"), "lease_seconds": 5.0}
        write_json(tmp_path / "order.json", order)
        kept.append(Keeper(tmp_path, 0))
        return kept[-1]

    yield make
    for keeper in kept:
        remove_folders([keeper._scratch, *([keeper._own] if keeper._own else [])])


def test_a_rank_gets_folders_of_its_own(keep):
    keeper = keep("{scratch}/{trial}")
    keeper._settle()
    assert keeper.place["environment"]["CACHE"] == str(keeper._own / "t0001.1")
    assert (keeper._own / "t0001.1").is_dir()


@pytest.mark.parametrize(
    ("template", "says"),
    [("{scratch}/{rank}", r"names \{rank\}; known: \{scratch\}"), ("/dev/null/x", "/dev/null/x")],
)
def test_folders_that_cannot_be_are_said_in_a_sentence(keep, template, says):
    with pytest.raises(SystemExit, match=says):
        keep(template)._settle()
