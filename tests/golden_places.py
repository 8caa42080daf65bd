"""What ranks of every shipped profile find, as text: ``python tests/golden_places.py`` writes it.

Nothing here decides: hosts, devices and ports are made up, all else is asked of the code.
"""

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from hydragnn_hpo.config.machine import ProfileConfig, find_profile
from hydragnn_hpo.launching.devices import Device
from hydragnn_hpo.launching.job import Job, Slot
from hydragnn_hpo.launching.launchers.launcher import places, wrapped
from hydragnn_hpo.launching.launchers.mpiexec import Mpiexec
from hydragnn_hpo.launching.launchers.steps import HostSize, Steps
from hydragnn_hpo.launching.profile_adapter import layout_of
from hydragnn_hpo.launching.rank_environment import (
    RankEnvironment,
    Rendezvous,
    make_rank_environments,
)
from hydragnn_hpo.launching.scratch_folders import fill_all
from hydragnn_hpo.launching.slots import find_seats, lay_out
from hydragnn_hpo.launching.slurm.slurm_transport import step_argv
from hydragnn_hpo.placement.pool import SlotPool
from hydragnn_hpo.resources import resource_path

FOLDER = Path(__file__).parent / "unit" / "launching" / "goldens"
HOSTS = ("n0012", "n0013")
OWN = {"RANK", "LOCAL_RANK"}
FOUND = (4, 32)
"""GPUs and cores of a host whose profile names none."""


def slots_of(profile: ProfileConfig, host: str) -> tuple[Slot, ...]:
    """Give the slots of a host that has what its profile says."""
    layout = layout_of(profile)
    devices, cores = FOUND if profile.device == "gpu" else (0, 8)
    variable = layout.variable or "CUDA_VISIBLE_DEVICES"
    count = layout.slots or devices
    seats = find_seats(
        layout,
        0,
        host=host,
        lanes=1,
        cores=tuple(range(profile.layout.cores or cores)),
        devices=[Device(str(number), variable) for number in range(count)],
    )
    return lay_out(seats, host=host, accelerator=layout.accelerator or "cuda")


