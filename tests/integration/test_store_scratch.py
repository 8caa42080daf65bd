"""A store is staged on the place that the machine's profile names, by whoever opens it first."""

import json
from pathlib import Path

import pytest
from processes import until

from hydragnn_hpo.config.machine import SiteConfig
from hydragnn_hpo.launching.job import Job
from hydragnn_hpo.launching.transports.local import LocalBackend

HERE = Path(__file__).parent
SECONDS = 400.0


def opened(run: Path, store: Path, scratch: str) -> dict:
    """Open a store in a rank of a machine with this scratch; gives what the rank shows."""
    run.mkdir()
    jobs = {"open": "staging_ranks:open_main"}
    site = SiteConfig(scratch=scratch)
    events = []
    terms = {"jobs": jobs, "preload": (), "site": site, "lease_seconds": SECONDS}
    with LocalBackend(slots=1, run_dir=run, **terms) as backend:
        spec = {"folder": str(run), "store": str(store)}
        slots = backend.slots[:1]
        backend.start(Job("job", "open", 1, spec, run / "log", None, slots))
        until(
            lambda: events.extend(backend.poll(0.1)) or [e for e in events if e.kind == "ended"],
            "end of the job",
            SECONDS,
        )
    (ended,) = [event for event in events if event.kind == "ended"]
    assert ended.data["codes"] == [0], (run / "log").read_text()
    return json.loads((run / "opened").read_text())


@pytest.mark.slow
def test_a_store_is_staged_to_the_burst_buffer_once(tiny_store, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    monkeypatch.setenv("BB_USER", "me")
    monkeypatch.delenv("HYDRAGNN_HPO_SCRATCH", raising=False)
    buffer = tmp_path / "bb" / "me"
    buffer.mkdir(parents=True)

    first = opened(tmp_path / "one", tiny_store, f"{tmp_path}/bb/$BB_USER")

    (stage,) = buffer.glob("hydragnn-hpo-*/stage/*/manifest.json")
    assert first["graphs"] == 60
    assert len(first["mapped"]) > 5
    assert [path for path in first["mapped"] if not path.startswith(f"{stage.parent}/")] == []
    made = stage.stat().st_mtime_ns
    assert opened(tmp_path / "two", tiny_store, f"{tmp_path}/bb/$BB_USER") == first
    assert stage.stat().st_mtime_ns == made
