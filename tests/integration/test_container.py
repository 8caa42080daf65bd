"""Agents and ranks of a container image; ``apptainer`` is a script that shows its arguments."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import find_orphans, tagged, until

from hydragnn_hpo.config.campaign_config import MachineConfig
from hydragnn_hpo.config.machine import ContainerConfig, SiteConfig
from hydragnn_hpo.launching.job import Job
from hydragnn_hpo.launching.process_control import run_tag
from hydragnn_hpo.launching.transports.agent_software import software_here
from hydragnn_hpo.launching.transports.local import LocalBackend

ROOT = Path(__file__).parents[2]
SECONDS = 300.0


@pytest.fixture
def apptainer(tmp_path, monkeypatch) -> Path:
    """Put a program on PATH that, like the real one, starts the image's program as a child."""
    folder = tmp_path / "bin"
    folder.mkdir()
    image = f"{ROOT}:{ROOT}/tests/contracts"
    (folder / "apptainer").write_text(
        "#!/bin/sh\n"
        f'echo "PYTHONPATH=$PYTHONPATH" > {folder}/shown\nprintf "%s\\n" "$@" >> {folder}/shown\n'
        'while [ "$1" != python3 ]; do shift; done\nshift\n'
        f'export PYTHONPATH={image} IN_IMAGE=yes\n{sys.executable} "$@"\nexit $?\n'
    )
    (folder / "apptainer").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    return folder / "shown"


@pytest.fixture
def backend(tmp_path, apptainer) -> Iterator[LocalBackend]:
    image, run = tmp_path / "image.sif", tmp_path / "run"
    image.touch()
    run.mkdir()
    site = SiteConfig(scratch=str(tmp_path), container=ContainerConfig(flags=("--nv",)))
    software = software_here(MachineConfig(container=str(image)), site, run)
    jobs = {"report": "rank_targets:report"}
    terms = {"lease_seconds": 120.0, "jobs": jobs, "preload": ()}
    made = LocalBackend(slots=1, run_dir=run, software=software, **terms)
    yield made
    made.close()
    until(lambda: find_orphans(run_tag(run)) == [], "end of all processes", SECONDS)


def test_ranks_run_inside_the_image(backend, tmp_path, apptainer):
    run = tmp_path / "run"
    spec = {"folder": str(run)}
    backend.start(Job("job", "report", 1, spec, run / "log", None, backend.slots[:1]))
    events = []
    until(
        lambda: events.extend(backend.poll(0.1)) or [e for e in events if e.kind == "ended"],
        "end of the job",
        SECONDS,
    )
    ended = next(event for event in events if event.kind == "ended")
    assert ended.data["codes"] == [0], (run / "log").read_text()
    first, *argv = apptainer.read_text().splitlines()
    assert first == "PYTHONPATH="
    at = argv.index("python3")
    assert argv[:2] == ["exec", "--nv"]
    assert {str(run), str(tmp_path), "/sys"} <= set(argv[2:at])
    assert argv[at - 1] == str(tmp_path / "image.sif")
    (agent,) = tagged(run, "hpo-agent")
    assert b"IN_IMAGE=yes" in Path(f"/proc/{agent}/environ").read_bytes().split(b"\0")
