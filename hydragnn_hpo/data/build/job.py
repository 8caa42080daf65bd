"""From a card to a store, by this host alone; and the same as a job of a campaign."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydragnn_hpo.data.build.merge import merge
from hydragnn_hpo.data.build.plan import plan_of
from hydragnn_hpo.data.build.quarantine import listing_of
from hydragnn_hpo.data.build.share import shares_of, tie, write_share
from hydragnn_hpo.data.build.work import finish_work, work_folder
from hydragnn_hpo.data.build.workers import convert_all
from hydragnn_hpo.data.store.write import WINDOW, refuse_stranger
from hydragnn_hpo.errors import HydraError, answer_of
from hydragnn_hpo.files import whole_folder, write_json


def build_store(
    card_path: Path,
    out: Path,
    *,
    progress: Callable[[int], None] | None = None,
    files: Sequence[Path] | None = None,
    processes: int | None = None,
    window: int = WINDOW,
) -> dict[str, Any]:
    """Read the files of a card, check everything, and write the store whole or not at all.

    A broken build is gone on with. Bad structures are set aside, up to the card's limit.

    Args:
        card_path: the card (TOML).
        out: the store to write, ``NAME.bp``; an older store there is replaced.
        progress: told after every structure how many are done; a ``Watch`` is told more.
        files: read these instead of the card's own files; no checksum is known for them.
        processes: to convert with, see ``convert_all``. The store does not depend on it.
        window: most graphs of a window.

    Returns:
        The statistics, which are also in ``stats.json``.

    Raises:
        HydraError: the card, a file or too many structures are wrong, or the disk is full.
    """
    refuse_stranger(out)
    plan = plan_of(card_path, files, window)
    with work_folder(out) as work:
        records = convert_all(plan, work, out, processes=processes, progress=progress)
        layout = merge(plan, records, work, out)
        with whole_folder(out) as folder:
            (windows,) = shares_of(layout, 1)
            share = write_share(folder, 0, layout, windows, work=work, card=plan.card)
            stats = tie(folder, layout, [share], plan.card)
        listing_of(out).unlink(missing_ok=True)
        finish_work(work)
    return stats


def job_main(spec: Mapping[str, Any]) -> int:
    """Build a store as a job: the statistics, or the error's sentence, go to a file.

    Args:
        spec: ``card`` and ``out``, paths; ``answer``, the JSON file to write; ``processes`` to
            convert with, 1 if left out: a rank has one core.

    Returns:
        0, also where the answer is ``{"error": sentence}``.
    """
    answer: dict[str, Any]
    try:
        processes = int(spec.get("processes", 1))
        answer = build_store(Path(spec["card"]), Path(spec["out"]), processes=processes)
    except HydraError as error:
        answer = answer_of(error)
    write_json(Path(spec["answer"]), answer)
    return 0
