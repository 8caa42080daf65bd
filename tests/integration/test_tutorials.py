"""The tutorials work as they stand: files are written, commands run, outputs compared."""

from collections.abc import Iterator

import pytest
from tutorials import Desk
from virtual_slurm import VirtualSlurm, missing

from hydragnn_hpo.launching.process_control import end_orphans, run_tag

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """One folder for all pages: some go on where others ended."""
    made = Desk(tmp_path_factory.mktemp("desk"))
    yield made
    for run in made.folder.glob("runs/*"):
        end_orphans(run_tag(run))


@pytest.mark.parametrize("name", ["first_campaign", "own_data", "own_conv", "ensemble_in_ase"])
def test_a_tutorial_works_as_it_stands(desk: Desk, name: str) -> None:
    assert desk.follow(name) == []


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
