"""TensorBoard event files: one folder per trial, epochs as steps, searched values as hparams.

Curves have the names that ``training.tensorboard`` gives them; ``result/...`` is what a trial was
judged by. Units stand in the description of each curve. Values are 32-bit floats there.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.files import storage, whole_folder
from hydragnn_hpo.report.exporting.rows import EpochRow, TrialRow, curves, trial_rows, unit_of
from hydragnn_hpo.report.exporting.written import Written, folder_names
from hydragnn_hpo.report.facts import Facts

RESULTS = ("objective", "score.", "val_mae.", "parameters", "peak_bytes", "slot_seconds", "energy")
"""What a trial's ``result/...`` holds, by the beginning of the name."""


def write(facts: Facts, out: Path) -> Written:
    """Write a folder of runs.

    Raises:
        ConfigError: tensorboard is not installed.
    """
    try:
        import tensorboard.summary.writer.record_writer as _  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            "--to tensorboard needs a package that is not installed: "
            "pip install 'hydragnn-hpo[tensorboard]'."
        ) from error
    rows, told = trial_rows(facts), curves(facts)
    names = folder_names([row.name for row in rows])
    with whole_folder(out) as folder:
        for row in rows:
            path = folder / names[row.name]
            with storage(path):
                path.mkdir()
                begun = row.numbers["started"] or facts.begin or 0.0
                file = path / f"events.out.tfevents.{int(begun)}.export"
                _write_run(file, _events(row, told.get(row.name, []), facts.units, begun))
    return Written(
        files=(out,),
        trials=len(rows),
        epochs=sum(map(len, told.values())),
        open_with=f"tensorboard --logdir {out}",
    )


def _write_run(path: Path, events: Iterable[Any]) -> None:
    from tensorboard.summary.writer.record_writer import RecordWriter

    make: Any = RecordWriter
    with path.open("wb") as file:
        writer = make(file)
        for event in events:
            writer.write(event.SerializeToString())


def _events(
    row: TrialRow, curve: list[EpochRow], units: Mapping[str, str], begun: float
) -> Iterable[Any]:
    """Give all events of one trial in order."""
    from tensorboard.compat.proto.event_pb2 import Event

    ended = row.numbers["ended"] or (curve[-1].time if curve else begun)
    yield Event(wall_time=begun, file_version="brain.Event:2")
    yield Event(wall_time=begun, summary=_start(row, begun))
    for epoch in curve:
        summary = _scalars(epoch.numbers, units, "")
        yield Event(wall_time=epoch.time, step=epoch.epoch, summary=summary)
    results = {
        name: value
        for name, value in row.numbers.items()
        if value is not None and name.startswith(RESULTS) and name != "energy_share"
    }
    last = int(row.numbers["epochs"] or 0)
    yield Event(wall_time=ended, step=last, summary=_scalars(results, units, "result/"))
    if row.status not in ("running", "queued"):
        yield Event(wall_time=ended, summary=_end(row, ended))


def _scalars(numbers: Mapping[str, float], units: Mapping[str, str], before: str) -> Any:
    from tensorboard.compat.proto.summary_pb2 import Summary

    summary: Any = Summary()
    for name, value in numbers.items():
        what, dot, which = name.partition(".")
        added = summary.value.add(tag=f"{before}{what}/{which}" if dot else f"{before}{what}")
        added.simple_value = value
        if unit := unit_of(name, units):
            added.metadata.summary_description = f"in {unit}"
    return summary


def _start(row: TrialRow, begun: float) -> Any:
    from tensorboard.plugins.hparams import metadata
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    data: Any = HParamsPluginData()
    start = data.session_start_info
    start.group_name, start.start_time_secs = row.name, begun
    for key, value in row.values.items():
        if isinstance(value, bool):
            start.hparams[key].bool_value = value
        elif isinstance(value, str):
            start.hparams[key].string_value = value
        else:
            start.hparams[key].number_value = value
    return _hparams(metadata.SESSION_START_INFO_TAG, data)


def _end(row: TrialRow, ended: float) -> Any:
    from tensorboard.plugins.hparams import api_pb2, metadata
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    data: Any = HParamsPluginData()
    done = row.status in ("completed", "stopped")
    known: Any = api_pb2
    data.session_end_info.status = known.STATUS_SUCCESS if done else known.STATUS_FAILURE
    data.session_end_info.end_time_secs = ended
    return _hparams(metadata.SESSION_END_INFO_TAG, data)


def _hparams(tag: str, data: Any) -> Any:
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.hparams import metadata

    summary: Any = Summary()
    about = metadata.create_summary_metadata(data)
    summary.value.add(tag=tag, metadata=about, tensor=metadata.NULL_TENSOR)
    return summary
