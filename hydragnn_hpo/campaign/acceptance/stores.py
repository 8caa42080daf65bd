"""Stage ``staging``: every host stages the store, all of them the same bytes."""

import secrets
import statistics
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hydragnn_hpo.campaign.acceptance.bench import Bench, Ended
from hydragnn_hpo.campaign.acceptance.trials import store_of
from hydragnn_hpo.campaign.outcome import last_lines
from hydragnn_hpo.files import read_json
from hydragnn_hpo.launching.doctor.finding import Finding, State
from hydragnn_hpo.launching.job import Job, Slot

SIDE_BY_SIDE = 512
"""Hosts that stage at a time: as many as a campaign would start at once at most."""

FACTOR, LEAST_SECONDS = 5.0, 2.0
"""Slow is who takes so many times the median, and longer than this."""

ROOM = 20.0
"""Stores that should fit: those of real data are larger than the one that ships."""


def run(bench: Bench, seconds: float) -> list[Finding]:
    """Have each host stage the store into a folder of its own, and compare.

    Raises:
        HydraError: the store could not be built.
    """
    store, folder = store_of(bench), bench.new_folder("staging")
    slots = [slots[0] for slots in bench.hosts.values()]
    jobs = [_order(folder, n, slot, store) for n, slot in enumerate(slots)]
    rounds = range(0, len(jobs), SIDE_BY_SIDE)
    ended: dict[str, Ended] = {}
    for at in rounds:
        ended |= bench.run(jobs[at : at + SIDE_BY_SIDE], seconds / len(rounds))
    answers = {job.slots[0].host: _answer(job, ended[job.id]) for job in jobs}
    packed = bench.site.machine.pack is not None
    return [*judge(answers), *(judge_python(answers, sys.prefix) if packed else [])]


def _order(folder: Path, number: int, slot: Slot, store: Path) -> Job:
    name = f"{folder.name}.{number}"
    answer = folder / f"{number}.json"
    own = f"rehearsal-{secrets.token_hex(8)}"  # without a dot, see ``scratch.clean``
    return Job(
        id=name,
        kind="stage",
        width=1,
        spec={"store": str(store.resolve()), "name": own, "answer": str(answer.resolve())},
        log=folder / f"{number}.log",
        lease=folder / f"{number}.lease",
        watch=None,
        slots=(slot,),
        folder=folder,
        needs=(store,),
    )


def _answer(job: Job, ended: Ended) -> Mapping[str, Any]:
    path = Path(job.spec["answer"])
    if path.exists():
        answer: dict[str, Any] = read_json(path)
        return answer
    return {"error": f"{ended.error or 'ended without an answer'}: {last_lines(job.log)}"}


def judge(answers: Mapping[str, Mapping[str, Any]]) -> list[Finding]:
    """Say which hosts staged the same bytes as most, how fast, and with what room.

    Args:
        answers: of the job on each host, see ``data.store.rehearsal.job_main``.
    """
    good = {host: told for host, told in answers.items() if "error" not in told}
    found = [
        Finding("store staged", "wrong", found=told["error"], hosts=(host,), cure=_CURE)
        for host, told in answers.items()
        if "error" in told
    ]
    if not good:
        return found
    usual = Counter(told["digest"] for told in good.values()).most_common(1)[0][0]
    middle = statistics.median(told["seconds"] for told in good.values())
    for host, told in good.items():
        found += [_staged(host, told, usual), _pace(host, told, middle), _room(host, told)]
    return found


def judge_python(answers: Mapping[str, Mapping[str, Any]], ours: str) -> list[Finding]:
    """Say on which hosts the packed environment is in use.

    Args:
        answers: of the job on each host.
        ours: the environment that all hosts would read from the shared files without it.
    """
    found = []
    for host, told in answers.items():
        if (python := told.get("python")) is not None:
            cure = "see the logs of the agents: was there room for the packed environment?"
            state: State = "wrong" if python == ours else "ok"
            found.append(
                Finding(
                    "packed environment",
                    state,
                    found=f"Python in {python}",
                    expected="on the host's own disk",
                    cure=cure if state == "wrong" else "",
                    hosts=(host,),
                )
            )
    return found


_CURE = "set scratch in the profile (or HYDRAGNN_HPO_SCRATCH) to a folder of each host's own disk."


def _staged(host: str, told: Mapping[str, Any], usual: str) -> Finding:
    same = told["digest"] == usual
    return Finding(
        "store staged",
        "ok" if same else "wrong",
        found=f"checksum {told['digest'][:12]} in {told['place']}",
        expected=f"checksum {usual[:12]}",
        cure="" if same else "its disk or memory changes what is written: leave the host out.",
        hosts=(host,),
    )


def _pace(host: str, told: Mapping[str, Any], middle: float) -> Finding:
    seconds = told["seconds"]
    slow = seconds > max(FACTOR * middle, LEAST_SECONDS)
    return Finding(
        "time to stage",
        "slow" if slow else "ok",
        found=f"{seconds:.2f} s for {told['bytes'] / 1e6:.3g} MB",
        expected=f"about {middle:.2f} s",
        cure="see doctor's speed of the scratch folder on this host." if slow else "",
        hosts=(host,),
        figure=seconds,
    )


def _room(host: str, told: Mapping[str, Any]) -> Finding:
    lacks = told["free_bytes"] < ROOM * told["bytes"]
    return Finding(
        "room to stage",
        "wrong" if lacks else "ok",
        found=f"{told['free_bytes'] / 1e9:.3g} GB in {told['place']}",
        expected="room for the stores of a campaign",
        cure=_CURE if lacks else "",
        hosts=(host,),
        figure=told["free_bytes"],
    )
