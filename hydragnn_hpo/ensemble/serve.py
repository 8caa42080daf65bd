"""Serve an ensemble over HTTP: one token, fixed limits, one thread that predicts in batches.

``PredictService`` reads requests and waits for responses; ``PredictWorker`` owns the ensemble and
predicts all waiting requests in one batch (Law 7: batching changes no prediction).

Shapes: N nodes of a structure.
"""

import asyncio
import io
import json
import logging
import queue
import re
import threading
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Self, TypedDict

import numpy as np
from annotated_types import Len
from ase import Atoms
from ase.data import atomic_numbers
from pydantic import ConfigDict, Field, JsonValue, model_validator
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from hydragnn_hpo.config import AttributeConfig, Config, parse_config
from hydragnn_hpo.config.data_config import KIND
from hydragnn_hpo.data import Columns, Graph, Place, columns_of, graph_of
from hydragnn_hpo.data.readers.extxyz import read_stream
from hydragnn_hpo.ensemble.artefact import Manifest
from hydragnn_hpo.ensemble.engine import EDGES_PER_BATCH, pieces
from hydragnn_hpo.ensemble.inference import Ensemble
from hydragnn_hpo.ensemble.predict_output import OutputColumns, PredictedRows
from hydragnn_hpo.ensemble.structure_batches import Structures
from hydragnn_hpo.ensemble.writers.json_writer import StructureRecord, describe_rows
from hydragnn_hpo.errors import ConfigError, DataError
from hydragnn_hpo.http_service import Token
from hydragnn_hpo.metrics_log import replace_nonfinite

JSON, EXTXYZ = "json", "extxyz"
"""Formats of a request body."""
KINDS = {"application/json": JSON, "text/plain": EXTXYZ, "chemical/x-extxyz": EXTXYZ}
"""Format of a request body, by content type."""

Triple = Annotated[list[float], Len(3, 3)]
"""A vector of three components."""
NamedStructures = Iterator[tuple[str, Atoms | DataError]]
"""Name of each structure, empty if it has none; and the structure, or why it cannot be used."""

_LONGEST_LINE = 10_000
"""Maximum length of an extxyz line: ASE parses comments with regular expressions, which may be very
slow on long lines."""

logger = logging.getLogger(__name__)

_BEFORE_THE_BODY = frozenset((401, 408, 413, 415, 429))
"""HTTP statuses sent before the body is read; the connection is closed after them."""


class PredictResponse(TypedDict):
    """The response to ``POST /predict``."""

    units: dict[str, str]
    """Unit by head."""
    structures: list[StructureRecord]
    """One record per structure, in the order of the request."""


@dataclass(frozen=True)
class Limits:
    """Limits of a service; a request beyond them is rejected before it is predicted."""

    body_bytes: int = 8_000_000
    """Maximum size of a request body, in bytes."""
    structures: int = 1_000
    """Maximum number of structures in a request."""
    atoms: int = 2_000
    """Maximum number of atoms in a structure."""
    edges: int = 500_000
    """Maximum number of edges in the graph of a structure."""
    seconds: float = 60.0
    """Seconds for a request, including reading its body."""
    waiting: int = 32
    """Maximum number of concurrent requests, including those being predicted."""

    @property
    def pairs(self) -> int:
        """Maximum number of pairs of atoms and periodic images for a neighbour search."""
        return 40 * self.edges


class RequestRejected(Exception):
    """A rejected request; the client receives the HTTP status and the message."""

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
            raise ValueError("numbers and symbols exclude each other: give one of them.")
        if len(self.elements) != len(self.positions):
            raise ValueError(
                f"there are {len(self.elements)} elements and {len(self.positions)} positions: "
                "give one for each."
            )
        if self.cell is not None and self.pbc is None:
            raise ValueError("there is a cell; say with pbc which directions are periodic.")
        return self

    @property
    def elements(self) -> list[int]:
        """Atomic numbers; -1 for a symbol or number that is no element."""
        if self.numbers is not None:
            return [z if 0 < z < 1_000 else -1 for z in self.numbers]
        return [atomic_numbers.get(symbol, -1) for symbol in self.symbols or ()]


