"""The service against calling ``Ensemble.predict`` structure by structure.

Molecules of ``g2_xtb``, one in each request. The peer is a loop over ``predict`` in this process;
the service is a process of its own on loopback, asked by one client and by several at a time, whose
requests it answers together. Rounds in turns, medians; one thread of torch on both sides.
``--quick`` makes fewer rounds; ``--ensemble`` serves another one than the cut of the test campaign.
"""

import http.client
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from ase import Atoms
from record import GOLDENS, finish, make_parser, run_campaign

from hydragnn_hpo.data.readers import READERS
from hydragnn_hpo.data.readers.source import Source
from hydragnn_hpo.ensemble.inference import Ensemble
from hydragnn_hpo.resources import resource_path

TOKEN = "a-token-for-benchmarks"
CLIENTS = 16
SMALLER = {"trials = 6": "trials = 3", "rungs = [3, 6]": "rungs = [1]"}


def trained(folder: Path) -> Path:
    """Run a cut of the shipped test campaign and give its ensemble of three."""
    text = resource_path("workflows/ci.toml").read_text()
    for old, new in SMALLER.items():
        assert old in text, f"the campaign no longer holds '{old}'"
        text = text.replace(old, new)
    (folder / "ci.toml").write_text(text)
    run_campaign(folder / "ci.toml", folder / "run")
    return folder / "run" / "ensemble.zip"


class Service:
    """A service in a process of its own."""

    def __init__(self, ensemble: Path, folder: Path) -> None:
        """Start it, and wait until it answers."""
        begin = time.monotonic()
        self.log = folder / "service.log"
        command = [sys.executable, "-m", "hydragnn_hpo", "serve", str(ensemble), "--port", "0"]
        environment = {**os.environ, "HYDRAGNN_HPO_TOKEN": TOKEN, "OMP_NUM_THREADS": "1"}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        while "startup complete" not in self.log.read_text():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() - begin < 120, "the service does not start"
            time.sleep(0.01)
        self.seconds = time.monotonic() - begin
        match = re.search(r"on http://127\.0\.0\.1:(\d+)", self.log.read_text())
        assert match is not None, self.log.read_text()
        self.port = int(match[1])

    def ask(self, bodies: list[bytes]) -> list[float]:
        """Send requests one after the other over one connection; give each one's seconds."""
        line = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        headers = {"authorization": f"Bearer {TOKEN}", "content-type": "application/json"}
        taken = []
        for body in bodies:
            begin = time.monotonic()
            line.request("POST", "/predict", body, headers)
            answer = line.getresponse()
            content = json.loads(answer.read())
            assert answer.status == 200, content
            taken.append(time.monotonic() - begin)
        line.close()
        return taken

    def crowd(self, bodies: list[bytes], clients: int) -> float:
        """Send them from several clients at a time; give the seconds for all."""
        begin = time.monotonic()
        with ThreadPoolExecutor(clients) as pool:
            list(pool.map(self.ask, [bodies[k::clients] for k in range(clients)]))
        return time.monotonic() - begin

    def stop(self) -> None:
        """End it as an operator would."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(120)


def body(atoms: Atoms) -> bytes:
    """Give one structure as a request."""
    structure = {"numbers": atoms.numbers.tolist(), "positions": atoms.positions.tolist()}
    return json.dumps({"structures": [structure]}).encode()


def measure(path: Path, folder: Path, *, rounds: int, count: int) -> dict[str, float]:
    """Ask in turns."""
    source = Source(resource_path("graph_datasets/g2_xtb.extxyz.gz"))
    results = [item for _, item in READERS["extxyz"].read(source, 0, 9 * count)][::9]
    molecules = [item for item in results if isinstance(item, Atoms)]
    bodies = [body(atoms) for atoms in molecules]
    ensemble = Ensemble.load(path)
    service = Service(path, folder)
    times: dict[str, list[float]] = {"alone": [], "one": [], "many": []}
    latencies: list[float] = []
    try:
        service.ask(bodies[:20])
        for atoms in molecules[:20]:
            ensemble.predict(atoms)
        for _ in range(rounds):
            begin = time.monotonic()
            for atoms in molecules:
                ensemble.predict(atoms)
            times["alone"].append(time.monotonic() - begin)
            latencies += (one := service.ask(bodies))
            times["one"].append(sum(one))
            times["many"].append(service.crowd(bodies, CLIENTS))
    finally:
        service.stop()
    rates = {name: len(bodies) / statistics.median(taken) for name, taken in times.items()}
    ratios = [a / m for a, m in zip(times["alone"], times["many"], strict=True)]
    return {
        "batched_over_single": round(statistics.median(ratios), 2),
        "p50_ms": round(1e3 * statistics.median(latencies), 2),
        "p99_ms": round(1e3 * statistics.quantiles(latencies, n=100)[98], 2),
        "predict_per_s": round(rates["alone"], 1),
        "requests_per_s_1_client": round(rates["one"], 1),
        f"requests_per_s_{CLIENTS}_clients": round(rates["many"], 1),
        "startup_seconds": round(service.seconds, 2),
        "members": len(ensemble.members),
    }


def main() -> None:
    """Train a little, serve, ask, tell."""
    parser = make_parser(__doc__, "fewer rounds, not recorded")
    parser.add_argument("--ensemble", type=Path, help="serve this one")
    options = parser.parse_args()
    quick = options.quick or options.smoke
    if options.smoke:
        options.ensemble = GOLDENS / "ensemble" / "ensemble.zip"
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        path = options.ensemble or trained(folder)
        rounds, count = (1, 20) if options.smoke else (2, 50) if quick else (7, 140)
        figures = measure(path, folder, rounds=rounds, count=count)
    finish(__file__, figures, keep=not quick)


if __name__ == "__main__":
    main()
