"""Run all checks on a conv, and turn whatever it raises into findings."""

import inspect
import time
import traceback
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hydragnn_hpo.config.schema import Config
from hydragnn_hpo.errors import ConfigError, unknown
from hydragnn_hpo.testing import bookkeeping, compiling, smoothness, symmetry
from hydragnn_hpo.testing.report import Check, Finding, Report
from hydragnn_hpo.testing.subject import Subject, subject_of

FIRST = "contract"
"""Where this fails, nothing else can be asked."""

_ROOMS = (bookkeeping.CHECKS, symmetry.CHECKS, smoothness.CHECKS, compiling.CHECKS)
CHECKS: dict[str, Check] = {check.name: check for room in _ROOMS for check in room}
"""The suite: every check by its name, the contract first."""

LONGEST = 300
"""Characters of an exception's text that are kept."""


def check_conv(
    conv: str | type[nn.Module],
    options: Mapping[str, Any] | Config | None = None,
    *,
    features: int = 16,
    only: Collection[str] | None = None,
) -> Report:
    """Ask a conv everything that the laws demand, on a CPU, in seconds.

    Args:
        conv: a class, the name of one of ours, or ``my_pkg.my_module:MyConv``. A class takes
            ``(dimensions, options)``; it may have ``Options`` (a ``Config``), ``vectors`` (its
            state holds vectors), ``forces`` (meant for forces by differentiation) and ``exports``
            (can be followed by torch.export).
        options: of the conv; those left out take their defaults.
        features: channels per node.
        only: names of the checks to run; all if left out.

    Raises:
        ConfigError: there is no such conv or check, or an option is wrong.
    """
    for name in only or ():
        if name not in CHECKS:
            raise ConfigError(unknown("check", name, CHECKS))
    subject = subject_of(conv, options, features=features)
    started = time.monotonic()
    findings: list[Finding] = []
    for check in CHECKS.values():
        if only is not None and check.name not in only:
            continue
        broken = bool(findings) and findings[0].name == FIRST and findings[0].failed
        findings.append(
            _left_out(check, "the contract is broken") if broken else ask(check, subject)
        )
    plain = subject.options.model_dump(mode="json")
    return Report(subject.name, plain, tuple(findings), time.monotonic() - started)


def _left_out(check: Check, reason: str) -> Finding:
    return Finding(check.name, check.asks, "left out", detail=reason)


def ask(check: Check, subject: Subject) -> Finding:
    """Ask one question; whatever the conv raises is an answer."""
    if check.needs and not getattr(subject, check.needs):
        return _left_out(check, f"the conv says {check.needs} = False")
    failed = Finding(check.name, check.asks, "failed", advice=check.advice)
    try:
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            measured = check.measure(subject)
    except Exception as error:  # whatever a user's conv raises is an answer
        said = " ".join(str(error).split())[:LONGEST]
        detail = f"{type(error).__name__}: {said}" if said else type(error).__name__
        return replace(failed, detail=f"it raised {detail}", place=_place(error, subject))
    return replace(
        failed,
        result="passed" if measured.passed else "failed",
        found=float(measured.found),
        limit=float(measured.limit),
        at_most=measured.at_most,
        detail=measured.detail,
        advice="" if measured.passed else check.advice,
    )


def _place(error: BaseException, subject: Subject) -> str:
    """Give the deepest line of the conv's own file, or of whatever is neither ours nor torch's."""
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
