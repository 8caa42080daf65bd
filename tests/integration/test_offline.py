"""The wheelhouse installs without a network: ``make wheelhouse`` first, see ``launch/offline.md``.

HYDRAGNN_HPO_WHEELHOUSE=wheelhouse python -m pytest tests/integration/test_offline.py
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = os.environ.get("HYDRAGNN_HPO_WHEELHOUSE")


@pytest.mark.release
@pytest.mark.timeout(900)
@pytest.mark.skipif(not FOLDER, reason="HYDRAGNN_HPO_WHEELHOUSE names no wheelhouse")
def test_a_wheelhouse_is_enough(tmp_path):
    base = Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info.minor}"
    subprocess.run([base, "-m", "venv", tmp_path / "env"], check=True)
    program = tmp_path / "env/bin"
    argv = [program / "pip", "install", "--quiet", "--no-index", "--find-links", Path(str(FOLDER))]
    alone = {k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "PYTHON"))}
    alone["PIP_CONFIG_FILE"] = os.devnull  # nor what this machine's own settings name

    subprocess.run(
        [*argv, "-c", ROOT / "constraints.txt", "hydragnn-hpo[campaign]"], check=True, env=alone
    )

    def output_of(*command: object) -> str:
        done = subprocess.run(command, env=alone, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert output_of(program / "hydragnn-hpo", "--version").startswith("hydragnn-hpo ")
    assert "frontier" in output_of(program / "hydragnn-hpo", "machine", "list")
    code = "import hydragnn_hpo.training.trial as t; print(t.__file__)"
    assert output_of(program / "python", "-c", code).startswith(str(tmp_path))
    pinned = dict(re.findall(r"^([\w.-]+)==(\S+)", (ROOT / "constraints.txt").read_text(), re.M))
    lines = output_of(program / "pip", "list", "--format=freeze").splitlines()
    versions = dict(line.split("==") for line in lines)
    wrong = {name: v for name, v in versions.items() if pinned.get(name, v) != v.split("+")[0]}
    assert wrong == {}
    assert len(set(versions) & set(pinned)) > 40