def parse_structures(
    body: bytes, kind: str, limits: Limits, attributes: Mapping[str, AttributeConfig]
) -> NamedStructures:
    """Parse the body of a request, structure after structure.

    Args:
        body: body of the request.
        kind: ``json`` or ``extxyz``.
        limits: maximum numbers of structures and of atoms in each.
        attributes: known properties that members read; all others are dropped.

    Yields:
        Name of each structure, or its number if it has none; and the structure, or the reason
        why it cannot be used.

    Raises:
        RequestRejected: the body as a whole cannot be used, or holds too many structures.
    """
    structures = _parse_json(body, limits) if kind == JSON else _parse_extxyz(body, limits)
    wanted = {attribute.key or name for name, attribute in attributes.items()}
    for number, (name, item) in enumerate(structures):
        if isinstance(item, Atoms):
            if len(item) > limits.atoms:
                item = _too_many_atoms(number, len(item), limits)
            else:
                info = {key: value for key, value in item.info.items() if key in wanted}
                item = Atoms(item.numbers, item.positions, cell=item.cell, pbc=item.pbc, info=info)
        yield name or str(number), item


def _parse_json(body: bytes, limits: Limits) -> NamedStructures:
    """Parse ``{"structures": [...]}``; a bad structure does not affect the others."""
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
    for number, value in enumerate(several):
        name = value.get("id", "") if isinstance(value, dict) else ""
        yield name if isinstance(name, str) else "", _parse_structure(value, number, limits)


def _parse_structure(value: Any, number: int, limits: Limits) -> Atoms | DataError:
    if not isinstance(value, dict):
        return _bad(number, "is no JSON object; send one")
    positions = value.get("positions")
    # counted first, because checking the schema takes time for every atom
    if isinstance(positions, list) and len(positions) > limits.atoms:
        return _too_many_atoms(number, len(positions), limits)
    try:
        wanted = parse_config(value, StructureRequest, where=f"structure {number}")
    except ConfigError as error:
        return DataError(str(error)[:300])
    if -1 in wanted.elements:
        return _bad(
            number, f"has an unknown element at atom {wanted.elements.index(-1) + 1}; correct it"
        )
    pbc = wanted.pbc if wanted.pbc is not None else False
    return Atoms(wanted.elements, wanted.positions, cell=wanted.cell, pbc=pbc, info=wanted.info)


def _parse_extxyz(body: bytes, limits: Limits) -> NamedStructures:
    """Parse frames of extended XYZ; a bad frame does not affect the others."""
    try:
        lines = body.decode().splitlines()
    except UnicodeDecodeError:
        raise RequestRejected(400, "the body is not UTF-8 text.") from None
    frames = list(_find_frames(lines))
    _check_count(len(frames), limits)
    for number, (first, last) in enumerate(frames):
        atoms = last - first - 2
        if atoms > limits.atoms:
            yield "", _too_many_atoms(number, atoms, limits)
            continue
        if max(map(len, lines[first:last])) > _LONGEST_LINE:
            yield "", _bad(number, f"has a line of more than {_LONGEST_LINE} characters")
            continue
        content = io.StringIO("\n".join(lines[first:last]) + "\n")
        try:
            _, structure = next(read_stream(content, Path("body")))
        except DataError as error:
            structure = error
        if isinstance(structure, DataError):
            reason = str(structure).removeprefix("body: structure 0 ")[:300].rstrip(".")
            yield "", _bad(number, reason)
            continue
        own = structure.info.get("id", structure.info.get("name"))
        yield own[:200] if isinstance(own, str) else "", structure


def _find_frames(lines: list[str]) -> Iterator[tuple[int, int]]:
    """Yield the first line of each frame and the line after its last, counted from 0."""
    first = 0
    while first < len(lines):
        head = lines[first].strip()
        if not head:
            first += 1
            continue
        number = first + 1
        if not re.fullmatch(r"[0-9]{1,9}", head, re.ASCII):
            raise RequestRejected(400, f"line {number}: expected the number of atoms; send extxyz.")
        end = first + 2 + int(head)  # line with the number, comment line, one line per atom
        if end > len(lines):
            raise RequestRejected(400, f"line {number}: the body ends within its {head} atoms.")
        yield first, end
        first = end


def _check_count(count: int, limits: Limits) -> None:
    if not count:
        raise RequestRejected(400, "the body holds no structure.")
    if count > limits.structures:
        raise RequestRejected(
            413, f"{count} structures in one request, the limit is {limits.structures}: send less."
        )


def _too_many_atoms(number: int, atoms: int, limits: Limits) -> DataError:
    return _bad(number, f"has {atoms} atoms, the limit is {limits.atoms}; send a smaller one")


def _bad(number: int, reason: str) -> DataError:
    return DataError(f"structure {number} {reason}.".replace("..", "."))


