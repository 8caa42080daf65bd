"""Tutorials and how-to guides as tests: blocks become files and commands, in order, in one folder.

How a page says so is written in ``workflows/tutorials/README.md``.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "workflows" / "tutorials"
HOWTO = ROOT / "docs" / "howto"

FENCE = re.compile(
    r"(?:^<!-- (?P<mark>[^>]+?) -->\n)?"
    r"(?:^\*\*`(?P<file>[^`]+)`\*\*[^\n]*\n\n?)?"
    r"^```(?P<language>\w*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
FAILS = "fails, as it should"
MARKS = ("not run: ", "output varies: ", "needs ", FAILS)


@dataclass(frozen=True)
class Block:
    """What stands between two fences."""

    language: str
    text: str
    file: str | None
    """Name under which it is written."""
    mark: str
    """What the page says of it in a comment before it."""
    line: int

    @property
    def skipped(self) -> bool:
        return self.mark.startswith("not run: ")

    @property
    def varies(self) -> bool:
        return self.mark.startswith("output varies: ")

    @property
    def needs(self) -> str:
        return self.mark.removeprefix("needs ") if self.mark.startswith("needs ") else ""


@dataclass(frozen=True)
class Step:
    """One command and what the page shows of its output."""

    command: str
    expected_output: str


def find_page(name: str) -> Path:
    """Return the tutorial or the guide of that name."""
    return next(path for folder in (PAGES, HOWTO) if (path := folder / f"{name}.md").exists())


def blocks(page: str) -> list[Block]:
    """Take a page apart."""
    results = []
    for match in FENCE.finditer(page):
        line = page[: match.start("text")].count("\n")
        mark = match["mark"] or ""
        file = match["file"]
        results.append(Block(match["language"], match["text"], file, mark, line))
    return results


def steps(block: Block) -> Iterator[Step]:
    """Take a console block apart: lines that begin with a dollar, and what follows each."""
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        command, _, expected_output = part.partition("\n")
        yield Step(command.partition("   # ")[0].strip(), expected_output.strip("\n"))


def agrees(expected_output: str, output: str) -> bool:
    """Say whether output is what a page shows of it.

    Three dots stand for anything, alone on a line for any lines; decimal numbers stand for any
    decimal number, spaces and lines of tables for any number of their kind.
    """
    return (
        re.fullmatch(pattern(expected_output), f"{output.strip()}\n" if output.strip() else "")
        is not None
    )


def pattern(expected_output: str) -> str:
    """Give what output must match as a whole."""
    made = ""
    for line in expected_output.splitlines():
        made += r"(?:.*\n)*?" if line.strip() == "..." else f"{_line(line)}\\n"
    return made


def _line(line: str) -> str:
    tokens = re.findall(r"\.\.\.|-?\d+\.\d+|\s+|[\u2500\u2501]+|[^\s\u2500\u2501.\d-]+|.", line)
    return r"[ \t]*" + "".join(map(_token, tokens)) + r"[ \t]*"


def _token(token: str) -> str:
    if token == "...":
        return ".*?"
    if re.fullmatch(r"-?\d+\.\d+", token):
        return r"-?\d+\.\d+"
    if not token.strip():
        return r"[ \t]*"
    return f"[{token[0]}]+" if token[0] in "\u2500\u2501" else re.escape(token)


class PageRunner:
    """The folder of a reader who follows the pages."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "COLUMNS": "110",
            "HYDRAGNN_HPO_DATA": "",
        }
        self.done: set[str] = set()

    def follow(self, name: str, has: frozenset[str] = frozenset()) -> list[str]:
        """Do what a page says, after the pages it builds on; gives what was left out.

        Args:
            name: the page, without its folder and ending.
            has: what there is of what blocks may need.
        """
        page = find_page(name).read_text()
        for before in re.findall(r"^Before this page: \[.*\]\((\w+)\.md\)", page, re.MULTILINE):
            if before not in self.done:
                self.follow(before, has)
        self.done.add(name)
        left = []
        for block in blocks(page):
            if block.needs and block.needs not in has:
                left.append(block.needs)
            elif not block.skipped:
                self._do(block, f"{name}.md:{block.line}")
        return left

    def _do(self, block: Block, where: str) -> None:
        if block.file:
            path = self.folder / block.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text)
            return
        for step in steps(block):
            self._run(step, where, compare=not block.varies, fails=block.mark == FAILS)

    def _run(self, step: Step, where: str, *, compare: bool, fails: bool) -> None:
        if export := re.fullmatch(r"export (\w+)=(.*)", step.command):
            self.environment[export[1]] = export[2].replace("$PWD", str(self.folder))
            return
        done = subprocess.run(
            ["bash", "-c", step.command],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=800,
        )
        transcript = f"{where}: $ {step.command}\n{done.stdout}"
        assert "Traceback" not in done.stdout, transcript
        assert (done.returncode != 0) == fails, transcript
        if compare:
            assert agrees(step.expected_output, done.stdout), (
                f"{transcript}\nthe page shows:\n{step.expected_output}"
            )
