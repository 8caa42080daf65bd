"""What the ranks of ``test_backends`` run; imported by zygotes, never by a test."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

RANK = "RANK"
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)
STAY = 3600.0
"""Seconds that a rank stays whom nobody ends: longer than any test may take."""

KEPT = []
"""A DDP model that is the last owner of its gloo group can hang as it is freed (torch 2.13)."""


def _rank() -> int:
    return int(os.environ[RANK])


def _show(spec, name, value):
    """Write a value where the test finds it, whole or not at all."""
    path = Path(spec["folder"]) / f"{name}.{_rank()}"
    path.with_suffix(".tmp" + path.suffix).write_text(json.dumps(value))
    path.with_suffix(".tmp" + path.suffix).rename(path)


def report(spec):
    print(f"out of rank {_rank()}")
    print(f"err of rank {_rank()}", file=sys.stderr)
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    more = ("OMP_NUM_THREADS", "GLOO_SOCKET_IFNAME", "HYDRAGNN_HPO_JOB", "HYDRAGNN_HPO_DEVICE")
    environment = {name: os.environ[name] for name in names + more}
    values = {
        "environment": environment,
        "cores": sorted(os.sched_getaffinity(0)),
        "stdin": sys.stdin.read(),
        "leader": os.getpgid(0) == os.getpid() == os.getsid(0),
        "signals": [signal.getsignal(number) == signal.SIG_DFL for number in SIGNALS],
        "draw": random.random(),
    }
    _show(spec, "report", values)
    return spec.get("codes", [0, 0])[_rank()]


def obey(spec):
    """Stay until rank 0 is asked for something."""
    _show(spec, "pid", os.getpid())
    request = os.environ.get("HYDRAGNN_HPO_REQUESTS")
    if request is None:
        _show(spec, "asked", None)
        return 0
    os.set_blocking(int(request), True)
    _show(spec, "asked", os.read(int(request), 100).decode().strip())
    return 0


def misbehave(spec):
    match spec["how"]:
        case "raise":
            raise RuntimeError("a very particular sentence")
        case "none":
            return None
        case "exit":
            sys.exit(7)
        case "large":
            return 256


def nothing(spec):
    if spec.get("metrics") and _rank() == 0:
        with open(spec["metrics"], "a") as file:
            for number in range(spec.get("lines", 0)):
                file.write(json.dumps({"record": "line", "number": number}) + "\n")
    return 0


def emit(spec):
    """Write lines in pieces, some of them slowly, and a last one without its end."""
    padding = "x" * spec.get("padding", 0)
    with open(spec["metrics"], "ab", buffering=0) as file:
        for number in range(spec["lines"]):
            line = json.dumps({"record": "line", "number": number, "padding": padding}).encode()
            if number % 100 == 50:
                file.write(line[:5])
                time.sleep(0.02)
                line = line[5:]
            file.write(line + b"\n")
        file.write(b'{"record": "torn')
    _show(spec, "emitted", True)
    return _wait(spec) if spec.get("stay") else 0


def _wait(spec):
    """Stay until there is a file ``go``, or for some seconds."""
    end = time.monotonic() + spec.get("seconds", STAY)
    go = Path(spec["folder"]) / "go"
    while time.monotonic() < end and not go.exists():
        time.sleep(0.05)
    return 0


def sleep(spec):
    _show(spec, "pid", os.getpid())
    return _wait(spec)


def tick(spec):
    """Show every few milliseconds that one is there, and tell of it now and then."""
    end = time.monotonic() + spec.get("seconds", STAY)
    number = 0
    go = Path(spec["folder"]) / "go"
    with open(Path(spec["folder"]) / "ticks", "ab", buffering=0) as ticks:
        while time.monotonic() < end and not go.exists():
            if _rank() == 0 and number % 10 == 0:
                with open(spec["metrics"], "a") as file:
                    file.write(json.dumps({"record": "tick", "number": number}) + "\n")
            ticks.write(b"x")
            number += 1
            time.sleep(0.005)
    return 0


def polite(spec):
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    return sleep(spec)


def stubborn(spec):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return sleep(spec)


def parent(spec):
    """Have a child of one's own, in the same group, and one that left it."""
    command = [sys.executable, "-c", f"import time; time.sleep({STAY})"]
    children = [
        subprocess.Popen(command).pid,
        subprocess.Popen(command, start_new_session=spec.get("escape", False)).pid,
    ]
    _show(spec, "children", children)
    return sleep(spec)


def all_reduce(spec):
    warm = {"torch.distributed", "torch._dynamo"} <= set(sys.modules)
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    draw = torch.rand(3)
    dist.init_process_group("gloo")
    KEPT.append(dist.group.WORLD)
    total = torch.tensor([_rank() + 1.0])
    dist.all_reduce(total)
    layer = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
    layer(torch.ones(4, 2)).sum().backward()
    torch.optim.AdamW(layer.parameters()).step()
    local = [int(os.environ[name]) for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE")]
    values = {"total": total.item(), "draw": draw.tolist(), "warm": warm, "local": local}
    _show(spec, "reduced", values)
    dist.destroy_process_group()
    return 0
