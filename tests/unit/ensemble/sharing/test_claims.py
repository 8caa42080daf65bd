"""Claims: one owner at a time, and free once the owner is gone."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hydragnn_hpo.ensemble.sharing.claims import MOST_DEATHS, Claims, identity


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "claims"


def make_stranger(folder: Path, *, age: float, place: str = "other/boot/pid:[1]") -> str:
    """Put a rank of another host there that showed ``age`` seconds before now."""
    path = folder / "rank.feed"
    path.write_text(json.dumps({"pid": 1, "born": 1, "place": place}))
    stamp = path.stat().st_mtime - age
    os.utime(path, (stamp, stamp))
    return "feed"


def test_one_alone_has_it(folder):
    with Claims(folder) as one, Claims(folder) as two:
        assert one.take("0-7")
        assert not two.take("0-7")
        assert two.take("0-8")
        assert (one.others(), two.others()) == (1, 1)


def test_what_is_dropped_or_left_is_free(folder):
    with Claims(folder) as one:
        with Claims(folder) as two:
            assert two.take("0-1")
            assert two.take("0-2")
            two.drop("0-1")
            assert one.take("0-1")
            assert not one.take("0-2")
        assert one.take("0-2")
        assert one.others() == 0


@pytest.mark.parametrize(("age", "free"), [(0.0, False), (5000.0, False), (7000.0, True)])
def test_a_rank_of_another_host_lives_while_it_shows(folder, age, free):
    with Claims(folder, lease_seconds=6000.0) as claims:
        (folder / "0-1.0").write_text(make_stranger(folder, age=age))
        assert claims.take("0-1") == free


def test_a_claim_that_is_being_written_is_held(folder):
    with Claims(folder) as claims:
        (folder / "0-1.0").touch()
        assert not claims.take("0-1")


def test_a_killed_process_of_this_host_is_gone_at_once(folder):
    code = "import sys, pathlib; from hydragnn_hpo.ensemble.sharing.claims import Claims\n"
    code += "with Claims(pathlib.Path(sys.argv[1])) as claims:\n"
    code += "    print(claims.take('0-1'), flush=True); sys.stdin.read()"
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(folder)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with Claims(folder) as claims, child:
        assert child.stdout is not None
        assert child.stdout.readline() == "True\n"
        assert not claims.take("0-1")
        child.kill()
        child.wait()
        assert claims.take("0-1")
        assert claims.others() == 0


def test_a_piece_that_ends_too_many_is_lost_until_a_new_life(folder):
    with Claims(folder) as survivor:
        for _ in range(MOST_DEATHS):
            assert not survivor.is_lost("0-1")
            with Claims(folder) as victim:
                assert victim.take("0-1")
        assert not survivor.take("0-1")
        assert survivor.is_lost("0-1")
        survivor.forget_dead()
        assert not survivor.is_lost("0-1")
        assert survivor.take("0-1")


def test_a_new_life_keeps_what_the_living_have(folder):
    with Claims(folder) as one, Claims(folder) as two:
        assert two.take("0-1")
        one.forget_dead()
        assert not one.take("0-1")
        assert one.others() == 1


def test_a_process_is_known_by_its_birth():
    me = identity(os.getpid())
    assert me["pid"] == os.getpid()
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    assert me["born"] == int(fields[19]), "starttime is field 22 of proc(5)"
    assert identity(2**22 + 1) == {}
