"""Build the ensemble of a run: selected, predicted, calibrated, tested, packed.

Each selection method proposes a mix of candidates; the candidates of all mixes predict ``cal`` and
``test``, so that the report can compare the methods, and one mix is kept as the ensemble. A stage
is made once, from those before it, and never changed.
"""

import contextlib
import errno
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import torch

from hydragnn_hpo import log
from hydragnn_hpo.config import DISK_FULL
from hydragnn_hpo.data import remove_stages
from hydragnn_hpo.ensemble import write_artefact
from hydragnn_hpo.ensemble_build.build_report import gather_arrays, make_table, write_report
from hydragnn_hpo.ensemble_build.calibrated import calibrate
from hydragnn_hpo.ensemble_build.candidates import open_build_context
from hydragnn_hpo.ensemble_build.member_selection import compare_members, select_members
from hydragnn_hpo.ensemble_build.packed import keep_trunks, pack
from hydragnn_hpo.ensemble_build.predicted import predict
from hydragnn_hpo.ensemble_build.tested import BuildStages, score_on_test
from hydragnn_hpo.errors import HydraError, StorageError, answer_of
from hydragnn_hpo.file_records import EnsembleTable
from hydragnn_hpo.files import write_json
from hydragnn_hpo.layout import RunDir


def build_ensemble(run: Path, device: str = "cpu", keep: int = 0) -> EnsembleTable:
    """Build ``RUN/ensemble.zip``, and write the data of the report's figures.

    The test split is predicted once, after everything is selected, and its labels are read after
    everything is calibrated (Law 6).

    Args:
        run: the run directory.
        device: torch device to predict on.
        keep: if above 0, used instead of ``ensemble.nets`` of the campaign.

    Raises:
        HydraError: no ensemble can be built from the run; one sentence says why.
    """
    context = open_build_context(RunDir(run), keep)
    selected = select_members(context)
    predicted = predict(context, selected, device)
    calibrated = calibrate(context, selected, predicted)
    tested = score_on_test(context, selected, predicted, calibrated)
    diversity = compare_members(context, selected.best)
    build = BuildStages(context, selected, predicted, calibrated, tested, diversity)
    packed = pack(build)
    table = make_table(build, packed.manifest)
    write_report(context.run, table, gather_arrays(build, packed))
    keep_trunks(context, packed)
    write_artefact(context.run.ensemble, packed)
    return table


_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class BuildSpec(TypedDict):
    """Input of a job that builds an ensemble."""

    run: str
    """The run directory."""
    answer: str
    """JSON file to write: an ``EnsembleTable``, or an error, see ``errors.answer_of``."""
    device: NotRequired[str]
    """Torch device to predict on; if missing, ``HYDRAGNN_HPO_DEVICE``, or else the CPU."""


def job_main(spec: BuildSpec) -> int:
    """Build an ensemble as a job, and write its table or the error's message to a file.

    Returns:
        0, even if the file holds an error; ``DISK_FULL`` if it cannot be written.
    """
    log.configure()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    answer = Path(spec["answer"])
    run = Path(spec["run"])
    device = os.environ.get("HYDRAGNN_HPO_DEVICE", "cpu")
    content: Mapping[str, Any]
    try:
        content = build_ensemble(run, spec.get("device", device))
    except HydraError as error:
        content = answer_of(error)
    except OSError as error:  # libraries raise the system's own errors
        if error.errno not in _NO_ROOM:
            raise
        full = f"{run}: the ensemble cannot be written ({error.strerror}); make room, then "
        content = answer_of(StorageError(f"{full}run the same command again to go on."))
    with contextlib.suppress(HydraError, OSError):  # the last job: no trial reads them any more
        for store in RunDir(run).data.glob("*.bp"):
            remove_stages(store)
    try:
        write_json(answer, content)
    except StorageError:
        return DISK_FULL
    return 0
