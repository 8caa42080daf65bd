"""Turn the body of a predict request, JSON or extxyz, into structures, within hard limits.

Shapes: N nodes.
"""

import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Self

import numpy as np
from annotated_types import Len
from ase import Atoms
from ase.data import atomic_numbers
from pydantic import ConfigDict, Field, model_validator

from hydragnn_hpo.config import AttributeConfig, Config, parse_config
from hydragnn_hpo.data.readers.ase_file import single, structures_in
from hydragnn_hpo.errors import ConfigError, DataError

JSON, EXTXYZ = "json", "extxyz"
KINDS = {"application/json": JSON, "text/plain": EXTXYZ, "chemical/x-extxyz": EXTXYZ}
"""Kind of body by content type."""

Triple = Annotated[list[float], Len(3, 3)]
NamedStructures = Iterator[tuple[str, Atoms | DataError]]
"""Name of each structure, and the structure or why it cannot be used."""

_LONGEST_LINE = 10_000
"""Characters of an extxyz comment line; ASE parses it with regular expressions."""


@dataclass(frozen=True)
class Limits:
    """Limits of a service; a request beyond them is rejected before the work is done."""

    body_bytes: int = 8_000_000
    """Largest body of a request."""
    structures: int = 1_000
    """Most structures in a request."""
    atoms: int = 2_000
    """Most atoms in a structure."""
    edges: int = 500_000
    """Most edges in the graph of a structure."""
    seconds: float = 60.0
    """Time for a request, its body included."""
    waiting: int = 32
    """Most requests at a time, the one that is worked on included."""

    @property
    def pairs(self) -> int:
        """Most pairs of atoms and images that a neighbour search may have to try."""
        return 40 * self.edges


class RequestRejected(Exception):
    """A request gets no predictions; the client gets the status and the sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        """Store the HTTP status and the sentence for the client."""
        super().__init__(sentence)
        self.status = status


class StructureRequest(Config):
    """One structure of a JSON request. Read by ``parse_structures``."""

    model_config = ConfigDict(strict=True)

    id: Annotated[str, Field(max_length=200)] = ""
    """Name, given back with the answer; its number if left out."""

    numbers: list[int] | None = None
    """Atomic numbers; or give symbols."""

    symbols: list[str] | None = None
    """Chemical symbols; or give numbers."""

    positions: list[Triple]
    """Angstrom."""

    cell: Annotated[list[Triple], Len(3, 3)] | None = None
    """Lattice vectors as rows, angstrom."""

    pbc: bool | Annotated[list[bool], Len(3, 3)] | None = None
    """Periodic directions; needed where there is a cell."""

    info: dict[str, float] = {}
    """Known properties that the ensemble asks for, by name."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if (self.numbers is None) == (self.symbols is None):
            raise ValueError("give either numbers or symbols.")
        if len(self.elements) != len(self.positions):
            raise ValueError(
                f"there are {len(self.elements)} elements and {len(self.positions)} positions."
            )
        if self.cell is not None and self.pbc is None:
            raise ValueError("there is a cell; say with pbc which directions are periodic.")
        return self

    @property
    def elements(self) -> list[int]:
        """Atomic numbers; -1 for an unknown element."""
        if self.numbers is not None:
            return [z if 0 < z < 1_000 else -1 for z in self.numbers]
        return [atomic_numbers.get(symbol, -1) for symbol in self.symbols or ()]


def parse_structures(
    body: bytes, kind: str, limits: Limits, attributes: Mapping[str, AttributeConfig]
) -> NamedStructures:
    """Yield each structure's name, and the structure or why it cannot be used.

    Args:
        body: of the request.
        kind: ``json`` or ``extxyz``.
        limits: most structures, and atoms in each.
        attributes: known properties that members read; all others are dropped.

    Raises:
        RequestRejected: the body as a whole is of no use, or holds too many structures.
    """
    structures = _parse_json(body, limits) if kind == JSON else _parse_extxyz(body, limits)
    wanted = {attribute.key or name for name, attribute in attributes.items()}
    for number, (name, item) in enumerate(structures, start=1):
        if isinstance(item, Atoms):
            if len(item) > limits.atoms:
                item = _too_many_atoms(number, len(item), limits)
            else:
                info = {key: value for key, value in item.info.items() if key in wanted}
                item = Atoms(item.numbers, item.positions, cell=item.cell, pbc=item.pbc, info=info)
        yield name or str(number), item


