"""Run all checks on a conv; exceptions that it raises become findings."""

import inspect
import time
import traceback
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hydragnn_hpo.config import Config
from hydragnn_hpo.errors import ConfigError, unknown
from hydragnn_hpo.testing.check_report import CheckFinding, CheckReport, ConvCheck
from hydragnn_hpo.testing.checks import (
    compile_checks,
    contract_checks,
    derivative_checks,
    symmetry_checks,
)
from hydragnn_hpo.testing.conv_under_test import ConvUnderTest, make_conv_under_test

FIRST = "contract"
"""Check that must pass for the others to run."""

_SUITES = (
    contract_checks.CHECKS,
    symmetry_checks.CHECKS,
    derivative_checks.CHECKS,
    compile_checks.CHECKS,
)
CHECKS: dict[str, ConvCheck] = {check.name: check for suite in _SUITES for check in suite}
"""The suite: every check by its name, the contract first."""

LONGEST = 300
"""Most characters of an exception's text that are kept."""


def check_conv(
    conv: str | type[nn.Module],
    options: Mapping[str, Any] | Config | None = None,
    *,
    features: int = 16,
    only: Collection[str] | None = None,
) -> CheckReport:
    """Run the checks on a conv, on a CPU; takes seconds.

    Args:
        conv: a class, a name in ``CONVS``, or ``my_pkg.my_module:MyConv``. A class takes
            ``(dimensions, options)``; it may have ``Options`` (a ``Config``), ``vectors`` (its
            state holds vectors), ``forces`` (meant for forces by differentiation), ``smooth`` (its
            gradients have no steps) and ``exports`` (can be traced by torch.export).
        options: options of the conv; those left out take their defaults.
        features: channels per node.
        only: names of the checks to run; all if left out.

    Raises:
        ConfigError: there is no such conv or check, or an option is wrong.
    """
    for name in only or ():
        if name not in CHECKS:
            raise ConfigError(unknown("check", name, CHECKS))
    subject = make_conv_under_test(conv, options, features=features)
    begin = time.monotonic()
    findings: list[CheckFinding] = []
    for check in CHECKS.values():
        if only is not None and check.name not in only:
            continue
        broken = bool(findings) and findings[0].name == FIRST and findings[0].failed
        findings.append(
            _skipped_checks(check, "the contract is broken")
            if broken
            else run_check(check, subject)
        )
    plain = subject.options.model_dump(mode="json")
    return CheckReport(subject.name, plain, tuple(findings), time.monotonic() - begin)


def _skipped_checks(check: ConvCheck, reason: str) -> CheckFinding:
    return CheckFinding(check.name, check.asks, "left out", detail=reason)


def run_check(check: ConvCheck, subject: ConvUnderTest) -> CheckFinding:
    """Run one check; any exception of the conv becomes a failed finding."""
    if check.needs and not getattr(subject, check.needs):
        return _skipped_checks(check, f"the conv says {check.needs} = False")
    failed = CheckFinding(check.name, check.asks, "failed", advice=check.advice)
    try:
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            measured = check.measure(subject)
    except Exception as error:  # a user's conv may raise anything
        message = " ".join(str(error).split())[:LONGEST]
        detail = f"{type(error).__name__}: {message}" if message else type(error).__name__
        return replace(failed, detail=f"it raised {detail}", place=_user_line(error, subject))
    return replace(
        failed,
        result="passed" if measured.passed else "failed",
        measured=float(measured.value),
        limit=float(measured.limit),
        at_most=measured.at_most,
        detail=measured.detail,
        advice="" if measured.passed else check.advice,
    )


def _user_line(error: BaseException, subject: ConvUnderTest) -> str:
    """Return ``file:line: code`` of the innermost frame in the conv's file.

    Without one, the innermost frame outside torch and this package is used; empty if there is none.
    """
    frames = traceback.extract_tb(error.__traceback__)
    try:
        own = inspect.getsourcefile(subject.conv)
    except TypeError:  # a class from an interactive session has no file
        own = None
    mine = [frame for frame in frames if frame.filename == own]
    if not mine:
        foreign = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]))
        mine = [frame for frame in frames if not frame.filename.startswith(foreign)]
    if not mine:
        return ""
    last = mine[-1]
    return f"{last.filename}:{last.lineno}: {last.line}"
