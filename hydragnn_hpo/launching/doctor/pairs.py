"""Pairs of hosts that sum together: few, each host at least once; and which of them are slow."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hydragnn_hpo.config.machine import ProfileConfig
from hydragnn_hpo.launching.doctor.finding import Finding
from hydragnn_hpo.launching.doctor.outliers import behind
from hydragnn_hpo.launching.probing.judging import judge

Pair = tuple[str, str]

FAR_PAIRS = 8
"""Pairs of hosts that are far apart in the list, beside all neighbours."""

_RATE, _LATENCY = "all-reduce bus bandwidth", "all-reduce latency"
_FACTORS = {_RATE: (2.0, True), _LATENCY: (4.0, False)}
"""Check -> by how much a pair must be worse than the median, and whether low is bad."""


def choose_pairs(hosts: Sequence[str], far: int = FAR_PAIRS) -> list[list[Pair]]:
    """Choose pairs in rounds; in a round no host has two partners.

    Args:
        hosts: neighbours in the network side by side.
        far: most pairs that are half of the list apart.
    """
    count = len(hosts)
    near = [(hosts[k], hosts[k + 1]) for k in range(0, count - 1, 2)]
    rounds = [near]
    if count % 2 and count > 1:
        rounds.append([(hosts[-2], hosts[-1])])
    half = count // 2
    if half >= 2:
        step = max(1, half // max(1, far))
        rounds.append([(hosts[k], hosts[k + half]) for k in range(0, half, step)][:far])
    return [pairs for pairs in rounds if pairs]


def judge_pairs(
    answers: Mapping[Pair, Mapping[str, Any]],
    failures: Mapping[Pair, str],
    profile: ProfileConfig,
) -> list[Finding]:
    """Judge pairs by each other; an acceptance judges them by the profile.

    Args:
        answers: of the probes that came to an end.
        failures: why others did not.
        profile: says which network is to be used.
    """
    cure = "Can they reach each other on the fabric's interface, at ports from 20000 on?"
    found = [
        Finding("all-reduce sums", "wrong", why, "right on both", cure, pair)
        for pair, why in failures.items()
    ]
    told = [finding for pair, answer in answers.items() for finding in judge(answer, pair, profile)]
    for check in dict.fromkeys(finding.check for finding in told):
        alike = [finding for finding in told if finding.check == check]
        found += _compared(alike, *_FACTORS[check]) if check in _FACTORS else alike
    return found


def _compared(alike: Sequence[Finding], factor: float, low_is_bad: bool) -> list[Finding]:
    """Judge figures of one check by their median alone."""
    values = {" - ".join(f.hosts): f.figure for f in alike if f.figure is not None}
    slow = behind(values, factor, low_is_bad=low_is_bad)
    median = next(iter(slow.values()), 0.0)
    usual = min(alike, key=lambda f: abs((f.figure or 0.0) - median)).found
    cure = (
        "One of the two, or a wire between them: leave the host out that is in other slow pairs, "
        "too."
    )

    def judged(finding: Finding) -> Finding:
        if " - ".join(finding.hosts) not in slow:
            return replace(finding, state="ok", expected="", cure="")
        return replace(finding, state="slow", expected=f"about {usual} as most pairs", cure=cure)

    return [judged(finding) for finding in alike]
