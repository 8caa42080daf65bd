"""The probe: looks at this host, and prints what it saw, see ``lines``.

``python -m hydragnn_hpo.launching.doctor.probe ORDER``. Every part runs in a process of its own,
with a time limit: a file system or driver that hangs costs its part, not the answer.
"""

import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from hydragnn_hpo.launching.doctor.lines import cut
from hydragnn_hpo.launching.doctor.order import Order
from hydragnn_hpo.launching.doctor.probes.devices import look_at_devices
from hydragnn_hpo.launching.doctor.probes.network import look_at_libraries, look_at_network
from hydragnn_hpo.launching.doctor.probes.software import look_at_software, look_at_torch
from hydragnn_hpo.launching.doctor.probes.storage import (
    host_id,
    look_at_scratch,
    look_at_shared,
)
from hydragnn_hpo.launching.doctor.probes.system import look_at_binding, look_at_system

Look = Callable[[Order], dict[str, Any]]

PROBES: dict[str, Look] = {
    "system": look_at_system,
    "binding": look_at_binding,
    "devices": look_at_devices,
    "network": look_at_network,
    "libraries": look_at_libraries,
    "scratch": look_at_scratch,
    "shared": look_at_shared,
    "software": look_at_software,
    "torch": look_at_torch,
}
"""Part of the answer -> what looks."""


PATIENCE = {"torch": 4.0}
"""Parts that may take so many times longer."""


def examine(order: Order, probes: Mapping[str, Look] = PROBES) -> dict[str, Any]:
    """Look at everything, one after the other; what fails or hangs is named in ``errors``."""
    answer: dict[str, Any] = {"host": host_id(), "errors": {}}
    for part, look in probes.items():
        try:
            answer[part] = limited(look, order, order.seconds * PATIENCE.get(part, 1.0))
        except (OSError, TimeoutError, ValueError) as error:
            answer["errors"][part] = str(error)
    answer["clock"] = time.time()
    return answer


def limited(look: Look, order: Order, seconds: float) -> dict[str, Any]:
    """Look in a process of its own, and kill it when its time is over.

    Raises:
        TimeoutError: it gave no answer in time.
        OSError: it failed.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _answer(look, order, writing)
    os.close(writing)
    try:
        told = json.loads(_read(reading, time.monotonic() + seconds) or b'{"error": "it crashed"}')
    finally:
        os.close(reading)
        _end(child)
    if "error" in told:
        raise OSError(told["error"])
    found: dict[str, Any] = told["found"]
    return found


def _answer(look: Look, order: Order, writing: int) -> None:
    """Be the child: in a group of its own, so that what it starts ends with it."""
    try:
        os.setpgid(0, 0)
        told: dict[str, Any] = {"found": look(order)}
    except Exception as error:  # whatever it is: the other parts go on
        told = {"error": f"{type(error).__name__}: {error}"}
    with os.fdopen(writing, "wb") as pipe:
        pipe.write(json.dumps(told).encode())
    os._exit(0)


def _read(descriptor: int, deadline: float) -> bytes:
    pieces: list[bytes] = []
    while True:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([descriptor], [], [], left)[0]:
            raise TimeoutError("no answer in time")
        piece = os.read(descriptor, 1 << 16)
        if not piece:
            return b"".join(pieces)
        pieces.append(piece)


def _end(child: int) -> None:
    """Kill a child and what it started; one that the kernel holds is left to it."""
    for kill, target in ((os.killpg, child), (os.kill, child)):
        try:
            kill(target, signal.SIGKILL)
        except ProcessLookupError:
            continue
    for _ in range(50):
        if os.waitpid(child, os.WNOHANG)[0]:
            return
        time.sleep(0.02)


def main() -> None:
    """Be the probe of this host."""
    answer = json.dumps(examine(Order.from_text(sys.argv[1])))
    for line in cut(answer):
        sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
