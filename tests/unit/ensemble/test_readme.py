"""The Python that the door shows runs as it stands there."""

import re
import runpy
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_the_example_of_the_readme_runs(tmp_path, monkeypatch, capsys):
    """In an empty folder, where the ensemble is the shipped one."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (example,) = [block for block in blocks if "EnsembleCalculator" in block]
    (tmp_path / "example.py").write_text(example)
    monkeypatch.chdir(tmp_path)
    runpy.run_path("example.py")
    assert re.search(r"-?\d+\.\d+ \+- \d+\.\d+ eV", capsys.readouterr().out)
