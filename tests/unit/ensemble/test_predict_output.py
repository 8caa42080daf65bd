"""Pieces that are done: kept whole, refused for another plan, put in order."""

import pytest

from hydragnn_hpo.ensemble.predict_output import PartFolder, PredictOutcome
from hydragnn_hpo.ensemble.structure_batches import ChunkId
from hydragnn_hpo.errors import ConfigError, DataError


def filled(parts: PartFolder, *chunks: tuple[int, int, bool]) -> None:
    for source, number, last in chunks:
        text = f"{source}.{number}\n".encode()
        sections = {"": text, ".nodes": b"\x00" + text}
        parts.write(ChunkId(source, number), sections, PredictOutcome(2, 1), last=last)


@pytest.fixture
def parts(tmp_path):
    parts = PartFolder(tmp_path / "out.csv")
    parts.begin({"ensemble": "a", "structures": "b"})
    return parts


def test_a_part_is_read_as_it_was_written(parts):
    chunk = ChunkId(3, 14)
    header = parts.write(
        chunk, {"": b"x\n\ny", ".nodes": b""}, PredictOutcome(5, 1, ["why"], {"gap"}), last=True
    )
    assert parts.header(chunk) == header
    assert (header.structures, header.failed, header.last, header.errors) == (5, 1, True, ["why"])
    assert header.kept == ["gap"]
    assert parts.read(chunk) == {"": b"x\n\ny", ".nodes": b""}
    assert parts.header(ChunkId(3, 15)) is None


def test_all_are_there_when_every_source_has_come_to_its_last(parts):
    filled(parts, (0, 0, False), (1, 0, True))
    assert parts.headers(2) is None
    filled(parts, (0, 1, True), (0, 2, True))  # a rank looked beyond the end
    assert list(parts.headers(2) or ()) == [ChunkId(0, 0), ChunkId(0, 1), ChunkId(1, 0)]
    assert parts.headers(3) is None
    assert parts.headers(0) == {}


def test_the_same_plan_goes_on_and_another_is_refused(parts):
    filled(parts, (0, 0, True))
    PartFolder(parts.out).begin({"ensemble": "a", "structures": "b"})
    assert parts.header(ChunkId(0, 0)) is not None
    with pytest.raises(ConfigError, match=r"out.csv.parts: was begun with another structures"):
        PartFolder(parts.out).begin({"ensemble": "a", "structures": "c"})
    parts.remove()
    PartFolder(parts.out).begin({"ensemble": "a", "structures": "c"})


def test_a_part_that_was_cut_off_is_not_there(parts):
    filled(parts, (0, 0, True))
    (path,) = parts.folder.glob("*.part")
    path.write_bytes(path.read_bytes()[:-1])
    assert parts.header(ChunkId(0, 0)) is None
    path.write_bytes(b"{}\n")
    assert parts.header(ChunkId(0, 0)) is None


def test_a_part_that_was_altered_is_refused(parts):
    filled(parts, (0, 0, True))
    (path,) = parts.folder.glob("*.part")
    content = path.read_bytes()
    path.write_bytes(content[:-2] + b"9\n")
    assert parts.header(ChunkId(0, 0)) is not None
    with pytest.raises(DataError, match="is damaged; remove it and repeat"):
        parts.read(ChunkId(0, 0))


@pytest.mark.parametrize("plan", [None, "[1]"], ids=["gone", "a list"])
def test_chunks_of_an_unknown_plan_are_not_taken(tmp_path, plan):
    parts = PartFolder(tmp_path / "out.csv")
    parts.begin({"set of structures": "some"})
    parts.write(ChunkId(0, 0), {"": b"1\n"}, PredictOutcome(1), last=True)
    known = parts.folder / "plan.json"
    known.unlink() if plan is None else known.write_text(plan)
    with pytest.raises(ConfigError, match="does not say what its pieces are of; remove it"):
        parts.begin({"set of structures": "others"})
