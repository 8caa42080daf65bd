"""What happens in a forked rank before and after the function it was started for."""

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
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from hydragnn_hpo.launching import process_control
from hydragnn_hpo.leases import watch_rank_lease

_RESET = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGALRM)


def reseed(text: str) -> None:
    """Seed every generator that the fork inherited; jobs seed again for themselves."""
    value = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")
    random.seed(value)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(value)
    if torch := sys.modules.get("torch"):
        torch.manual_seed(value)


def _redirect(log: str) -> None:
    """Append stdout and stderr to the log, read nothing."""
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
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


def _bind(cores: list[int]) -> None:
    if not cores:
        return
    try:
        os.sched_setaffinity(0, cores)
    except OSError as error:
        sys.stderr.write(f"rank not bound to cores {cores} ({error.strerror}).\n")


def _settle(job: Mapping[str, Any], place: Mapping[str, Any]) -> None:
    """Become a process of its own: signals, streams, environment, cores, seeds, lease."""
    os.setsid()
    signal.set_wakeup_fd(-1)
    for number in _RESET:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    process_control.adopt_orphans(False)
    process_control.name_process("hpo-rank")
    _redirect(job["log"])
    for name in place["without"]:
        os.environ.pop(name, None)
    os.environ.update(place["environment"])
    _bind(place["cores"])
    reseed(f"{job['job']}:{place['rank']}")
    terms = (Path(job["lease"]), float(job["lease_seconds"]), process_control.end_group)
    threading.Thread(target=watch_rank_lease, args=terms, daemon=True, name="lease").start()


def _call(target: str, spec: dict[str, Any]) -> int:
    """Call ``module:function`` and give the exit code it asks for."""
    module, _, function = target.partition(":")
    code = getattr(importlib.import_module(module), function)(spec)
    if isinstance(code, bool) or not isinstance(code, int) or not 0 <= code <= 255:
        sys.stderr.write(f"{target} gave {code!r}, not an exit code.\n")
        return 1
    return code


def run_rank(job: Mapping[str, Any], place: Mapping[str, Any], *, zygote: int) -> NoReturn:
    """Be a rank, in a fork that has let go of all that belongs to the zygote; never return.

    Args:
        job: the zygote's ``start`` message.
        place: the entry of its ``ranks`` for this rank.
        zygote: pid of the zygote.
    """
    code = 1
    try:
        process_control.die_with_parent(zygote)
        _settle(job, place)
        code = _call(job["target"], job["spec"])
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
