"""Serve an ensemble over HTTP: one token, hard limits, one thread that predicts in batches.

Requests that wait together are predicted together (Law 7).
Shapes: G graphs of the requests of one batch.
"""

import asyncio
import json
import logging
import queue
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from ase import Atoms
from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from hydragnn_hpo import __version__
from hydragnn_hpo.data import Columns, Graph, Place, columns_of, graph_of
from hydragnn_hpo.ensemble.artefact import HeadEntry, Manifest
from hydragnn_hpo.ensemble.engine import EDGES_PER_BATCH, pieces
from hydragnn_hpo.ensemble.inference import Ensemble, Prediction
from hydragnn_hpo.ensemble.request_parsing import (
    KINDS,
    Limits,
    RequestRejected,
    StructureRequest,
    bound_pairs,
    parse_structures,
)
from hydragnn_hpo.errors import DataError
from hydragnn_hpo.http_service import Token
from hydragnn_hpo.metrics_log import replace_nonfinite

logger = logging.getLogger(__name__)

PARTS = ("mean", "std", "std_epistemic", "lo90", "hi90")
"""Values of each head in a response, in the head's unit; see ``HeadPrediction``."""

_BEFORE_THE_BODY = frozenset((401, 408, 413, 415, 429))
"""Statuses that are sent before the body was read: the connection ends with them."""

_BODY_SCHEMA = {
    "required": True,
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "required": ["structures"],
                "properties": {
                    "structures": {"type": "array", "items": StructureRequest.model_json_schema()}
                },
            }
        },
        "chemical/x-extxyz": {"schema": {"type": "string"}},
        "text/plain": {"schema": {"type": "string"}},
    },
}


def make_app(ensemble: Ensemble, token: Token, limits: Limits) -> FastAPI:
    """Return the service; its worker lives as long as the application does."""
    worker = PredictWorker(ensemble, limits)
    service = PredictService(worker, limits)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        worker.start()
        yield
        await asyncio.to_thread(worker.stop, limits.seconds)

    def check_token(request: Request) -> None:
        if not token.fits(request.headers.get("authorization")):
            raise RequestRejected(401, "say who you are: Authorization: Bearer TOKEN.")

    app = FastAPI(
        title="hydragnn-hpo",
        version=__version__,
        lifespan=lifespan,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        exception_handlers={
            RequestRejected: _on_rejected,
            HTTPException: _on_http_error,
            Exception: _on_error,
        },
    )
    app.get("/health")(_health)
    private = APIRouter(dependencies=[Depends(check_token)])
    private.get("/info")(service.info)
    private.get("/openapi.json")(_openapi)
    extra = {"requestBody": _BODY_SCHEMA}
    private.post("/predict", response_class=Response, openapi_extra=extra)(service.predict)
    app.include_router(private)
    return app


