"""The other tutorials: two files, so that two workers may follow them at the same time."""

from collections.abc import Iterator

import pytest
from tutorials import Desk
from virtual_slurm import VirtualSlurm, missing

pytestmark = pytest.mark.release


def test_the_tutorial_of_convs_works_as_it_stands(desk: Desk) -> None:
    assert desk.follow("own_conv") == []


@pytest.fixture
def cluster(desk: Desk, tmp_path_factory: pytest.TempPathFactory) -> Iterator[frozenset[str]]:
    """A Slurm for the reader, where there can be one."""
    if missing():
        yield frozenset()
        return
    made = VirtualSlurm(tmp_path_factory.mktemp("slurm2"), hosts=2, cpus=64)
    try:
        made.start()
        desk.environment["SLURM_CONF"] = made.environment["SLURM_CONF"]
        yield frozenset({"Slurm"})
    finally:
        made.stop()
        del desk.environment["SLURM_CONF"]


def test_the_tutorial_of_slurm_works_where_there_is_one(
    desk: Desk, cluster: frozenset[str]
) -> None:
    if left := desk.follow("slurm", cluster):
        pytest.skip(f"{len(left)} blocks need Slurm: {missing()}; the others work.")
