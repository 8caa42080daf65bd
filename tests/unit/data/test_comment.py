"""The second line of a frame is read as ASE reads it, only faster."""

from typing import Any

import numpy as np
import pytest
from ase.io.extxyz import key_val_str_to_dict
from hypothesis import given
from hypothesis import strategies as st

from hydragnn_hpo.data.readers import extxyz
from hydragnn_hpo.data.readers.extxyz import parse_comment

LATTICE = 'Lattice="3.9 0.0 0.0 0.0 3.9 0.1 0.0 -1e-3 3.9"'


def assert_as_ase(line: str) -> None:
    try:
        expected: dict[str, Any] = key_val_str_to_dict(line)
    except Exception as error:
        with pytest.raises(type(error)):
            parse_comment(line)
        return
    results = parse_comment(line)
    assert list(results) == list(expected)
    for key, value in expected.items():
        assert type(results[key]) is type(value), (line, key)
        assert getattr(results[key], "dtype", None) == getattr(value, "dtype", None), (line, key)
        np.testing.assert_array_equal(results[key], value)


@pytest.mark.parametrize(
    "line",
    [
        f'{LATTICE} Properties=species:S:1:pos:R:3 material_id=1 gap=-0.5 split=val pbc="T T F"',
        'Lattice="5 0 0 0 5 0 0 0 5" e=1e-3 f=.5 g=5. h=+7',
        'name="red  x" words="1 a" flags="T F" flag=F true=true forces="1 2 3" mixed="1 2.5"',
        "a=nan b=inf c=-nan d=infinity e=NaN nan=1 info=information",
        "a=1_000 b=0x10 c=1e5000 d=99999999999999999999 e=1d5",
        'a="" b=" " c=1,2 d="1, 2" e=\'x y\' f={1 2} g=[1,2] h="a=b" i=a=b',
        'uid=007 json="_JSON [1, 2]" lone key = 5 back="a\\"b"',
        "stress=1 virial=2",
        'stress="1 2 3 4 5 6 7 8 9"',
        "gr\u00f6sse=1 x=\u0665",
        "",
        "just a comment",
        "energy=-1.5 twice=1 twice=2",
    ],
)
def test_it_gives_what_ase_gives(line: str) -> None:
    assert_as_ase(line)


WORDS = st.sampled_from(
    [*("1", "-2.5", "1e-3", "T", "F", "true", "nan", "inf", "1_0", "a1", "_JSON", "x-y", ".", "-")]
) | st.text("01.eE+-_naifTF \"',=[]{}\\:", max_size=6)


@given(st.lists(st.tuples(st.sampled_from(["a", "b-c", "Lattice", "uid"]), WORDS, st.booleans())))
def test_it_gives_what_ase_gives_for_anything(parts: list[tuple[str, str, bool]]) -> None:
    pairs = [f'{key}="{value}"' if quoted else f"{key}={value}" for key, value, quoted in parts]
    assert_as_ase(" ".join(pairs))


def test_plain_lines_need_no_help(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(extxyz, "key_val_str_to_dict")
    result = parse_comment(f'{LATTICE} Properties=species:S:1:pos:R:3 gap=0.5 id=mp-1 pbc="T T T"')
    assert result["Lattice"].T[1].tolist() == [0.0, 3.9, 0.1]
    assert (result["gap"], result["id"], result["pbc"]) == (0.5, "mp-1", [True] * 3)