def _parse_json(body: bytes, limits: Limits) -> NamedStructures:
    try:
        values = json.loads(body)
    except RecursionError:
        raise RequestRejected(400, "the body is JSON within JSON, too deep to be read.") from None
    except ValueError as error:
        place = f" at {error.pos}" if isinstance(error, json.JSONDecodeError) else ""
        raise RequestRejected(400, f"the body is not JSON{place}.") from None
    several = values.get("structures") if isinstance(values, dict) and len(values) == 1 else None
    if not isinstance(several, list):
        raise RequestRejected(400, 'the body must be {"structures": [...]} and nothing else.')
    _check_count(len(several), limits)
    for number, value in enumerate(several, start=1):
        name = value.get("id", "") if isinstance(value, dict) else ""
        yield name if isinstance(name, str) else "", _parse_structure(value, number, limits)


def _parse_structure(value: Any, number: int, limits: Limits) -> Atoms | DataError:
    if not isinstance(value, dict):
        return _bad(number, "is no JSON object")
    positions = value.get("positions")
    if isinstance(positions, list) and len(positions) > limits.atoms:
        return _too_many_atoms(number, len(positions), limits)
    try:
        wanted = parse_config(value, StructureRequest, where=f"structure {number}")
    except ConfigError as error:
        return DataError(str(error)[:300])
    if -1 in wanted.elements:
        return _bad(number, f"has an unknown element at atom {wanted.elements.index(-1) + 1}")
    pbc = wanted.pbc if wanted.pbc is not None else False
    return Atoms(wanted.elements, wanted.positions, cell=wanted.cell, pbc=pbc, info=wanted.info)


def _parse_extxyz(body: bytes, limits: Limits) -> NamedStructures:
    try:
        lines = body.decode().splitlines()
    except UnicodeDecodeError:
        raise RequestRejected(400, "the body is not UTF-8 text.") from None
    frames = list(_find_frames(lines))
    _check_count(len(frames), limits)
    for number, (first, last) in enumerate(frames, start=1):
        atoms = last - first - 2
        if atoms > limits.atoms:
            yield "", _too_many_atoms(number, atoms, limits)
            continue
        if max(map(len, lines[first:last])) > _LONGEST_LINE:
            yield "", _bad(number, f"has a line of more than {_LONGEST_LINE} characters")
            continue
        content = io.StringIO("\n".join(lines[first:last]) + "\n")
        try:
            found = single(structures_in(content, "extxyz", "body"), "body")
        except DataError as error:
            reason = str(error).removeprefix("body: structure 1 ")[:300].rstrip(".")
            yield "", _bad(number, reason)
            continue
        own = found.info.get("id", found.info.get("name"))
        yield own[:200] if isinstance(own, str) else "", found


def _find_frames(lines: list[str]) -> Iterator[tuple[int, int]]:
    """Yield first line and end of each frame."""
    at = 0
    while at < len(lines):
        head = lines[at].strip()
        if not head:
            at += 1
            continue
        if not re.fullmatch(r"[0-9]{1,9}", head, re.ASCII):
            raise RequestRejected(400, f"line {at + 1}: a number of atoms was wanted; send extxyz.")
        end = at + 2 + int(head)
        if end > len(lines):
            raise RequestRejected(400, f"line {at + 1}: the body ends within its {head} atoms.")
        yield at, end
        at = end


def _check_count(count: int, limits: Limits) -> None:
    if not count:
        raise RequestRejected(400, "the body holds no structure.")
    if count > limits.structures:
        raise RequestRejected(
            413, f"{count} structures in one request, the limit is {limits.structures}: send less."
        )


def _too_many_atoms(number: int, atoms: int, limits: Limits) -> DataError:
    return _bad(number, f"has {atoms} atoms, the limit is {limits.atoms}")


def _bad(number: int, reason: str) -> DataError:
    return DataError(f"structure {number} {reason}.".replace("..", "."))


def bound_pairs(atoms: int, cell: np.ndarray, pbc: Sequence[bool], cutoff: float) -> float:
    """Bound the edges of a structure without searching for them.

    Along a periodic direction whose lattice planes are h apart, an atom has at most
    2 cutoff / h + 1 images of another one within the cutoff.

    Args:
        atoms: N.
        cell: lattice vectors as rows in angstrom, [3, 3].
        pbc: periodic directions.
        cutoff: longest edge in angstrom.

    Returns:
        N^2 times the images; infinite where the lattice spans nothing.
    """
    periodic = cell[np.asarray(pbc, dtype=bool)]
    if not len(periodic):
        return float(atoms) ** 2
    if not np.isfinite(periodic).all() or np.linalg.matrix_rank(periodic) < len(periodic):
        return float("inf")
    heights = 1.0 / np.linalg.norm(np.linalg.pinv(periodic), axis=0)
    return float(atoms) ** 2 * float(np.prod(2.0 * cutoff / heights + 1.0))
