"""The house has a size: who needs more lines or words raises the budget and says what for."""

import ast
import subprocess
import tomllib
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BUDGET = ROOT / "tests" / "architecture_budget.toml"
SLACK = 1.02
"""Share of the budget beyond which a test fails."""


def count_code(text: str) -> int:
    """Return the lines of a module without blanks, comments and docstrings."""
    documented = {
        line
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    lines = enumerate(map(str.strip, text.splitlines()), start=1)
    return sum(
        bool(line) and not line.startswith("#") and number not in documented
        for number, line in lines
    )


def test_only_code_is_counted() -> None:
    module = '"""Two\n\nparagraphs."""\n\n# Why.\nx = (\n    1,  # one\n)\n"""Its meaning."""\n'
    assert count_code(module) == 3


def tracked(pattern: str) -> list[Path]:
    """Return the files of the checkout that git knows."""
    listing = subprocess.check_output(["git", "ls-files", "-z", pattern], cwd=ROOT, text=True)
    return [ROOT / name for name in listing.split("\0") if name]


def count_rooms() -> Counter[str]:
    """Count the lines of code of each room, of floor 0 and of the tests."""
    counts = Counter[str]()
    for path in tracked("*.py"):
        parts = path.relative_to(ROOT).parts
        if parts[0] == "hydragnn_hpo":
            room = parts[1] if len(parts) > 2 else "floor 0"
        else:
            room = parts[0]
        counts[room] += count_code(path.read_text(encoding="utf-8"))
    return counts


def count_words() -> Counter[str]:
    """Count the words of all Markdown, as ``wc -w`` does."""
    pages = tracked("*.md")
    return Counter(markdown=sum(len(page.read_text(encoding="utf-8").split()) for page in pages))


@pytest.mark.parametrize("kind", ["code", "words"])
def test_the_house_keeps_its_budget(kind: str) -> None:
    counts = count_rooms() if kind == "code" else count_words()
    budget = tomllib.loads(BUDGET.read_text(encoding="utf-8"))[kind]
    assert budget.keys() == counts.keys()
    beyond = {name: n for name, n in counts.items() if n > SLACK * budget[name]}
    assert not beyond, (
        f"beyond the budget of {BUDGET.name}: {beyond}; take as much away, or raise the budget in "
        "the same commit and say in its body what users get for it"
    )
