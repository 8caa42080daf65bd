"""``--help`` answers in a blink: what takes long to import waits inside the functions."""

import subprocess
import sys

SLOW = ("torch", "numpy", "pydantic", "rich.table", "optuna", "ray")


def test_the_command_line_starts_without_what_is_slow():
    line = "hydragnn_hpo.cli.command_line"
    code = f"import sys, {line}; print([n for n in {SLOW!r} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