def bound_pairs(atoms: int, cell: np.ndarray, pbc: Sequence[bool], cutoff: float) -> float:
    """Return an upper bound of the number of edges of a structure, without a neighbour search.

    Along a periodic direction whose lattice planes are h apart, an atom has at most
    2 cutoff / h + 1 images of another one within the cutoff.

    Args:
        atoms: number of atoms, N.
        cell: lattice vectors as rows in angstrom, [3, 3].
        pbc: periodic directions, [3].
        cutoff: longest edge in angstrom.

    Returns:
        N^2 times the images; infinite if periodic lattice vectors are not finite or are linearly
        dependent.
    """
    periodic = cell[np.asarray(pbc, dtype=bool)]
    if not len(periodic):
        return float(atoms) ** 2
    if not np.isfinite(periodic).all() or np.linalg.matrix_rank(periodic) < len(periodic):
        return float("inf")
    heights = 1.0 / np.linalg.norm(np.linalg.pinv(periodic), axis=0)
    return float(atoms) ** 2 * float(np.prod(2.0 * cutoff / heights + 1.0))


def make_app(ensemble: Ensemble, token: Token, limits: Limits) -> Starlette:
    """Make the service; its worker starts and ends with the application.

    Args:
        ensemble: ensemble that predicts.
        token: token that requests must send.
        limits: limits of requests.
    """
    worker = PredictWorker(ensemble, limits)
    service = PredictService(worker, token, limits)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        worker.start()
        yield
        await asyncio.to_thread(worker.stop, limits.seconds)

    routes = [
        Route("/health", _health),
        Route("/info", service.info),
        Route("/predict", service.predict, methods=["POST"]),
    ]
    handlers = {
        RequestRejected: _on_rejected,
        HTTPException: _on_http_error,
        Exception: _on_error,
    }
    return Starlette(routes=routes, lifespan=lifespan, exception_handlers=handlers)


class PredictService:
    """Endpoints that need the token: they count requests, read bodies and wait for responses."""

    def __init__(self, worker: "PredictWorker", token: Token, limits: Limits) -> None:
        """Store what the endpoints share.

        Args:
            worker: worker that predicts.
            token: token that requests must send.
            limits: limits of requests.
        """
        self.worker, self.token, self.limits = worker, token, limits
        self.active = 0
        """Number of requests that are being read or wait for their response."""

    async def info(self, request: Request) -> Response:
        """Respond with heads, limits and the schema of a structure, see ``describe_service``."""
        self._check_token(request)
        return JSONResponse(describe_service(self.worker.ensemble.manifest, self.limits))

    async def predict(self, request: Request) -> Response:
        """Answer with a ``PredictResponse``: every head for each structure."""
        self._check_token(request)
        kind = _body_kind(request)
        if self.active >= self.limits.waiting:
            raise RequestRejected(429, "too many requests wait already; try again in a second.")
        self.active += 1
        try:
            content = await self._predict(request, kind)
        finally:
            self.active -= 1
        return Response(content, media_type="application/json")

    def _check_token(self, request: Request) -> None:
        if not self.token.fits(request.headers.get("authorization")):
            raise RequestRejected(401, "say who you are: Authorization: Bearer TOKEN.")

    async def _predict(self, request: Request, kind: str) -> bytes:
        """Read the body and wait for the response; both together have ``limits.seconds``."""
        end = asyncio.get_running_loop().time() + self.limits.seconds
        try:
            async with asyncio.timeout_at(end):
                body = await _read_body(request, self.limits.body_bytes)
        except TimeoutError:
            raise RequestRejected(408, "the body did not come in time.") from None
        try:
            async with asyncio.timeout_at(end):
                return await asyncio.wrap_future(self.worker.submit(body, kind))
        except TimeoutError:
            raise RequestRejected(
                503, f"this took more than {self.limits.seconds:g} s: send fewer structures."
            ) from None


