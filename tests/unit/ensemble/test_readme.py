"""The Python that the door shows runs as it stands there."""

import re
import runpy
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_the_example_of_the_readme_runs(built_zip, tmp_path, monkeypatch, capsys):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (example,) = [block for block in blocks if "EnsembleCalculator" in block]
    for old, new in (
        ("runs/quickstart/ensemble.zip", str(built_zip)),
        ('"partial_charge"', '"charge"'),
    ):
        assert old in example
        example = example.replace(old, new)
    (tmp_path / "example.py").write_text(example)
    monkeypatch.chdir(ROOT)
    runpy.run_path(str(tmp_path / "example.py"))
    assert re.search(r"-?\d+\.\d+ \+- \d+\.\d+ eV", capsys.readouterr().out)
