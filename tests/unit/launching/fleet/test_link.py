"""The order to run ranks of a job."""

from dataclasses import replace
from pathlib import Path

from hydragnn_hpo.config.machine import SiteConfig
from hydragnn_hpo.launching.fleet.link import start_order
from hydragnn_hpo.launching.job import Job, Slot
from hydragnn_hpo.launching.rank_environment import Rendezvous

MEET = Rendezvous("10.0.0.1", 20007, "hsn0")


def test_only_the_host_of_rank_0_watches_and_is_asked():
    slots = (Slot("a", 0, (1, 2), "cuda:0", "3", memory_mb=900), Slot("b", 4, (), "cpu"))
    files = {"log": Path("/log"), "lease": Path("/lease"), "watch": Path("/watch")}
    job = Job("j", "train", 2, {"x": 1}, slots=slots, control=Path("/control"), **files)
    given = {"meet": MEET, "tag": "t", "site": SiteConfig()}

    first, second = (start_order(job, "m:f", ranks=[r], **given) for r in (0, 1))

    assert (first["watch"], first["control"]) == ("/watch", "/control")
    assert (second["watch"], second["control"]) == (None, None)
    assert second["slots"] == ["a:0", "b:4"]
    assert second["meet"] == ["10.0.0.1", 20007, "hsn0"]
    nothing = start_order(replace(job, watch=None), "m:f", ranks=[0], **given)
    assert nothing["watch"] is None