def placements(profile: ProfileConfig) -> Iterator[tuple[str, list[tuple[Slot, ...]]]]:
    """Give what to place: the trials of each case, with their slots as the pool chooses them."""
    known = {slot.name: slot for host in HOSTS for slot in slots_of(profile, host)}
    here = [name for name, slot in known.items() if slot.host == HOSTS[0]]
    yield "a trial on a whole host", [tuple(known[name] for name in here)]
    if profile.backend != "local":
        yield "a trial on two hosts", [tuple(known.values())]
    pool = SlotPool.of(here, slot_order=profile.slot_order)
    widths = [4] * 3 if len(here) == 12 else [len(here) // 2, len(here) // 4, len(here) // 4]
    taken = [pool.take(width) for width in widths]
    yield (
        "three trials on one host",
        [tuple(known[name] for name in names or ()) for names in taken],
    )


def job_of(number: int, slots: Sequence[Slot]) -> Job:
    files = {"log": Path("/run/log"), "lease": Path("/run/lease"), "watch": None}
    return Job(f"t{number:04d}.1", "train", len(slots), {}, slots=tuple(slots), **files)


def steps_of(profile: ProfileConfig, job: Job) -> Iterator[str]:
    """Give the commands that start ranks of a job, if a launcher does."""
    folder = str(resource_path("launch").parent)
    program = tuple(word.replace(folder, "") for word in wrapped(("KEEPER",), profile))
    if profile.batch.scheduler == "slurm":
        gpus = layout_of(profile).slots or FOUND[0]
        size = HostSize(cpus=profile.layout.cores or FOUND[1], gpus=gpus)
        step = Steps(HOSTS, size, site=profile).render(job, program, Path("/run/hosts"))
        yield f"step: {' '.join(step.argv)}"
        yield f"with: {' '.join(f'{name}={step.environment[name]!r}' for name in step.environment)}"
    if profile.backend == "mpiexec":
        with tempfile.NamedTemporaryFile("w+") as nodes:
            nodes.write("\n".join(HOSTS))
            nodes.flush()
            environment = {"PBS_NODEFILE": nodes.name}
            launcher = Mpiexec(environment=environment, program="mpiexec", site=profile, slots=1)
        yield f"step: {' '.join(launcher.render(job, program, Path('/run/hosts')).argv)}"


def ranks_of(profile: ProfileConfig, job: Job, port: int) -> list[RankEnvironment]:
    """Give the places of a job's ranks, by agents or by keepers as the profile's backend does."""
    if profile.backend == "mpiexec":
        return [RankEnvironment(**place) for place in places(job, "TAG", site=profile)]
    interface = (*profile.interfaces, "lo" if profile.backend == "local" else "eth0")[0]
    address = "127.0.0.1" if interface == "lo" else "10.0.0.12"
    found: list[RankEnvironment] = []
    for host in dict.fromkeys(slot.host for slot in job.slots):
        meet = Rendezvous(address, port, interface)
        ranks = [rank for rank, slot in enumerate(job.slots) if slot.host == host]
        found += make_rank_environments(job, ranks, site=profile, meet=meet, tag="TAG")
    return found


def environment_of(profile: ProfileConfig, job: Job, place: RankEnvironment) -> dict[str, str]:
    """Give all that a rank finds, its folders too."""
    scratch = (profile.scratch or "/tmp").replace("$USER", "me") + "/hydragnn-hpo-TAG-x"
    slot = job.slots[place.rank]
    fields = {"scratch": scratch, "trial": job.id, "host": slot.host, "slot": str(place.slot)}
    return place.environment | fill_all(place.folders, fields)


def lines_of(profile: ProfileConfig, job: Job, port: int) -> Iterator[str]:
    """Describe one trial: what all ranks find, all of a host, each; nothing is said twice."""
    yield from steps_of(profile, job)
    found = ranks_of(profile, job, port)
    each = [environment_of(profile, job, place) for place in found]
    same = shared(each)
    yield "all ranks:"
    yield from (f"  {name}={each[0][name]}" for name in sorted(same))
    yield f"  without {' '.join(found[0].without) or 'nothing'}"
    for host in dict.fromkeys(slot.host for slot in job.slots):
        here = [place for place in found if job.slots[place.rank].host == host]
        first = each[here[0].rank]
        common = shared([each[place.rank] for place in here])
        yield f"ranks on {host}:"
        yield from (f"  {name}={first[name]}" for name in sorted(common - same - OWN))
        for place in here:
            one, left = each[place.rank], set(each[place.rank]) - same - (common - OWN)
            own = " ".join(f"{name}={one[name]}" for name in sorted(left))
            yield f"  slot {place.slot}, cores {spans(place.cores)}: {own}"


def shared(environments: Sequence[dict[str, str]]) -> set[str]:
    """Give the names that have the same value everywhere."""
    first = environments[0]
    return {name for name in first if len({one.get(name) for one in environments}) == 1}


def spans(cores: Sequence[int]) -> str:
    """Write cores as documents of sites do: 1-7."""
    ends = [core for core in cores if core + 1 not in cores]
    starts = [core for core in cores if core - 1 not in cores]
    pairs = zip(starts, ends, strict=True)
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in pairs) or "as they are"


def render(name: str) -> str:
    """Describe what ranks on a machine find."""
    profile = find_profile(name)
    lines = [f"# {name}"]
    if profile.backend == "slurm":
        agents = step_argv("77", HOSTS, ("AGENT",), flags=profile.step.agents)
        lines += ["", f"agents: {' '.join(agents)}"]
    number = 0
    for title, trials in placements(profile):
        lines += ["", f"## {title}"]
        for slots in trials:
            job = job_of(number := number + 1, slots)
            lines += ["", f"{job.id}:", *lines_of(profile, job, 20000 + number)]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write all goldens anew; then read them against the sites' documents, line by line."""
    FOLDER.mkdir(exist_ok=True)
    for path in sorted(resource_path("launch/machines").glob("*.toml")):
        (FOLDER / f"{path.stem}.txt").write_text(render(path.stem))


if __name__ == "__main__":
    main()
