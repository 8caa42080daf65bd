"""How a machine starts ranks: layout, steps, batch jobs, containers.

Nothing of ours builds a shell string from a value. The types of strings here keep out what would
do harm in a script that somebody else fills or sources: line ends, quotes, substitutions.
"""

import re
from collections.abc import Callable
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, NonNegativeInt, PositiveInt, model_validator

from hydragnn_hpo.config.path_templates import one_line, place
from hydragnn_hpo.config.schema import Config


def _matching(pattern: str, what: str) -> Callable[[str], str]:
    def checked(text: str) -> str:
        if not re.fullmatch(pattern, text, re.ASCII):
            raise ValueError(f"{text!r} is no {what}.")
        return text

    return checked


def _literal(text: str) -> str:
    if re.search(r"[$`]", one_line(text)):
        raise ValueError(
            f"{text!r} holds $ or a backquote, and nothing fills it in: write the value itself."
        )
    return text


Line = Annotated[str, AfterValidator(one_line)]
"""Any text of one line."""

Variable = Annotated[
    str,
    AfterValidator(
        _matching(r"[A-Za-z_][A-Za-z0-9_]*", "name of a variable: use letters, digits and _")
    ),
]
"""Name of an environment variable."""

Plain = Annotated[str, AfterValidator(_literal)]
"""Value of an environment variable, as it stands."""

Place = Annotated[str, AfterValidator(place)]
"""An absolute path in which ``filled`` fills in variables."""

