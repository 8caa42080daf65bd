"""Attacks: drawn cases, every defect ever found, and the judge that knows them.

``tests/benchmarks/attack.py`` draws thousands, with any seed.
"""

import random

import pytest
from drawing import GENERATORS, generate
from known_defects import KNOWN
from sandbox import Case, End, Sandbox, judge
from scarcity import kills

SEED = 21

SENTENCE = "error: c.toml: 'seed' is true: a whole number is wanted; write seed = 1.\n"

ENDS = {
    "answer": ("any", 0, "fine", "", {}, "clean"),
    "sentence": ("any", 2, "", SENTENCE, {}, "clean"),
    "usage": ("any", 2, "", "Usage: hydragnn-hpo ...", {}, "clean"),
    "traceback": (
        "any",
        1,
        "",
        "Traceback (most recent call last):\nKeyError: 'x'",
        {},
        "traceback",
    ),
    "signal": ("any", -11, "", "", {}, "traceback"),
    "wrong_success": ("fail", 0, "fine", "", {}, "silent"),
    "no_number": ("any", 0, '{"energy": NaN}', "", {}, "silent"),
    "input_changed": ("any", 0, "fine", "", {"input": "other"}, "silent"),
    "input_removed": ("any", 2, "", SENTENCE, {"input": ""}, "silent"),
    "good_refused": ("ok", 2, "", SENTENCE, {}, "other"),
    "no_sentence": ("any", 1, "", "oh", {}, "other"),
    "two_sentences": ("any", 2, "", SENTENCE * 2, {}, "other"),
    "escape": ("any", 2, "", SENTENCE + "\x1b[2J", {}, "other"),
    "class": ("any", 2, "", "error: c.toml: a valid SpaceConfig is wanted.", {}, "other"),
    "warning": ("any", 0, "", "ase/io/cif.py:1: UserWarning: odd", {}, "other"),
    "long": ("any", 2, "", f"error: {'a' * 300}", {}, "other"),
    "long_list": ("any", 2, "", f"error: no 'x'. Known: {'a, ' * 300}", {}, "clean"),
    "half_written": ("any", 2, "", SENTENCE, {".out.csv.x1": "a"}, "other"),
}


@pytest.mark.parametrize(("wants", "code", "out", "err", "left", "kind"), ENDS.values(), ids=ENDS)
def test_the_judge_knows_defects(wants, code, out, err, left, kind):
    case = Case("x", ("predict", "input", "--json"), {"input": b""}, wants)
    assert judge(case, End(code, out, err, left))[0] == kind


SCRIPTS = {
    "spins": ("while True: pass", "hang"),
    "grows": ("x = []\nwhile True: x.append(b'x' * 2**26)", "hang"),
    "chatters": ("while True: print('x' * 999_999)", "hang"),
    "waits": ("import time; time.sleep(60)", "hang"),
    "raises": ("{}['x']", "traceback"),
    "leaves_a_child": ("import subprocess; subprocess.Popen(['sleep', '60'])", "clean"),
    "writes_its_input": ("open('input', 'w').write('x')", "silent"),
}


def test_the_sandbox_ends_whatever_it_runs():
    files = {f"{name}.py": script.encode() for name, (script, _) in SCRIPTS.items()}
    with Sandbox(warm=False) as sandbox:
        result = {
            name: sandbox.run(
                Case(
                    name,
                    (f"{name}.py",),
                    {**files, "input": b""},
                    wall_seconds=2.0 if name == "waits" else 60.0,  # others end by what they use
                    cpu_seconds=1.5 if name == "spins" else 60.0,
                    memory_gb=0.7,
                )
            )
            for name in SCRIPTS
        }
        version_result = sandbox.run(Case("version", ("--version",), {}, wants="ok"))
    assert {name: each.kind for name, each in result.items()} == {
        n: k for n, (_, k) in SCRIPTS.items()
    }
    assert "GB of memory" in result["grows"].why
    assert version_result.out.startswith("hydragnn-hpo ")


def test_a_seed_draws_the_same_cases():
    one, other = (list(generate(5, 30)) for _ in range(2))
    assert one == other
    assert one != list(generate(6, 30))


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox() as made:
        yield made


def kind_of(case: Case) -> tuple[str, str]:
    """Return the command and the kind of file that a case is about."""
    named = [name for name in case.argv if name in case.files]
    return case.argv[0], named[0].rpartition(".")[2] if named else ""


FIRST = {kind_of(case): case.name for case in reversed(KNOWN)}
"""A defect of each command and kind of file; ``make test`` looks for these."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            case,
            id=case.name,
            marks=() if FIRST[kind_of(case)] == case.name else pytest.mark.stress,
        )
        for case in KNOWN
    ],
)
def test_a_defect_does_not_come_back(sandbox, case):
    verdict = sandbox.run(case)
    if verdict.kind == "skipped":
        pytest.skip(verdict.why)
    assert verdict.kind == "clean", (verdict.why, verdict.err[-2000:])


@pytest.mark.stress
def test_a_campaign_at_width_two_ends_the_same_whatever_is_killed(sandbox):
    """One seed; ``tests/benchmarks/attack.py`` draws others."""
    verdict = sandbox.run(kills(random.Random(1)))
    assert verdict.kind == "clean", (verdict.why, verdict.err[-2000:])
    assert "killed: ['" in verdict.out, "nothing was killed"


def check_cases(sandbox, cases):
    """Run cases, and list those that do not end well."""
    verdicts = [sandbox.run(case) for case in cases]
    bad = [each for each in verdicts if each.kind not in ("clean", "skipped")]
    assert not bad, "\n".join(f"{v.kind} {v.case.name} {v.case.argv}: {v.why}" for v in bad)


@pytest.mark.slow
def test_two_cases_of_each_kind_end_well(sandbox):
    kinds = [make for make in GENERATORS if make is not kills]
    check_cases(sandbox, (make(random.Random(f"{SEED}-{n}")) for make in kinds for n in range(2)))


@pytest.mark.stress
def test_drawn_cases_end_well(sandbox):
    check_cases(sandbox, generate(SEED, 200))
