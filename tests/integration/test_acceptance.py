"""The acceptance of a site: a real Slurm with virtual hosts, and this computer by itself."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from processes import until

from hydragnn_hpo.campaign.acceptance.report import Report, Stage
from hydragnn_hpo.campaign.acceptance.stages import STAGES
from hydragnn_hpo.config.loading import to_toml
from hydragnn_hpo.config.machine import find_profile
from hydragnn_hpo.launching.doctor.finding import Finding
from hydragnn_hpo.launching.host.strays import find_strays, run_tag

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]

HOSTS = 3
SECONDS = 900.0
COMMAND = [sys.executable, "-m", "hydragnn_hpo", "doctor", "--acceptance", "--minutes", "0.1"]

OK = Finding("seen before", "ok", "well")


class Acceptance:
    """Starts the command on some hosts of a Slurm, with a profile of its own."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.run, self.profile = folder / "site", folder / "virtual.toml"
        self.environment = os.environ | environment | {"COLUMNS": "160"}
        self.started: list[subprocess.Popen[str]] = []
        self.promise(1e5)

    def promise(self, bytes_per_second: float, **many_hosts: str) -> None:
        """Write a profile whose links carry so much, after a second of latency.

        Args:
            bytes_per_second: far below what any computer does, or far above.
            many_hosts: environment of ranks whose trial has several hosts.
        """
        values = find_profile().model_dump(mode="json", exclude_none=True, exclude_unset=True)
        link = {"latency_seconds": 1.0, "bytes_per_second": bytes_per_second}
        values |= {"name": "virtual", "backend": "slurm", "slots_per_host": 2, "hosts": HOSTS}
        values |= {"within": link, "between": link, "checked": "2026-11-21"}
        values |= {"rank": {"many_hosts": many_hosts}}
        self.profile.write_text(to_toml(values))

    def start(self) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*COMMAND, "--machine", str(self.profile), "--run", str(self.run), "--json"],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return process

    def __call__(self) -> tuple[int, dict[str, dict[str, str]]]:
        """Run it to its end; gives its exit code, and by stage the state of every check."""
        process = self.start()
        out, err = process.communicate(timeout=SECONDS)
        assert out, err
        report = json.loads(out)
        assert report == json.loads((self.run / "acceptance.json").read_text()) | {
            "date": report["date"]
        }
        stages = {stage["name"]: stage["findings"] for stage in report["stages"]}
        self.found = stages
        states = {
            name: {finding["check"]: finding["state"] for finding in findings}
            for name, findings in stages.items()
        }
        return process.returncode, states

    def ended(self) -> list[str]:
        """Name the stages that are written down."""
        try:
            report = json.loads((self.run / "acceptance.json").read_text())
        except OSError:
            return []
        return [stage["name"] for stage in report["stages"]]

    def forget(self, *names: str) -> None:
        """Drop stages from what is written down: they are run again."""
        path = self.run / "acceptance.json"
        report = json.loads(path.read_text())
        report["stages"] = [stage for stage in report["stages"] if stage["name"] not in names]
        path.write_text(json.dumps(report))

    def end(self) -> None:
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.communicate()


@pytest.fixture
def acceptance(slurm, tmp_path):
    made = Acceptance(tmp_path, slurm.allocate(HOSTS))
    yield made
    made.end()
    folders = [made.run, *made.run.glob("campaign.*")]
    until(
        lambda: not any(find_strays(run_tag(folder)) for folder in folders),
        "end of all processes",
    )


def test_a_slurm_is_accepted_and_one_that_breaks_is_not(acceptance):
    """Killed in mid-course it goes on; what ended well is not done again."""
    process = acceptance.start()
    until(lambda: "sums" in acceptance.ended() or process.poll() is not None, "sums", SECONDS)
    process.send_signal(signal.SIGKILL)
    process.communicate()

    code, states = acceptance()

    assert code == 0, json.dumps(acceptance.found, indent=1)
    every = {state for checks in states.values() for state in checks.values()}
    assert "wrong" not in every
    assert list(states) == [
        *("doctor", "hosts", "sums", "widths", "interruptions", "staging", "campaign"),
    ]
    for where in ("one host", "two hosts", "two hosts far apart", "3 hosts"):
        assert states["sums"][f"all-reduce sums, {where}"] == "ok"
    assert states["widths"] == {
        f"same result: {pair}": "ok"
        for pair in ("one rank, one host", "one rank, two hosts", "one host, two hosts")
    }
    assert states["interruptions"]["same result: interrupted and unbroken"] == "ok"
    assert states["campaign"]["hosts with trials"] == "ok"
    assert len(list(acceptance.run.glob("sums.*"))) == 4, "the killed one had ended them"

    acceptance.promise(1e13, GLOO_DEVICE_TRANSPORT="torn cable")
    acceptance.forget("sums")
    code, states = acceptance()
    assert code == 1
    wrong = {stage for stage, checks in states.items() if "wrong" in checks.values()}
    assert wrong == {"sums"}
    assert states["sums"]["all-reduce bus bandwidth, one host"] == "wrong"
    assert states["sums"]["all-reduce sums, one host"] == "ok"
    for where in ("two hosts", "two hosts far apart", "3 hosts"):
        assert states["sums"][f"all-reduce sums, {where}"] == "wrong"
    said = [f["found"] for f in acceptance.found["sums"] if "sums, two hosts" in f["check"]]
    assert all("rank" in one and "unsupported gloo device" in one for one in said), said
    assert len(list(acceptance.run.glob("campaign.*"))) == 1


def alone(*options):
    """Run the command on this computer, in no job of a scheduler."""
    environment = {name: os.environ[name] for name in os.environ if not name.startswith("SLURM")}
    return subprocess.run(
        [*COMMAND, *map(str, options)],
        env=environment | {"COLUMNS": "160"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )


def test_a_workstation_says_what_cannot_be_tested_there(tmp_path):
    site = tmp_path / "site"
    report = Report(site, "workstation", tuple(STAGES))
    for name in ("doctor", "interruptions", "campaign"):  # these take long, and are seen above
        report.add(Stage(name, (OK,), 1.0))

    done = alone("--run", site)

    stages = {s["name"]: s for s in json.loads((site / "acceptance.json").read_text())["stages"]}
    found = {f["check"]: f for stage in stages.values() for f in stage["findings"]}
    if alone_on_its_core := found.get("all-reduce, one host"):
        assert alone_on_its_core["found"] == "not testable: one slot per host"
    else:
        assert found["all-reduce sums, one host"]["state"] == "ok"
    assert found["store staged"]["state"] == "ok"
    for check in ("all-reduce, two hosts", "same result: two hosts"):
        assert found[check]["state"] == "unknown"
        assert "one host" in found[check]["found"]
    slow = [f["check"] for f in found.values() if f["state"] == "wrong"]
    assert all("bandwidth" in check or "latency" in check for check in slow), "this host is busy"
    assert done.returncode == (1 if slow else 0), done.stderr
    assert "Traceback" not in done.stderr
    assert "workstation: " in done.stdout


def test_a_dry_run_starts_and_writes_nothing(tmp_path):
    done = alone("--run", tmp_path / "site", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert [name for name in STAGES if f"  {name}: " not in done.stdout] == []
    assert not (tmp_path / "site").exists()


def test_a_folder_of_something_else_is_refused(tmp_path):
    (tmp_path / "thesis.tex").touch()
    done = alone("--run", tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert "choose another with --run" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
