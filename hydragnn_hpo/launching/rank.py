"""Run one function in a forked rank: set up the process, call the function, exit."""

import contextlib
import faulthandler
import hashlib
import importlib
import logging
import os
import random
import signal
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from typing import Any, NoReturn

from hydragnn_hpo.files import FILE_MODE
from hydragnn_hpo.launching import process_control
from hydragnn_hpo.launching.protocol import ForkRanks, RankStart
from hydragnn_hpo.leases import RankLease, watch_rank_lease
from hydragnn_hpo.rank_requests import REQUESTS

_RESET = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGALRM)


def reseed(text: str) -> None:
    """Seed every random generator inherited by the fork; jobs then set their own seeds."""
    value = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")
    random.seed(value)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(value)
    if torch := sys.modules.get("torch"):
        torch.manual_seed(value)


def _redirect(log: str) -> None:
    """Append stdout and stderr to the log; connect stdin to ``/dev/null``."""
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, FILE_MODE)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(target, 1)
    os.dup2(target, 2)
    os.close(target)
    os.close(nothing)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(line_buffering=True, write_through=False)
    faulthandler.enable(file=2)


def _bind(cores: Sequence[int]) -> None:
    if not cores:
        return
    try:
        os.sched_setaffinity(0, cores)
    except OSError as error:
        sys.stderr.write(f"rank not bound to cores {[*cores]} ({error.strerror}).\n")


def _leave_slot(log: str, error: OSError) -> NoReturn:
    """Wait, then end this rank: the wait delays the next attempt, which would fail as well."""
    from hydragnn_hpo.config import FILES_AWAY, FILES_AWAY_SECONDS

    sys.stderr.write(f"{log}: cannot be opened ({error.strerror}).\n")
    time.sleep(FILES_AWAY_SECONDS)
    raise SystemExit(FILES_AWAY) from None


def _become_rank(order: ForkRanks, rank: RankStart, lease: RankLease, requests: int | None) -> None:
    """Set up session, signals, streams, environment, cores, seeds and lease of this process."""
    os.setsid()
    signal.set_wakeup_fd(-1)
    for number in _RESET:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    process_control.adopt_orphans(False)
    process_control.name_process("hpo-rank")
    try:
        _redirect(order.start.log)
    except OSError as error:  # a result could not be written to the run directory either
        _leave_slot(order.start.log, error)
    for name in (*rank.without, REQUESTS):
        os.environ.pop(name, None)
    os.environ.update(rank.environment)
    if requests is not None:
        os.environ[REQUESTS] = str(requests)
    _bind(rank.cores)
    reseed(f"{order.start.job}:{rank.rank}")
    watch = (lease, order.lease_seconds, process_control.end_group)
    threading.Thread(target=watch_rank_lease, args=watch, daemon=True, name="lease").start()


def _call(target: str, spec: dict[str, Any]) -> int:
    """Call ``module:function`` and return its exit code; 1 if it returns no valid one."""
    module, _, function = target.partition(":")
    code = getattr(importlib.import_module(module), function)(spec)
    if isinstance(code, bool) or not isinstance(code, int) or not 0 <= code <= 255:
        sys.stderr.write(f"{target} gave {code!r}, not an exit code.\n")
        return 1
    return code


def run_rank(
    order: ForkRanks,
    rank: RankStart,
    *,
    fork_server: int,
    lease: RankLease,
    requests: int | None,
) -> NoReturn:
    """Run a rank in this process and exit; the fork has closed the fork server's descriptors.

    Args:
        order: the agent's order to fork the ranks of a job.
        rank: the rank to run.
        fork_server: process id of the fork server; the rank dies with it.
        lease: how long the ranks of this host may run.
        requests: descriptor from which rank 0 reads requests, see ``rank_requests.py``; or None.
    """
    code = 1
    try:
        process_control.die_with_parent(fork_server)
        _become_rank(order, rank, lease, requests)
        code = _call(order.start.target, order.start.spec)
    except SystemExit as leaving:
        if leaving.code is None or isinstance(leaving.code, int):
            code = (leaving.code or 0) & 0xFF
        else:
            sys.stderr.write(f"{leaving.code}\n")
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            logging.shutdown()
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
