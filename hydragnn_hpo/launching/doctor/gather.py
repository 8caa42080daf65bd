"""Have all hosts look at themselves at once, and take what answers in time."""

import contextlib
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO

from hydragnn_hpo.launching.doctor.facts import HostFacts, parse_answer
from hydragnn_hpo.launching.doctor.lines import Collector
from hydragnn_hpo.launching.doctor.order import short

_ENDING_SECONDS = 3.0
"""For each of: ending by itself, SIGTERM, SIGKILL."""

_LONGEST = 1 << 24
"""Bytes without an end of line: whatever that is, it is no answer."""


@dataclass
class Gathered:
    """Who answered what, and who did not."""

    answers: dict[str, HostFacts] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    asked_at: float = 0.0
    answered_at: float = 0.0


def gather(
    argv: Sequence[str],
    hosts: Sequence[str],
    *,
    environment: Mapping[str, str],
    seconds: float,
) -> Gathered:
    """Run the command that looks at all hosts; a host that is late is left behind.

    Args:
        argv: prints a line for each host.
        hosts: that should answer.
        environment: for the command.
        seconds: after which nobody is waited for.
    """
    gathered = Gathered(asked_at=time.time())
    deadline = time.monotonic() + seconds
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=said,
            env=dict(environment),
            start_new_session=True,
        )
        assert process.stdout is not None
        with process.stdout:
            lines = _lines(process.stdout.fileno(), deadline)
            gathered.answers = _answers(lines, hosts)
        gathered.answered_at = time.time()
        code = _end(process, patient=time.monotonic() < deadline)
        why = _reason(code, said, seconds)
    gathered.missing = {host: why for host in hosts if host not in gathered.answers}
    return gathered


def _answers(lines: Iterable[str], hosts: Sequence[str]) -> dict[str, HostFacts]:
    """Take answers of these hosts until all are there or no line comes any more."""
    known = {short(host): host for host in hosts}
    found: dict[str, HostFacts] = {}
    collector = Collector()
    for line in lines:
        text = collector.hear(line)
        facts = parse_answer(text) if text else None
        if facts is not None and short(facts.host) in known:
            found[known[short(facts.host)]] = facts
        if len(found) == len(known):
            break
    return found


def _lines(descriptor: int, deadline: float) -> Iterator[str]:
    """Give the lines of a pipe as they come, until it closes or time is over."""
    waiting = b""
    while len(waiting) < _LONGEST:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([descriptor], [], [], left)[0]:
            return
        piece = os.read(descriptor, 1 << 16)
        if not piece:
            return
        *whole, waiting = (waiting + piece).split(b"\n")
        yield from (line.decode(errors="replace") for line in whole)


def _end(process: subprocess.Popen[bytes], *, patient: bool) -> int | None:
    """End what may still run; gives the code of what ended by itself.

    What cannot be killed is left to the scheduler: the job ends it.
    """
    with contextlib.suppress(subprocess.TimeoutExpired):
        return process.wait(_ENDING_SECONDS if patient else 0.0)
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_ENDING_SECONDS)
            break
    return None


def _reason(code: int | None, said: IO[bytes], seconds: float) -> str:
    """Say why some hosts did not answer."""
    if code is None:
        return f"no answer within {seconds:.0f} s"
    said.seek(0)
    lines = said.read()[-4000:].decode(errors="replace").strip().splitlines()
    errors = [line for line in lines if "error" in line.lower()] or lines[-1:]
    return f"ended with code {code} before it answered" + (f": {errors[-1]}" if errors else "")
