"""The one thread that predicts: what waits together is predicted together (Law 7).

Shapes: G graphs of the requests that are worked on together.
"""

import json
import logging
import queue
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from ase import Atoms

from hydragnn_hpo.data.columns import Columns, columns_of
from hydragnn_hpo.data.graph import Graph
from hydragnn_hpo.data.structure import Place, graph_of
from hydragnn_hpo.ensemble.engine import EDGES_PER_BATCH, pieces
from hydragnn_hpo.ensemble.inference import Ensemble
from hydragnn_hpo.ensemble.serving.answers import entries
from hydragnn_hpo.ensemble.serving.asked import asked_structures
from hydragnn_hpo.ensemble.serving.limits import Limits, Refused, possible_pairs
from hydragnn_hpo.errors import DataError

logger = logging.getLogger(__name__)


@dataclass
class Asked:
    """A request that waits for its answer, or is worked on."""

    body: bytes
    """As it came; emptied when it was read."""
    kind: str
    """``json`` or ``extxyz``."""
    answer: "Future[bytes]" = field(default_factory=Future)
    """JSON; whoever asked cancels it when it is no longer wanted."""
    told: list[dict[str, Any]] = field(default_factory=list)
    """One entry per structure; ``heads`` comes when it is predicted."""
    left: int = 0
    """Structures that are still to be predicted."""

    @property
    def wanted(self) -> bool:
        """Whether somebody still waits for it."""
        return not self.answer.cancelled()


class Worker:
    """Owns an ensemble and answers requests, those that wait at a time in one batch."""

    def __init__(self, ensemble: Ensemble, limits: Limits) -> None:
        """Take the ensemble; ``start`` begins."""
        self.ensemble = ensemble
        self.limits = limits
        self._waiting: queue.SimpleQueue[Asked | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="predict", daemon=True)

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def stop(self, seconds: float) -> None:
        """Answer what waits, then end; wait for it no longer than ``seconds``."""
        self._waiting.put(None)
        self._thread.join(seconds)

    def ask(self, body: bytes, kind: str) -> "Future[bytes]":
        """Queue a request; its answer is JSON, or ``Refused``."""
        asked = Asked(body, kind)
        self._waiting.put(asked)
        return asked.answer

    def _work(self) -> None:
        going = True
        while going:
            batch = [self._waiting.get()]
            size = 0
            while size < self.limits.body_bytes and batch[-1] is not None:
                size += len(batch[-1].body)
                try:
                    batch.append(self._waiting.get_nowait())
                except queue.Empty:
                    break
            going = batch[-1] is not None
            together = [asked for asked in batch if asked is not None]
            try:
                with np.errstate(all="ignore"):  # positions of 1e300: they are refused in the end
                    self.answer(together)
            except Exception as error:
                _log(error)
                for asked in together:
                    _fail(asked, Refused(500, "the service failed; its log says where."))

    def answer(self, together: Sequence[Asked]) -> None:
        """Answer some requests at once; each as soon as its last structure is done."""
        graphs: list[Graph] = []
        owner: list[tuple[Asked, int]] = []
        for asked in together:
            for row, graph in self._graphs(asked):
                graphs.append(graph)
                owner.append((asked, row))
        for asked in together:
            _finish(asked, self.ensemble)
        rules = self.ensemble.rules
        columns = columns_of(graphs, {}, {"cutoff": rules.cutoff}, attributes=rules.attributes)
        for piece in pieces(columns, np.arange(len(graphs)), EDGES_PER_BATCH):
            rows = [row for row in piece.tolist() if owner[row][0].wanted]
            for row, told in zip(rows, self._told(columns, rows), strict=True):
                asked, place = owner[row]
                asked.told[place].update(told)
                asked.left -= 1
            for asked in {id(owner[row][0]): owner[row][0] for row in rows}.values():
                _finish(asked, self.ensemble)

    def _graphs(self, asked: Asked) -> Iterator[tuple[int, Graph]]:
        """Read a request and give the graphs that can be predicted, each with its place."""
        made: list[tuple[int, Graph]] = []
        attributes = self.ensemble.rules.attributes
        try:
            for name, found in asked_structures(asked.body, asked.kind, self.limits, attributes):
                if not asked.wanted:
                    return
                graph = (
                    found
                    if isinstance(found, DataError)
                    else self._graph(found, len(asked.told) + 1)
                )
                error = str(graph) if isinstance(graph, DataError) else None
                asked.told.append({"id": name, "error": error})
                if isinstance(graph, Graph):
                    made.append((len(asked.told) - 1, graph))
        except Refused as refused:
            _fail(asked, refused)
            return
        except Exception as error:
            _log(error)
            _fail(asked, Refused(400, "the body cannot be read."))
            return
        asked.body, asked.left = b"", len(made)
        yield from made

    def _graph(self, atoms: Atoms, number: int) -> Graph | DataError:
        rules, limits = self.ensemble.rules, self.limits
        pairs = possible_pairs(len(atoms), atoms.cell.array, atoms.pbc.tolist(), rules.cutoff)
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

    def _told(self, columns: Columns, rows: list[int]) -> list[dict[str, Any]]:
        """Predict some graphs; where that fails, each alone, so that one spoils no other."""
        indices = np.array(rows, dtype=np.int64)
        if not rows:
            return []
        try:
            prediction = self.ensemble.predict(columns, indices)
            found = entries(self.ensemble.manifest, prediction, columns.num_nodes()[indices])
            return list(found)
        except (RuntimeError, MemoryError, ArithmeticError) as error:
            _log(error)
            if len(rows) == 1:
                return [{"error": "the models failed on it; the service's log says where."}]
        return [told for row in rows for told in self._told(columns, [row])]


def _finish(asked: Asked, ensemble: Ensemble) -> None:
    """Give the answer once every structure has its entry."""
    if asked.left or not asked.told or asked.answer.done():
        return
    whole = {"units": ensemble.manifest.units(), "structures": asked.told}
    content = json.dumps(whole, allow_nan=False).encode()
    if asked.answer.set_running_or_notify_cancel():
        asked.answer.set_result(content)


def _fail(asked: Asked, refused: Refused) -> None:
    if not asked.answer.done() and asked.answer.set_running_or_notify_cancel():
        asked.answer.set_exception(refused)


def _log(error: Exception) -> None:
    """Tell where something failed; not its words, which may quote what a client sent."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = "" if trace is None else f" in {trace.tb_frame.f_code.co_name}:{trace.tb_lineno}"
    logger.error("a request failed: %s%s", type(error).__name__, where)
