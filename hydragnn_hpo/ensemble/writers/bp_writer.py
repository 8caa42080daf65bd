"""ADIOS2 BP5: one array per column, with all structures concatenated.

Per structure (NaN where nothing is predicted): the columns of graph-level heads, ``num_nodes``.
Per atom: the columns of node-level heads, and ``numbers``; ``num_nodes`` atoms belong to each
structure. Texts (``id``, ``trust``, ``error``, copied keys) are UTF-8, concatenated in
``NAME_text``, with the number of bytes of each in ``NAME_size``.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from safetensors.numpy import load, save

from hydragnn_hpo.data.columns import Names
from hydragnn_hpo.data.store_parts import reserve_disk
from hydragnn_hpo.ensemble.predict_output import PredictedRows, Share, Writer
from hydragnn_hpo.errors import StorageError
from hydragnn_hpo.files import whole_folder
from hydragnn_hpo.optional_packages import explain_missing

Arrays = dict[str, np.ndarray]
"""Array by name of the variable; the first dimension is structures, atoms or bytes."""

_MARGIN = 1 << 20
"""Bytes reserved for what ADIOS2 writes besides the columns; more than it needs."""


class BpWriter(Writer):
    """Writes ``NAME.bp``, a folder."""

    def part(self, some: Sequence[PredictedRows]) -> Share:
        """Render the arrays of some structures as safetensors."""
        pieces = [self._arrays(rows) for rows in some]
        names = pieces[0] if pieces else {}
        whole = {name: np.concatenate([piece[name] for piece in pieces]) for name in names}
        return {"": save(whole)}

    def join(self, shares: Callable[[], Iterator[Share]], out: Path) -> list[Path]:
        """Write the folder under a temporary name, and rename it when it is complete."""
        totals: dict[str, int] = {}
        kinds: dict[str, np.dtype] = {}
        for arrays in _load_arrays(shares()):  # sizes first: ADIOS2 requires them before the data
            for name, array in arrays.items():
                totals[name] = totals.get(name, 0) + len(array)
                kinds[name] = array.dtype
        needed = sum(count * kinds[name].itemsize for name, count in totals.items())
        with whole_folder(out) as work:
            reserve_disk(work / "part", needed + _MARGIN)
            try:
                self._write(work, totals, kinds, shares())
            except RuntimeError as error:
                reason = " ".join(str(error).split())
                raise StorageError(
                    f"{out}: cannot be written ({reason}); make room or choose another place."
                ) from error
            (work / "profiling.json").unlink(missing_ok=True)
        return [out]

    def _write(
        self,
        folder: Path,
        totals: dict[str, int],
        kinds: dict[str, np.dtype],
        shares: Iterator[Share],
    ) -> None:
        """Write the blocks of all parts into one step.

        Args:
            folder: folder to write.
            totals: length of each variable.
            kinds: type of each variable.
            shares: shares of all chunks, in order.
        """
        with explain_missing(f"{folder}: a file of ADIOS2"):
            import adios2
            from adios2.bindings import Mode

        with adios2.Stream(str(folder), "w") as stream:
            stream.begin_step()
            about = self.layout.describe()
            known = {"units": about["units"], **about["provenance"]}
            stream.write_attribute("hydragnn_hpo", json.dumps(known))
            variables = {
                name: stream.io.define_variable(name, np.zeros(1, kinds[name]), [n], [0], [n])
                for name, n in totals.items()
                if n
            }
            done = dict.fromkeys(totals, 0)
            for arrays in _load_arrays(shares):
                for name, array in arrays.items():
                    if len(array):
                        variables[name].set_selection([[done[name]], [len(array)]])
                        stream.engine.put(variables[name], array, Mode.Sync)
                        done[name] += len(array)
                stream.engine.perform_data_write()
            stream.end_step()

    def _arrays(self, rows: PredictedRows) -> Arrays:
        layout, structures = self.layout, rows.structures
        good = rows.good()
        total = len(structures.ids)
        arrays: Arrays = {"num_nodes": np.zeros(total, np.int32)}
        arrays["num_nodes"][good] = rows.num_nodes
        for name in layout.names("graph"):
            values = layout.values(name, rows.prediction.heads[name])
            for title, column in zip(layout.titles(name), values.T, strict=True):
                arrays[title] = np.full(total, np.nan)
                arrays[title][good] = column
        for name in layout.names("node"):
            values = layout.values(name, rows.prediction.heads[name])
            titles = zip(layout.titles(name), values.T, strict=True)
            arrays |= {title: np.ascontiguousarray(column) for title, column in titles}
        if layout.names("node"):
            arrays["numbers"] = structures.columns.numbers
        trust = iter(rows.prediction.trust)
        errors = [structures.errors.get(place) for place in range(total)]
        texts = {
            "id": structures.ids,
            "trust": ["" if error else next(trust) for error in errors],
            "error": [error or "" for error in errors],
        } | {key: [str(known.get(key, "")) for known in structures.kept] for key in layout.keep}
        for name, some in texts.items():
            encoded = Names.of(some)
            arrays[f"{name}_text"] = encoded.text.copy()
            arrays[f"{name}_size"] = np.diff(encoded.offset).astype(np.int32)
        return arrays


def _load_arrays(shares: Iterator[Share]) -> Iterator[Arrays]:
    for share in shares:
        if share[""]:
            yield load(share[""])
