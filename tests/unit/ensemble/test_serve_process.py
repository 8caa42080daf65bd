"""``hydragnn-hpo serve`` as a real process on loopback."""

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from processes import SECONDS, is_alive, until

pytestmark = pytest.mark.slow
TOKEN = "a-token-for-tests-only"
WATER = {
    "symbols": ["O", "H", "H"],
    "positions": [[0.0, 0.0, 0.0], [0.96, 0.0, 0.0], [-0.24, 0.93, 0.0]],
}


def command(ensemble: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "hydragnn_hpo", "serve", str(ensemble), "--port", "0", *more]


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "HYDRAGNN_HPO_TOKEN": TOKEN, **more}


class Service:
    """A running service."""

    def __init__(self, ensemble: Path, folder: Path) -> None:
        self.log = folder / "log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command(ensemble, "--seconds", "60"), stdout=log, stderr=log, env=environment()
            )
        self.port = 0

    def wait(self) -> None:
        self.port = until(self._started, "service")

    def _started(self) -> int:
        assert self.process.poll() is None, self.log.read_text()
        match = re.search(r"on http://127\.0\.0\.1:(\d+)", self.log.read_text())
        return int(match[1]) if match and "startup complete" in self.log.read_text() else 0

    def ask(self, body: dict[str, object]) -> tuple[int, dict[str, object]]:
        """Ask until somebody answers in time: a machine may stand still for a while."""
        result: tuple[int, dict[str, object]] = until(lambda: self._ask(body), "answer in time")
        return result

    def _ask(self, body: dict[str, object]) -> tuple[int, dict[str, object]] | None:
        with contextlib.suppress(ConnectionError):
            result = self._answer(body)
            return None if result[0] in (408, 503) else result
        return None

    def _answer(self, body: dict[str, object]) -> tuple[int, dict[str, object]]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)
        headers = {"authorization": f"Bearer {TOKEN}", "content-type": "application/json"}
        connection.request("POST", "/predict", json.dumps(body), headers)
        answer = connection.getresponse()
        results = answer.status, json.loads(answer.read())
        connection.close()
        return results


@pytest.fixture(scope="module")
def service(built_zip, tmp_path_factory):
    running = Service(built_zip, tmp_path_factory.mktemp("service"))
    try:
        running.wait()
        yield running
    finally:
        running.process.kill()
        running.process.wait()


def test_it_answers_survives_attacks_and_stops_on_request(service):
    status, answer = service.ask({"structures": [WATER, {**WATER, "positions": []}]})
    assert status == 200
    good, bad = answer["structures"]  # type: ignore[misc]
    assert good["error"] is None
    assert "3 elements and 0 positions" in bad["error"]
    chunks_without_end(service.port)
    assert service.ask({"structures": [WATER]})[0] == 200
    slow_heads_are_cut_off(service.port)
    assert service.ask({"structures": [WATER]})[0] == 200
    service.process.send_signal(signal.SIGTERM)
    assert service.process.wait(SECONDS) == 0
    log = service.log.read_text()
    assert "stopped" in log
    assert TOKEN not in log
    assert "Traceback" not in log
    assert "positions" not in log
    assert not is_alive(service.process.pid)


def chunks_without_end(port: int) -> None:
    """Send chunk after chunk: refused at the limit, and the connection ends."""
    with socket.create_connection(("127.0.0.1", port), timeout=SECONDS) as line:
        line.sendall(
            b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Authorization: Bearer " + TOKEN.encode() + b"\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        piece = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
        sent = 0
        try:
            while sent < 2_000:
                line.sendall(piece)
                sent += 1
        except (BrokenPipeError, ConnectionResetError):
            pass
    assert sent < 2_000  # 131 MB, where 8 MB are let in


def slow_heads_are_cut_off(port: int) -> None:
    """Send a header a letter at a time: uvicorn alone would listen for ever."""
    with socket.create_connection(("127.0.0.1", port), timeout=SECONDS) as line:

        def is_cut() -> bool:
            try:
                line.sendall(b"a")
                line.settimeout(0.5)
                return not line.recv(1)
            except TimeoutError:
                return False
            except (BrokenPipeError, ConnectionResetError):
                return True

        line.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nX-Slow: ")
        until(is_cut, "end of the line")
