"""From the body of a request to structures: JSON or extxyz, the good ones and the bad ones."""

import io
import json
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Self

from annotated_types import Len
from ase import Atoms
from ase.data import atomic_numbers
from pydantic import ConfigDict, Field, model_validator

from hydragnn_hpo.config.data import AttributeConfig
from hydragnn_hpo.config.loading import parse
from hydragnn_hpo.config.schema import Config
from hydragnn_hpo.data.readers.ase_file import single, structures_in
from hydragnn_hpo.ensemble.serving.limits import Limits, Refused
from hydragnn_hpo.errors import ConfigError, DataError

JSON, EXTXYZ = "json", "extxyz"
KINDS = {"application/json": JSON, "text/plain": EXTXYZ, "chemical/x-extxyz": EXTXYZ}
"""Content types that are understood."""

Triple = Annotated[list[float], Len(3, 3)]
Items = Iterator[tuple[str, Atoms | DataError]]

_LONGEST = 10_000
"""Characters of an extxyz comment line; ASE takes it apart with regular expressions."""


class AskedStructure(Config):
    """One structure of a JSON request. Read by ``asked_structures``."""

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
        """Give atomic numbers; -1 for what is no element."""
        if self.numbers is not None:
            return [z if 0 < z < 1_000 else -1 for z in self.numbers]
        return [atomic_numbers.get(symbol, -1) for symbol in self.symbols or ()]


def asked_structures(
    body: bytes, kind: str, limits: Limits, attributes: Mapping[str, AttributeConfig]
) -> Items:
    """Give each structure's name, and the structure or why there is none.

    Args:
        body: of the request.
        kind: ``json`` or ``extxyz``.
        limits: most structures, and atoms in each.
        attributes: known properties that members are told; nothing else of a structure is kept.

    Raises:
        Refused: the body as a whole is no use, or holds too many structures.
    """
    found = _of_json(body, limits) if kind == JSON else _of_extxyz(body, limits)
    wanted = {attribute.key or name for name, attribute in attributes.items()}
    for number, (name, item) in enumerate(found, start=1):
        shown = name or str(number)
        if isinstance(item, Atoms):
            if len(item) > limits.atoms:
                item = _bad(number, f"has {len(item)} atoms, the limit is {limits.atoms}")
            else:
                kept = {key: value for key, value in item.info.items() if key in wanted}
                bare = Atoms(item.numbers, item.positions, cell=item.cell, pbc=item.pbc, info=kept)
                item = bare
        yield shown, item


def _of_json(body: bytes, limits: Limits) -> Items:
    try:
        values = json.loads(body)
    except RecursionError:
        raise Refused(400, "the body is JSON within JSON, too deep to be read.") from None
    except ValueError as error:
        place = f" at {error.pos}" if isinstance(error, json.JSONDecodeError) else ""
        raise Refused(400, f"the body is not JSON{place}.") from None
    several = values.get("structures") if isinstance(values, dict) and len(values) == 1 else None
    if not isinstance(several, list):
        raise Refused(400, 'the body must be {"structures": [...]} and nothing else.')
    _count(len(several), limits)
    for number, asked in enumerate(several, start=1):
        name = asked.get("id", "") if isinstance(asked, dict) else ""
        yield name if isinstance(name, str) else "", _atoms(asked, number, limits)


def _atoms(asked: Any, number: int, limits: Limits) -> Atoms | DataError:
    if not isinstance(asked, dict):
        return _bad(number, "is no JSON object")
    positions = asked.get("positions")
    if isinstance(positions, list) and len(positions) > limits.atoms:
        return _bad(number, f"has {len(positions)} atoms, the limit is {limits.atoms}")
    try:
        wanted = parse(asked, AskedStructure, where=f"structure {number}")
    except ConfigError as error:
        return DataError(str(error)[:300])
    for place, z in enumerate(wanted.elements, start=1):
        if z < 0:
            return _bad(number, f"has an unknown element at atom {place}")
    pbc = wanted.pbc if wanted.pbc is not None else False
    return Atoms(wanted.elements, wanted.positions, cell=wanted.cell, pbc=pbc, info=wanted.info)


def _of_extxyz(body: bytes, limits: Limits) -> Items:
    try:
        text = body.decode()
    except UnicodeDecodeError:
        raise Refused(400, "the body is not UTF-8 text.") from None
    lines = text.splitlines()
    frames = list(_frames(lines))
    _count(len(frames), limits)
    for number, (first, last) in enumerate(frames, start=1):
        atoms = last - first - 2
        if atoms > limits.atoms:
            yield "", _bad(number, f"has {atoms} atoms, the limit is {limits.atoms}")
            continue
        if max(map(len, lines[first:last])) > _LONGEST:
            yield "", _bad(number, f"has a line of more than {_LONGEST} characters")
            continue
        content = io.StringIO("\n".join(lines[first:last]) + "\n")
        try:
            found = single(structures_in(content, "extxyz", "body"), "body")
        except DataError as error:
            yield "", _bad(number, _without_place(str(error)))
            continue
        own = found.info.get("id", found.info.get("name"))
        yield own[:200] if isinstance(own, str) else "", found


def _frames(lines: list[str]) -> Iterator[tuple[int, int]]:
    """Give first line and end of each frame."""
    at = 0
    while at < len(lines):
        head = lines[at].strip()
        if not head:
            at += 1
            continue
        if not re.fullmatch(r"[0-9]{1,9}", head, re.ASCII):
            raise Refused(400, f"line {at + 1}: a number of atoms was wanted; send extxyz.")
        end = at + 2 + int(head)
        if end > len(lines):
            raise Refused(400, f"line {at + 1}: the body ends within its {head} atoms.")
        yield at, end
        at = end


def _count(found: int, limits: Limits) -> None:
    if not found:
        raise Refused(400, "the body holds no structure.")
    if found > limits.structures:
        raise Refused(
            413, f"{found} structures in one request, the limit is {limits.structures}: send less."
        )


def _bad(number: int, found: str) -> DataError:
    return DataError(f"structure {number} {found}.".replace("..", "."))


def _without_place(sentence: str) -> str:
    return sentence.removeprefix("body: structure 1 ")[:300].rstrip(".")
