"""What ranks of every shipped profile find, as text: ``python tests/golden_places.py`` writes it.

Nothing here decides: hosts, devices and ports are made up, all else is asked of the code.
"""

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from hydragnn_hpo.config.machine import ProfileConfig, find_profile
from hydragnn_hpo.launching.command_rank import LaunchSpec, mpiexec_command, srun_command
from hydragnn_hpo.launching.job import Job, Slot
from hydragnn_hpo.launching.launched_rank import LaunchOrder
from hydragnn_hpo.launching.profile_adapter import layout_of
from hydragnn_hpo.launching.protocol import RankStart, Rendezvous
from hydragnn_hpo.launching.rank_environment import make_rank_starts
from hydragnn_hpo.launching.scratch_folders import fill_all
from hydragnn_hpo.launching.slots import Device, find_seats, lay_out
from hydragnn_hpo.launching.slurm_allocation import step_argv
from hydragnn_hpo.launching.transports.mpiexec import mpiexec_argv
from hydragnn_hpo.placement.pool import SlotPool
from hydragnn_hpo.resources import resource_path

FOLDER = Path(__file__).parent / "unit" / "launching" / "goldens"
HOSTS = ("n0012", "n0013")
OWN = {"RANK", "LOCAL_RANK"}
DETECTED_COUNTS = (4, 32)
"""GPUs and cores of a host whose profile names none."""


def slots_of(profile: ProfileConfig, host: str) -> tuple[Slot, ...]:
    """Return the slots of a host that has what its profile says."""
    layout = layout_of(profile)
    devices, cores = DETECTED_COUNTS if profile.device == "gpu" else (0, 8)
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
    """Yield what to place: the trials of each case, with their slots as the pool chooses them."""
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
    files = {"log": Path("/run/log"), "watch": None}
    return Job(f"t{number:04d}.1", "train", len(slots), {}, slots=tuple(slots), **files)


def steps_of(profile: ProfileConfig, job: Job) -> Iterator[str]:
    """Return the command that starts the ranks of a command that needs a PMI, if one can."""
    order = LaunchOrder(job.id, argv=(), lease_seconds=1.0, scratch=None, ranks=())
    launch = LaunchSpec(tuple(slot.host for slot in job.slots), profile.step.trials, order)
    with tempfile.TemporaryDirectory() as folder:
        if profile.batch.scheduler == "slurm":
            argv, _ = srun_command(launch, Path(folder), {})
        elif profile.batch.scheduler == "pbs":
            argv, _ = mpiexec_command(launch, Path(folder), {})
            argv[0] = "mpiexec"
        else:
            return
        yield f"launcher: {' '.join(argv).replace(folder, 'FOLDER')}"


def ranks_of(profile: ProfileConfig, job: Job, port: int) -> list[RankStart]:
    """Return the places of a job's ranks, by agents."""
    interface = (*profile.interfaces, "lo" if profile.backend == "local" else "eth0")[0]
    address = "127.0.0.1" if interface == "lo" else "10.0.0.12"
    results: list[RankStart] = []
    for host in dict.fromkeys(slot.host for slot in job.slots):
        meet = Rendezvous(address, port, interface)
        ranks = [rank for rank, slot in enumerate(job.slots) if slot.host == host]
        results += make_rank_starts(job, ranks, site=profile, meet=meet, tag="TAG")
    return results


def environment_of(profile: ProfileConfig, job: Job, place: RankStart) -> dict[str, str]:
    """Return all that a rank finds, its folders too."""
    scratch = (profile.scratch or "/tmp").replace("$USER", "me") + "/hydragnn-hpo-TAG-x"
    slot = job.slots[place.rank]
    fields = {"scratch": scratch, "trial": job.id, "host": slot.host, "slot": str(place.slot)}
    return place.environment | fill_all(place.folders, fields)


def lines_of(profile: ProfileConfig, job: Job, port: int) -> Iterator[str]:
    """Describe one trial: what all ranks find, all of a host, each; nothing is said twice."""
    yield from steps_of(profile, job)
    results = ranks_of(profile, job, port)
    each = [environment_of(profile, job, place) for place in results]
    same = shared(each)
    yield "all ranks:"
    yield from (f"  {name}={each[0][name]}" for name in sorted(same))
    yield f"  without {' '.join(results[0].without) or 'nothing'}"
    for host in dict.fromkeys(slot.host for slot in job.slots):
        here = [place for place in results if job.slots[place.rank].host == host]
        first = each[here[0].rank]
        common = shared([each[place.rank] for place in here])
        yield f"ranks on {host}:"
        yield from (f"  {name}={first[name]}" for name in sorted(common - same - OWN))
        for place in here:
            one = each[place.rank]
            left = set(each[place.rank]) - same - (common - OWN)
            own = " ".join(f"{name}={one[name]}" for name in sorted(left))
            yield f"  slot {place.slot}, cores {spans(place.cores)}: {own}"


def shared(environments: Sequence[dict[str, str]]) -> set[str]:
    """Return the names that have the same value everywhere."""
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
    elif profile.backend == "mpiexec":
        agents = mpiexec_argv("mpiexec", HOSTS, Path("HOSTS"), flags=profile.step.agents)
        lines += ["", f"agents: {' '.join(agents)} AGENT"]
    number = 0
    for title, trials in placements(profile):
        lines += ["", f"## {title}"]
        for slots in trials:
            job = job_of(number := number + 1, slots)
            lines += ["", f"{job.id}:", *lines_of(profile, job, 20000 + number)]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write all goldens; then read them against the sites' documents, line by line."""
    FOLDER.mkdir(exist_ok=True)
    for path in sorted(resource_path("launch/machines").glob("*.toml")):
        (FOLDER / f"{path.stem}.txt").write_text(render(path.stem))


if __name__ == "__main__":
    main()