def _body_kind(request: Request) -> str:
    """Return the kind of a body by its content type.

    Raises:
        RequestRejected: the type is unknown, or the body is compressed.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in KINDS or request.headers.get("content-encoding", "identity") != "identity":
        raise RequestRejected(415, f"send one of {', '.join(KINDS)}, not compressed.")
    return KINDS[kind]


async def _read_body(request: Request, most: int) -> bytes:
    """Read a body of at most ``most`` bytes, whatever length its header claims.

    Raises:
        RequestRejected: the body is larger, or ends too early.
    """
    claimed = request.headers.get("content-length", "0")
    too_large = RequestRejected(
        413, f"the body is larger than {most} bytes: send fewer structures."
    )
    if claimed.isdecimal() and int(claimed) > most:
        raise too_large
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > most:
                raise too_large
    except ClientDisconnect:
        raise RequestRejected(400, "the body ended before it was whole.") from None
    return bytes(body)


async def _health(request: Request) -> Response:
    """Respond that the service runs, and nothing else, since no token is required."""
    return JSONResponse({"status": "ok"})


async def _on_rejected(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestRejected), "another handler's error"
    headers = {"connection": "close"} if error.status in _BEFORE_THE_BODY else {}
    headers |= {"www-authenticate": "Bearer"} if error.status == 401 else {}
    headers |= {"retry-after": "1"} if error.status in (429, 503) else {}
    return JSONResponse({"error": str(error)}, error.status, headers)


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), "another handler's error"
    return JSONResponse({"error": error.detail}, error.status_code)


async def _on_error(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": "the service failed; its log says where."}, 500)


@dataclass
class PendingRequest:
    """A request that is queued or being predicted."""

    body: bytes
    """Body as received; emptied after parsing."""
    kind: str
    """``json`` or ``extxyz``."""
    response: "Future[bytes]" = field(default_factory=Future)
    """The response's body, JSON; cancelled when the client no longer waits."""
    records: list[StructureRecord] = field(default_factory=list)
    """One record per structure; ``trust`` and ``heads`` are added after its prediction."""
    remaining: int = 0
    """Number of structures that are still to be predicted."""

    def finish(self, units: dict[str, str]) -> None:
        """Set the response if every structure is predicted or bad; ``units`` are by head."""
        if self.remaining or not self.records or self.response.done():
            return
        answer: PredictResponse = {"units": units, "structures": self.records}
        content = json.dumps(answer, allow_nan=False)
        if self.response.set_running_or_notify_cancel():
            self.response.set_result(content.encode())

    def fail(self, error: RequestRejected) -> None:
        """Reject the request, if its client still waits."""
        if not self.response.done() and self.response.set_running_or_notify_cancel():
            self.response.set_exception(error)