Title = Annotated[
    str,
    AfterValidator(
        _matching(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", "name: use letters, digits, . _ and -")
    ),
]
"""Name of a machine."""

Interface = Annotated[
    str,
    AfterValidator(
        _matching(r"[A-Za-z0-9][A-Za-z0-9._:@-]{0,14}", "network interface, such as hsn0")
    ),
]
"""Name of a network interface; Linux allows 15 characters."""

Module = Annotated[
    str,
    AfterValidator(
        _matching(r"[A-Za-z0-9][A-Za-z0-9._+/-]*", "environment module, such as rocm/7.1.1")
    ),
]
"""Name of an environment module, with its version or without."""

Option = Annotated[
    str,
    AfterValidator(
        _matching(
            r"--?[A-Za-z0-9][A-Za-z0-9_=:,.+/%@&|*()\[\]!^~{}-]*",
            "option: write one such as --gpus-per-node=8 or -c7",
        )
    ),
]
"""One argument of an argv that begins with ``-`` and has no spaces."""

Directive = Annotated[
    str,
    AfterValidator(
        _matching(
            r"--?[A-Za-z0-9][A-Za-z0-9 _=:,.+/%@&|*()\[\]!^~-]*",
            "directive: write one such as --partition=batch or -l place=scatter",
        )
    ),
]
"""What follows ``#SBATCH`` or ``#PBS``: an option, perhaps with a value after a space."""

Environment = dict[Variable, Plain]
"""Variables and their values."""

Visible = Literal[
    "", "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"
]
"""Variables by which a process is told which devices it may see."""


def cores_of(text: str) -> tuple[int, ...]:
    """Return the cores of a list such as ``1-7,65-71``, in its order; none of an empty one.

    Raises:
        ValueError: it is no such list.
    """
    found: list[int] = []
    for part in filter(None, text.split(",")):
        if not (match := re.fullmatch(r"(\d{1,5})(?:-(\d{1,5}))?", part.strip())):
            raise ValueError(f"'{text}' is no list of cores: write it as in 1-7,65-71.")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise ValueError(f"'{part.strip()}' in '{text}' runs backwards: write {last}-{first}.")
        found += range(first, last + 1)
    if len(set(found)) != len(found):
        raise ValueError(f"'{text}' names a core twice: name each once.")
    return tuple(found)


def _core_list(text: str) -> str:
    cores_of(text)
    return text


CoreList = Annotated[str, AfterValidator(_core_list)]


class LayoutConfig(Config):
    """What sits where on a host, slot by slot. Read by ``launching.slots`` and ``doctor``."""

    cores: NonNegativeInt = 0
    """Physical cores of a host; 0: as many as there are."""

    reserved: CoreList = ""
    """Cores that the system keeps for itself, such as ``0,8,16``."""

    cores_of_slot: tuple[CoreList, ...] = ()
    """Cores of each slot, near its device; equal shares of what there is if left out."""

    device_of_slot: tuple[NonNegativeInt, ...] = ()
    """Number of each slot's device; the slot's own number if left out."""

    numa_of_slot: tuple[NonNegativeInt, ...] = ()
    """NUMA domain of each slot's device."""

    nic_of_slot: tuple[Interface, ...] = ()
    """Network interface nearest to each slot's device."""


class RankConfig(Config):
    """What a rank finds when it starts. Read by ``launching.rank_environment``."""

    accelerator: Literal["", "cpu", "cuda", "xpu"] = ""
    """What torch calls the devices of this machine (AMD's are ``cuda`` to it, too); what each
    host finds if left out."""

    visible: Visible = ""
    """The one variable that tells a rank its device, the other three are unset; what goes with the
    devices that a host finds if left out."""

    environment: Environment = {}
    """Set in every rank."""

    one_host: Environment = {}
    """Set besides where all ranks of a trial are on one host."""

    many_hosts: Environment = {}
    """Set besides where they are not."""

    folders: Environment = {}
    """Variables that name a folder of its own: ``{scratch}``, ``{trial}``, ``{host}`` and
    ``{slot}`` are filled in, and the folder is made."""

    wrapper: Line | None = None
    """Shell script that becomes the rank's program where a launcher starts ranks (``steps``,
    ``mpiexec``): a shipped name (``launch/rank/...``) or a path."""


class StepConfig(Config):
    """Options of ``srun`` or ``mpiexec``, beside those that any machine needs.

    They come after ours, and the last of two that say the same counts.
    """

    agents: tuple[Option, ...] = ()
    """Of the one step that starts an agent on each host."""

    trials: tuple[Option, ...] = ()
    """Of a step for one trial (``machine.backend = "steps"`` or ``"mpiexec"``)."""


class BatchConfig(Config):
    """How a batch job is written. Read by ``launching.submit``."""

    scheduler: Literal["none", "slurm", "pbs"] = "none"
    """Who takes batch jobs."""

    directives: tuple[Directive, ...] = ()
    """Lines after ``#SBATCH`` or ``#PBS``, beside hosts, time, account and queue."""

    queue: Directive | None = None
    """Partition, queue or QOS if none is asked for, as a directive: ``--partition=batch``."""

    account_needed: bool = False
    """Whether a job without an account is refused."""

    modules: tuple[Module, ...] = ()
    """Environment modules to load, in this order."""

    environment: Environment = {}
    """Exported in the batch job, before anything starts."""

    pack_from: NonNegativeInt = 0
    """Hosts of a job from which ``submit`` packs the software for their own disks, unless told
    otherwise: so many would import from one file system. 0: only if asked."""

    drain_seconds: PositiveInt = 300
    """How long before its end the scheduler tells the job: trials leave checkpoints in it."""


class ContainerConfig(Config):
    """How ranks run inside a container image. Read by ``launching.staging``."""

    command: tuple[Line, ...] = ("apptainer", "exec")
    """Before the image and the program."""

    flags: tuple[Line, ...] = ()
    """Such as ``--rocm`` or ``--nv``, and what to bind."""


class SiteConfig(Config):
    """How a machine is used, beside what it can do. The parts of a profile that no price reads."""

    backend: Literal["local", "slurm", "ray", "steps", "mpiexec"] = "local"
    """``machine.backend`` of campaigns that name this machine and say nothing else."""

    interfaces: tuple[Interface, ...] = ()
    """Network interfaces of the fabric; ranks of several hosts meet on the first that is there."""

    scratch: Place | None = None
    """Fastest folder that every host has for itself; ``$USER`` and the like are filled in, on the
    host, by ``path_templates.fill_path``."""

    layout: LayoutConfig = LayoutConfig()
    """Of one host."""

    rank: RankConfig = RankConfig()
    """What a rank finds."""

    step: StepConfig = StepConfig()
    """Options of steps."""

    batch: BatchConfig = BatchConfig()
    """Batch jobs."""

    container: ContainerConfig = ContainerConfig()
    """Container images."""

    @model_validator(mode="after")
    def _layout_is_of_all_slots(self) -> Self:
        slots = getattr(self, "slots_per_host", 0)
        for key in ("cores_of_slot", "device_of_slot", "numa_of_slot", "nic_of_slot"):
            found = len(getattr(self.layout, key))
            if found not in (0, slots):
                raise ValueError(
                    f"layout.{key} describes {found} slots, slots_per_host is {slots}: make them "
                    "equal."
                )
        return self