class PredictService:
    """Endpoints that need the worker: counts requests, reads bodies, waits for responses."""

    def __init__(self, worker: "PredictWorker", limits: Limits) -> None:
        """Store the worker and the limits."""
        self.worker = worker
        self.limits = limits
        self.active = 0

    async def info(self) -> dict[str, Any]:
        """Describe what is predicted, in which units, learned from what."""
        limits = {name: value for name, value in asdict(self.limits).items() if name != "waiting"}
        return describe_ensemble(self.worker.ensemble.manifest) | {"limits": limits}

    async def predict(self, request: Request) -> Response:
        """Predict every head for some structures: mean, standard deviation, interval, trust."""
        kind = _body_kind(request)
        if self.active >= self.limits.waiting:
            raise RequestRejected(429, "too many requests wait already; try again in a second.")
        self.active += 1
        try:
            content = await self._predict(request, kind)
        finally:
            self.active -= 1
        return Response(content, media_type="application/json")

    async def _predict(self, request: Request, kind: str) -> bytes:
        """Read the body and wait for the response, within one time limit for both."""
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
    """Return the kind of body by its content type."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in KINDS or request.headers.get("content-encoding", "identity") != "identity":
        raise RequestRejected(415, f"send one of {', '.join(KINDS)}, not compressed.")
    return KINDS[kind]


async def _read_body(request: Request, most: int) -> bytes:
    """Read a body that may claim any size, or none."""
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


async def _health() -> dict[str, str]:
    """Answer that the service runs, and nothing else: no token is needed."""
    return {"status": "ok"}


async def _openapi(request: Request) -> dict[str, Any]:
    """Describe the service in OpenAPI."""
    schema: dict[str, Any] = request.app.openapi()
    return schema


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
    """A request that waits for its response, or is worked on."""

    body: bytes
    """As received; emptied when it was parsed."""
    kind: str
    """``json`` or ``extxyz``."""
    response: "Future[bytes]" = field(default_factory=Future)
    """JSON; cancelled when the client no longer waits."""
    entries: list[dict[str, Any]] = field(default_factory=list)
    """One per structure; ``heads`` is added when it is predicted."""
    remaining: int = 0
    """Structures still to be predicted."""

    def finish(self, units: dict[str, str]) -> None:
        """Set the response once every structure has its entry."""
        if self.remaining or not self.entries or self.response.done():
            return
        content = json.dumps({"units": units, "structures": self.entries}, allow_nan=False)
        if self.response.set_running_or_notify_cancel():
            self.response.set_result(content.encode())

    def fail(self, error: RequestRejected) -> None:
        """Reject the request, if its client still waits."""
        if not self.response.done() and self.response.set_running_or_notify_cancel():
            self.response.set_exception(error)


class PredictWorker:
    """Owns an ensemble and predicts the requests that wait together in one batch."""

    def __init__(self, ensemble: Ensemble, limits: Limits) -> None:
        """Store the ensemble; ``start`` begins."""
        self.ensemble = ensemble
        self.limits = limits
        self._waiting: queue.SimpleQueue[PendingRequest | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="predict", daemon=True)

    def start(self) -> None:
        """Start the thread that predicts."""
        self._thread.start()

    def stop(self, seconds: float) -> None:
        """Predict what waits, then end; wait for it no longer than ``seconds``."""
        self._waiting.put(None)
        self._thread.join(seconds)

    def submit(self, body: bytes, kind: str) -> "Future[bytes]":
        """Queue a request; its result is JSON, or ``RequestRejected``."""
        request = PendingRequest(body, kind)
        self._waiting.put(request)
        return request.response

    def _run(self) -> None:
        going = True
        while going:
            batch = self._next_batch()
            going = batch[-1] is not None
            requests = [request for request in batch if request is not None]
            try:
                with np.errstate(all="ignore"):  # positions of 1e300: they are rejected in the end
                    self.predict(requests)
            except Exception as error:
                _log(error)
                for request in requests:
                    request.fail(RequestRejected(500, "the service failed; its log says where."))

    def _next_batch(self) -> list[PendingRequest | None]:
        """Wait for a request, and take those that wait with it, up to the bytes of one body."""
        batch, size = [self._waiting.get()], 0
        while batch[-1] is not None and size + len(batch[-1].body) < self.limits.body_bytes:
            size += len(batch[-1].body)
            try:
                batch.append(self._waiting.get_nowait())
            except queue.Empty:
                break
        return batch

    def predict(self, requests: Sequence[PendingRequest]) -> None:
        """Predict some requests at once; each responds as soon as its last structure is done."""
        graphs: list[Graph] = []
        owner: list[tuple[PendingRequest, int]] = []
        units = self.ensemble.manifest.units()
        for request in requests:
            for row, graph in self._parse(request):
                graphs.append(graph)
                owner.append((request, row))
        for request in requests:
            request.finish(units)
        rules = self.ensemble.rules
        columns = columns_of(graphs, {}, {"cutoff": rules.cutoff}, attributes=rules.attributes)
        for piece in pieces(columns, np.arange(len(graphs)), EDGES_PER_BATCH):
            rows = [row for row in piece.tolist() if not owner[row][0].response.cancelled()]
            for row, entry in zip(rows, self._predict_rows(columns, rows), strict=True):
                request, place = owner[row]
                request.entries[place].update(entry)
                request.remaining -= 1
                request.finish(units)

    def _parse(self, request: PendingRequest) -> list[tuple[int, Graph]]:
        """Parse a request; return the graphs that can be predicted, each with its place."""
        graphs: list[tuple[int, Graph]] = []
        attributes = self.ensemble.rules.attributes
        try:
            for name, item in parse_structures(request.body, request.kind, self.limits, attributes):
                if request.response.cancelled():
                    return []
                place = len(request.entries)
                graph = item if isinstance(item, DataError) else self._to_graph(item, place + 1)
                error = str(graph) if isinstance(graph, DataError) else None
                request.entries.append({"id": name, "error": error})
                if isinstance(graph, Graph):
                    graphs.append((place, graph))
        except RequestRejected as error:
            request.fail(error)
            return []
        except Exception as error:
            _log(error)
            request.fail(RequestRejected(400, "the body cannot be read."))
            return []
        request.body, request.remaining = b"", len(graphs)
        return graphs

    def _to_graph(self, atoms: Atoms, number: int) -> Graph | DataError:
        rules, limits = self.ensemble.rules, self.limits
        pairs = bound_pairs(len(atoms), atoms.cell.array, atoms.pbc.tolist(), rules.cutoff)
        try:
            if np.isfinite(pairs) and pairs > limits.pairs:
                return DataError(f"its {len(atoms)} atoms are too many for so small a cell.")
            graph = graph_of(atoms, Place(Path("request"), number, str(number)), rules)
        except DataError as error:
            return error
        except Exception as error:
            _log(error)
            return DataError("it cannot be used; the service's log says where.")
        if len(graph.edges) > limits.edges:
            return DataError(f"it has {len(graph.edges)} edges, the limit is {limits.edges}.")
        return graph

    def _predict_rows(self, columns: Columns, rows: list[int]) -> list[dict[str, Any]]:
        """Predict some graphs; where that fails, each alone, so that one spoils no other."""
        if not rows:
            return []
        indices = np.array(rows, dtype=np.int64)
        try:
            prediction = self.ensemble.predict(columns, indices)
            num_nodes = columns.num_nodes()[indices]
            return list(prediction_entries(self.ensemble.manifest, prediction, num_nodes))
        except (RuntimeError, MemoryError, ArithmeticError) as error:
            _log(error)
            if len(rows) == 1:
                return [{"error": "the models failed on it; the service's log says where."}]
        return [entry for row in rows for entry in self._predict_rows(columns, [row])]


def prediction_entries(
    manifest: Manifest, prediction: Prediction, num_nodes: np.ndarray
) -> Iterator[dict[str, Any]]:
    """Yield trust and heads of each structure as plain data, without NaN.

    Args:
        manifest: heads and units.
        prediction: of some structures.
        num_nodes: atoms of each of them, [G].
    """
    for row, end in enumerate(np.cumsum(num_nodes)):
        heads = {}
        for name, values in prediction.heads.items():
            head = manifest.heads[name]
            node = head.level == "node"
            rows = slice(end - num_nodes[row], end) if node else slice(row, row + 1)
            heads[name] = {part: _to_plain(head, getattr(values, part)[rows]) for part in PARTS}
        entry: dict[str, Any] = replace_nonfinite({"trust": prediction.trust[row], "heads": heads})
        yield entry


def _to_plain(head: HeadEntry, array: np.ndarray) -> Any:
    """Return a number, the components of a vector, or one of them per atom."""
    values = array[:, 0].tolist() if array.shape[1] == 1 else array.tolist()
    return values[0] if head.level == "graph" else values


def describe_ensemble(manifest: Manifest) -> dict[str, Any]:
    """Return what an ensemble predicts, from what it learned, and its elements."""
    shown = {"level", "shape", "unit", "description"}
    plain: dict[str, Any] = replace_nonfinite(
        {
            "package": manifest.package,
            "data": manifest.data.model_dump(mode="json"),
            "heads": {
                name: head.model_dump(include=shown) for name, head in manifest.heads.items()
            },
            "elements": list(manifest.elements),
            "cutoff": manifest.cutoff,
            "members": len(manifest.members),
            "info": {name: item.unit for name, item in manifest.attributes.items()},
            "evaluation": manifest.evaluation,
        }
    )
    return plain


def _log(error: Exception) -> None:
    """Log where something failed; not its words, which may quote a client."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = "" if trace is None else f" in {trace.tb_frame.f_code.co_name}:{trace.tb_lineno}"
    logger.error("a request failed: %s%s", type(error).__name__, where)
