"""How ``ensemble evaluate`` shows what it found."""

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

    from hydragnn_hpo.ensemble.evaluation.evaluate import Evaluation

_PLAIN = (
    ("rows", "values"),
    ("mae", "MAE"),
    ("rmse", "RMSE"),
    ("mean_baseline_mae", "MAE of mean"),
)
_BESIDE = (
    ("nll", "NLL"),
    ("crps", "CRPS"),
    ("ence", "ENCE"),
    ("area", "miscalibration, Gaussian"),
    ("sharpness", "sharpness"),
    ("spearman", "Spearman"),
    ("ause", "AUSE"),
    *((f"coverage{level}", f"inside {level} %") for level in (50, 80, 90, 95)),
    *((f"width{level}", f"width of {level} %") for level in (50, 80, 90, 95)),
)


def evaluation_table(done: "Evaluation") -> "Table":
    """Lay out every figure, a column for each head: calibrated, and raw in brackets."""
    from rich.table import Table

    title = f"{done.structures} structures: calibrated (members' raw spread)"
    table = Table(title=title, title_justify="left")
    table.add_column("")
    for name, head in done.heads.items():
        table.add_column(f"{name.replace('_', ' ')}\n\\[{head.entry.unit}]", justify="right")
    figures = [head.figures for head in done.heads.values()]
    for key, title in _PLAIN:
        table.add_row(title, *(_number(one[key]) for one in figures))
    for key, title in _BESIDE:
        cells = (f"{_number(one[key])} ({_number(one[f'raw_{key}'])})" for one in figures)
        table.add_row(title, *cells)
        if key == "area":
            conformal = (_number(one["area_conformal"]) for one in figures)
            table.add_row("miscalibration, conformal", *conformal)
    table.caption = "intervals are conformal, those of the raw spread Gaussian"
    return table


def strata_table(done: "Evaluation") -> "Table":
    """Lay out error and 90 % intervals of each kind of structure."""
    from rich.table import Table

    table = Table(title="Kinds of structures", title_justify="left")
    for title in ("head", "kind"):
        table.add_column(title)
    for title in ("values", "MAE", "RMSE", "CRPS", "inside 90 %", "width of 90 %"):
        table.add_column(title, justify="right")
    keys = ("rows", "mae", "rmse", "crps", "coverage90", "width90")
    for name, head in done.heads.items():
        for kind, values in head.strata.items():
            table.add_row(name, kind, *(_number(values[key]) for key in keys))
    return table


def _number(value: float) -> str:
    if isinstance(value, int):
        return str(value)
    return f"{value:.3g}" if math.isfinite(value) else "-"