class PredictWorker:
    """Owns an ensemble; its thread predicts all waiting requests in one batch."""

    def __init__(self, ensemble: Ensemble, limits: Limits) -> None:
        """Store the ensemble; the thread is not started yet."""
        self.ensemble = ensemble
        self.limits = limits
        self._layout = OutputColumns(ensemble.manifest)
        self._waiting: queue.SimpleQueue[PendingRequest | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="predict", daemon=True)

    def start(self) -> None:
        """Start the thread that predicts."""
        self._thread.start()

    def stop(self, seconds: float) -> None:
        """End the thread once waiting requests are done; return after ``seconds`` at the latest."""
        self._waiting.put(None)
        self._thread.join(seconds)

    def submit(self, body: bytes, kind: str) -> "Future[bytes]":
        """Queue a request.

        Args:
            body: body as received.
            kind: ``json`` or ``extxyz``.

        Returns:
            A future of the response's body, JSON, or of the error ``RequestRejected``.
        """
        request = PendingRequest(body, kind)
        self._waiting.put(request)
        return request.response

    def _run(self) -> None:
        running = True
        while running:
            batch = self._next_batch()
            running = batch[-1] is not None
            requests = [request for request in batch if request is not None]
            try:
                with np.errstate(all="ignore"):  # positions of 1e300 are rejected later
                    self.predict(requests)
            except Exception as error:
                _log(error)
                for request in requests:
                    request.fail(RequestRejected(500, "the service failed; its log says where."))

    def _next_batch(self) -> list[PendingRequest | None]:
        """Wait for a request, and take all waiting ones, up to about ``body_bytes`` in total.

        Returns:
            The requests; None at the end means that the thread must end after them.
        """
        batch = [self._waiting.get()]
        size = 0
        while batch[-1] is not None and size + len(batch[-1].body) < self.limits.body_bytes:
            size += len(batch[-1].body)
            try:
                batch.append(self._waiting.get_nowait())
            except queue.Empty:
                break
        return batch

    def predict(self, requests: Sequence[PendingRequest]) -> None:
        """Predict some requests in one batch; each response is set after its last structure."""
        graphs: list[Graph] = []
        owner: list[tuple[PendingRequest, int]] = []
        units = self.ensemble.manifest.units()
        for request in requests:
            for row, graph in self._parse(request):
                graphs.append(graph)
                owner.append((request, row))
        for request in requests:
            request.finish(units)  # completes requests with only bad structures
        rules = self.ensemble.rules
        columns = columns_of(graphs, {}, {"cutoff": rules.cutoff}, attributes=rules.attributes)
        for piece in pieces(columns, np.arange(len(graphs)), EDGES_PER_BATCH):
            rows = [row for row in piece.tolist() if not owner[row][0].response.cancelled()]
            for row, record in zip(rows, self._predict_rows(columns, rows), strict=True):
                request, place = owner[row]
                request.records[place].update(record)
                request.remaining -= 1
                request.finish(units)

    def _parse(self, request: PendingRequest) -> list[tuple[int, Graph]]:
        """Parse a request, and add a record for each structure.

        Returns:
            Position and graph of the structures that can be predicted; empty if the request
            failed or its client no longer waits.
        """
        graphs: list[tuple[int, Graph]] = []
        attributes = self.ensemble.rules.attributes
        try:
            for name, item in parse_structures(request.body, request.kind, self.limits, attributes):
                if request.response.cancelled():
                    return []
                place = len(request.records)
                graph = item if isinstance(item, DataError) else self._to_graph(item, place + 1)
                error = str(graph) if isinstance(graph, DataError) else None
                request.records.append({"id": name, "error": error})
                if isinstance(graph, Graph):
                    graphs.append((place, graph))
        except RequestRejected as error:
            request.fail(error)
            return []
        except Exception as error:
            _log(error)
            request.fail(RequestRejected(400, "the body cannot be read."))
            return []
        request.body = b""
        request.remaining = len(graphs)
        return graphs

    def _to_graph(self, atoms: Atoms, number: int) -> Graph | DataError:
        """Turn a structure into a graph, or return why it cannot be used.

        The size is bounded before neighbours are searched, and checked after.
        """
        rules, limits = self.ensemble.rules, self.limits
        pairs = bound_pairs(len(atoms), atoms.cell.array, atoms.pbc.tolist(), rules.cutoff)
        try:
            if np.isfinite(pairs) and pairs > limits.pairs:
                return DataError(
                    f"its {len(atoms)} atoms are too many for so small a cell; correct the cell."
                )
            graph = graph_of(atoms, Place(Path("request"), number, str(number)), rules)
        except DataError as error:
            return error
        except Exception as error:
            _log(error)
            return DataError("it cannot be used; see the service's log.")
        if len(graph.edges) > limits.edges:
            return DataError(
                f"it has {len(graph.edges)} edges, the limit is {limits.edges}; send a smaller one."
            )
        return graph

    def _predict_rows(self, columns: Columns, rows: list[int]) -> list[StructureRecord]:
        """Predict some graphs; if that fails, predict each separately to isolate the bad ones.

        Returns:
            ``trust`` and ``heads`` of each graph, or its ``error``.
        """
        if not rows:
            return []
        indices = np.array(rows, dtype=np.int64)
        try:
            prediction = self.ensemble.predict(columns, indices)
            structures = Structures(columns.take(indices), tuple(map(str, rows)), {})
            predicted = describe_rows(self._layout, PredictedRows(structures, prediction))
            return [
                {"trust": record["trust"], "heads": replace_nonfinite(record["heads"])}
                for record in predicted
            ]
        except (RuntimeError, MemoryError, ArithmeticError) as error:
            _log(error)
            if len(rows) == 1:
                return [{"error": "the models failed on it; the service's log says where."}]
        return [record for row in rows for record in self._predict_rows(columns, [row])]


def describe_service(manifest: Manifest, limits: Limits) -> dict[str, JsonValue]:
    """Return what a client must know of an ensemble and of requests.

    Returns:
        The response to ``GET /info``. ``info`` holds the unit of each known property that a
        structure must bring in its ``info``, ``structure`` the JSON schema of a structure of
        ``POST /predict``.
    """
    computed = {"unit_guessed", "energy", "extensive", "derived_from", "origin", "charge"}
    plain: dict[str, JsonValue] = replace_nonfinite(
        {
            "package": manifest.package,
            "data": manifest.data.model_dump(mode="json"),
            "heads": {
                name: head.model_dump(include={*KIND} - computed, exclude_none=True)
                | {"unit": head.shown_unit}
                for name, head in manifest.heads.items()
            },
            "elements": list(manifest.elements),
            "cutoff": manifest.cutoff,
            "members": len(manifest.members),
            "info": {name: item.unit for name, item in manifest.attributes.items()},
            "evaluation": manifest.evaluation,
            "limits": {key: each for key, each in asdict(limits).items() if key != "waiting"},
            "structure": StructureRequest.model_json_schema(),
        }
    )
    return plain


def _log(error: Exception) -> None:
    """Log the type and place of an error, but not its text, which may quote a client's data."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = "" if trace is None else f" in {trace.tb_frame.f_code.co_name}:{trace.tb_lineno}"
    logger.error("a request failed: %s%s", type(error).__name__, where)
