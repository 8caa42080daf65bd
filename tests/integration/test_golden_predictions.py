"""An artefact of an earlier version predicts what it predicted, byte by byte but for rounding.

``goldens/ensemble/ensemble.zip`` was made by a real campaign. Text, order, columns and escaping
are compared exactly; numbers within 1e-5, as CPUs round differently. A missing golden is written.
"""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from comparing import assert_alike, assert_alike_text, golden_text

GOLDENS = Path(__file__).parents[1] / "goldens" / "ensemble"
TOLERANCE = {"rel": 1e-5, "absolute": 1e-6}
EVERYTHING = ("--levels", "50,90", "--members", "--keep", "label,temperature")


def put(hpo: Any, *options: str) -> Any:
    """Predict the golden inputs in a folder of their own, and return how the command ended."""
    for name in ("ensemble.zip", "inputs.extxyz"):
        shutil.copy(GOLDENS / name, hpo.folder)
    return hpo.here("predict", "inputs.extxyz", "--ensemble", "ensemble.zip", *options)


def plain(content: Any) -> str:
    return json.dumps(content, indent=1) + "\n"


@pytest.mark.parametrize(
    ("suffix", "written"),
    [
        ("csv", ("csv", "nodes.csv")),
        ("extxyz", ("extxyz",)),
        ("json", ("json",)),
        ("jsonl", ("jsonl",)),
    ],
)
@pytest.mark.parametrize("name", ["plain", "everything"])
def test_files_are_written_as_before(
    hpo: Any, name: str, suffix: str, written: tuple[str, ...]
) -> None:
    done = put(hpo, "--out", f"{name}.{suffix}", *(EVERYTHING if name == "everything" else ()))
    assert done.code == 0, done.err
    expected = {f"{name}.{end}" for end in written}
    assert {path.name for path in hpo.folder.iterdir()} == {
        "ensemble.zip",
        "inputs.extxyz",
        *expected,
    }
    for file in sorted(expected):
        result = (hpo.folder / file).read_bytes().decode()
        golden = golden_text(GOLDENS / file, result)
        assert_alike_text(result, golden, **TOLERANCE)
        # The last digits differ from processor to processor, and with them the length
        assert abs(longest(result) - longest(golden)) <= 2, "numbers have as many digits as before"


def longest(text: str) -> int:
    """Return the most digits of a mantissa after the point."""
    return max(len(digits) for digits in re.findall(r"\d\.(\d+)", text))


def test_what_is_reported_is_as_before(hpo: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    result = put(hpo)
    streamed = put(hpo, "--out", "-", "--json")
    assert (result.code, streamed.code) == (0, 0)
    output = f"{result.out}\n-- errors --\n{result.err}"
    assert_alike_text(output, golden_text(GOLDENS / "shown.txt", output), rel=0.0, absolute=0.002)
    golden = golden_text(GOLDENS / "stdout.jsonl", streamed.out)
    assert_alike_text(streamed.out, golden, **TOLERANCE)


def test_columns_of_parquet_are_as_before(hpo: Any) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    done = put(hpo, "--out", "p.parquet", *EVERYTHING)
    assert done.code == 0, done.err
    result = {}
    for path in sorted(hpo.folder.glob("p*.parquet")):
        table = parquet.read_table(path)
        types = {field.name: str(field.type) for field in table.schema}
        kept = {k.decode(): v.decode() for k, v in (table.schema.metadata or {}).items()}
        kept.pop("ARROW:schema", None)
        result[path.name] = {"types": types, "metadata": kept, "rows": table.to_pylist()}
    golden = json.loads(golden_text(GOLDENS / "parquet.json", plain(result)))
    assert [list(one["types"]) for one in result.values()] == [
        list(one["types"]) for one in golden.values()
    ]
    assert_alike(json.loads(plain(result)), golden, **TOLERANCE)


def test_variables_of_adios_are_as_before(hpo: Any) -> None:
    adios2 = pytest.importorskip("adios2")
    done = put(hpo, "--out", "p.bp", *EVERYTHING)
    assert done.code == 0, done.err
    result: dict[str, Any] = {}
    with adios2.FileReader(str(hpo.folder / "p.bp")) as file:
        for name, about in sorted(file.available_variables().items()):
            result[name] = [about["Type"], file.read(name).tolist()]
        attributes = {name: each["Value"] for name, each in file.available_attributes().items()}
    result["attributes"] = attributes
    golden = json.loads(golden_text(GOLDENS / "adios.json", plain(result)))
    assert_alike(json.loads(plain(result)), golden, **TOLERANCE)


def test_an_artefact_says_of_itself_what_it_reported_before(hpo: Any) -> None:
    put(hpo)
    actual = hpo.json("ensemble", "info", "ensemble.zip")
    golden = json.loads(golden_text(GOLDENS / "info.json", plain(actual)))
    assert_alike(actual, golden, rel=1e-12)
