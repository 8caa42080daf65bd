"""Campaigns that run any command in place of a training. Read by ``command_rank``."""

import re
from collections.abc import Mapping
from typing import Annotated, Literal, Self

from annotated_types import Len
from pydantic import Field, model_validator

from hydragnn_hpo.config.schema import Config
from hydragnn_hpo.errors import unknown

FIELDS = ("trial", "folder", "checkpoints", "epochs", "width", "here", "python")
"""Names that are replaced in an argument if they stand in braces."""

RESERVED = ("trial", "seed")
"""Keys of ``trial.toml`` that the campaign writes; users must not set them."""

_FIELD = re.compile(r"\{([A-Za-z_]+)\}")


class CommandConfig(Config):
    """A command that runs in place of a training. Read by ``launching.command_rank``."""

    argv: Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Len(1)]
    """The program and its arguments, as separate strings: no shell reads them. These are replaced:
    ``{trial}`` by the path of ``trial.toml``, ``{folder}`` by the folder of the attempt (the
    working directory, where ``result.json`` is expected), ``{checkpoints}`` by a folder that all
    attempts share, ``{epochs}`` by the epoch to train up to, ``{width}`` by the number of ranks,
    ``{here}`` by the folder of the campaign file, ``{python}`` by the Python interpreter of
    hydragnn-hpo."""

    per: Literal["rank", "trial"] = "rank"
    """``rank``: one process on each slot, with RANK, WORLD_SIZE, MASTER_ADDR ... set. ``trial``:
    one process, with the cores and devices of all slots on its host; it starts its own ranks."""

    launcher: Literal["srun", "mpiexec"] | None = None
    """Launcher of a trial's processes, for MPI programs, which need its PMI: ``srun`` inside a
    Slurm allocation (``machine.backend = "slurm"``), or ``mpiexec``. If left out, the agents of
    hydragnn-hpo start them."""

    width: Annotated[int, Field(gt=0, le=10**6)] = 1
    """Number of slots of each trial."""

    env: dict[str, str] = {}
    """Variables added to the environment of each process."""

    timeout: Annotated[float, Field(gt=0.0, le=1e8)] | None = None
    """Seconds after which a process is killed; no limit if left out."""

    @model_validator(mode="after")
    def _launcher_starts_ranks(self) -> Self:
        if self.launcher and self.per == "trial":
            raise ValueError(
                f"per is 'trial', but launcher is '{self.launcher}', which starts a process on "
                "each slot: drop one of them."
            )
        return self

    @model_validator(mode="after")
    def _fields_are_known(self) -> Self:
        for name in (field for part in self.argv for field in _FIELD.findall(part)):
            if name not in FIELDS:
                raise ValueError(unknown("field", name, FIELDS))
        return self


def fill_arguments(argv: tuple[str, ...], fields: Mapping[str, object]) -> tuple[str, ...]:
    """Replace ``{FIELD}`` in arguments by its value.

    Args:
        argv: program and arguments.
        fields: value by name; a field without a value stays in its braces.

    Returns:
        As many arguments as before.
    """

    def value(field: re.Match[str]) -> str:
        return str(fields.get(field[1], field[0]))

    return tuple(_FIELD.sub(value, part) for part in argv)
