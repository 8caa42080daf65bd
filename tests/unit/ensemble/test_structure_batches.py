"""How the input is cut: the same for every rank."""

import os
from pathlib import Path

import pytest

from hydragnn_hpo.ensemble.structure_batches import checksum_input, list_input_sources
from hydragnn_hpo.errors import ConfigError, DataError


def test_small_files_are_taken_together_and_large_ones_alone(tmp_path):
    sizes = {"a.cif": 10, "b.cif": 10, "c.xyz": 1 << 16, "d.cif": 10, "e.db": 10, "f.cif": 1}
    for name, size in sizes.items():
        (tmp_path / name).write_bytes(b"x" * size)
    (tmp_path / "id_prop.csv").write_text("a,1\n")
    (tmp_path / ".hidden").write_text("x")
    actual = [
        ([path.name for path in source.paths], source.whole)
        for source in list_input_sources([tmp_path])
    ]
    assert actual == [
        (["a.cif", "b.cif"], True),
        (["c.xyz"], False),
        (["d.cif"], True),
        (["e.db"], False),
        (["f.cif"], True),
    ]


def test_a_source_has_at_most_256_files(tmp_path):
    for number in range(300):
        (tmp_path / f"{number:03d}.cif").write_text("x")
    sources = list_input_sources([tmp_path])
    assert [len(source.paths) for source in sources] == [256, 44]
    assert [path.name for source in sources for path in source.paths] == [
        f"{n:03d}.cif" for n in range(300)
    ]


def test_what_is_no_file_is_refused_before_anything_is_read(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        list_input_sources([tmp_path / "none.cif"])
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="is a device or a pipe; .* standard input"):
        list_input_sources([tmp_path / "pipe"])


def test_the_identity_knows_names_sizes_and_times(tmp_path):
    path = tmp_path / "a.cif"
    path.write_text("one")
    before = checksum_input(list_input_sources([path]))
    assert checksum_input(list_input_sources([tmp_path])) == before
    os.utime(path, ns=(1, 1))
    touched = checksum_input(list_input_sources([path]))
    path.write_text("two!")
    os.utime(path, ns=(1, 1))
    assert len({before, touched, checksum_input(list_input_sources([path]))}) == 3


def test_a_file_under_two_names_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("a.xyz").write_text("x")
    Path("soft.xyz").symlink_to("a.xyz")
    os.link("a.xyz", "hard.xyz")
    for other in (Path("a.xyz"), tmp_path / "a.xyz", Path("soft.xyz"), Path("hard.xyz")):
        with pytest.raises(ConfigError, match=r"xyz: is the same file as a.xyz; give it once"):
            list_input_sources([Path("a.xyz"), other])
