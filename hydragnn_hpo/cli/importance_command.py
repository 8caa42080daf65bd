"""``hydragnn-hpo importance``: what the searched parameters did."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hydragnn_hpo.cli.arguments import JsonOption

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from hydragnn_hpo.report import Importance, Target

TARGETS = ("mae", "cost", "memory", "failure")

RunsArgument = Annotated[
    list[Path], typer.Argument(help="Run directories; several over one space are pooled.")
]
TargetOption = Annotated[
    str | None, typer.Option(help="mae, cost, memory or failure; all of them if left out.")
]
HeadOption = Annotated[
    str | None, typer.Option(help="Explain the MAE of this head instead of the objective.")
]
OutOption = Annotated[Path | None, typer.Option(help="Draw it, too: NAME.png.")]


def importance(
    run_dirs: RunsArgument,
    target: TargetOption = None,
    head: HeadOption = None,
    out: OutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show which searched parameters decide accuracy, cost, memory and failures."""
    from hydragnn_hpo.layout import RunDir
    from hydragnn_hpo.report import METHODS, analyse_importance, list_targets, pool_runs, read_facts

    wanted = _check_options(target, head, out)
    config, rows = pool_runs([read_facts(RunDir(path)) for path in run_dirs])
    chosen = _select_targets(list_targets(rows, config.search.objective), wanted)
    found = [analyse_importance(config, rows, each) for each in chosen]
    if out is not None:
        from hydragnn_hpo.report import draw_importance

        draw_importance(found, out)
    if as_json:
        runs = [str(path) for path in run_dirs]
        plain = [each.to_plain() for each in found]
        typer.echo(json.dumps({"runs": runs, "methods": METHODS, "targets": plain}))
        return
    _print_tables(found)
    if out is not None:
        typer.echo(f"picture {out}")


def _check_options(target: str | None, head: str | None, out: Path | None) -> tuple[str, ...]:
    """Check the options before anything is read, and return the keys of the targets.

    Raises:
        ConfigError: a target is unknown, a head was named for another one, or the picture is no
            PNG.
    """
    from hydragnn_hpo.errors import ConfigError, unknown

    if target is not None and target not in TARGETS:
        raise ConfigError(f"--target: {unknown('target', target, TARGETS)}")
    if head is not None and target not in (None, "mae"):
        raise ConfigError(f"--head goes with --target mae, not with '{target}': drop one of them.")
    if out is not None and out.suffix != ".png":
        raise ConfigError(f"--out: '{out}' is no PNG: name a file that ends in .png.")
    if head is not None:
        return (f"mae.{head}",)
    return TARGETS if target is None else (target,)


def _select_targets(targets: "Sequence[Target]", wanted: tuple[str, ...]) -> "list[Target]":
    """Find the requested targets; of all targets, those that have measurements.

    Raises:
        RunError: no trial has a measurement yet.
        ConfigError: no trial has a measurement of the requested one.
    """
    from hydragnn_hpo.errors import RunError
    from hydragnn_hpo.report import choose_target

    if not targets:
        raise RunError("no trial has come to rest or failed yet: ask again later.")
    if len(wanted) == 1:
        return [choose_target(targets, wanted[0])]
    return [target for target in targets if target.key in wanted]


def _print_tables(found: "Sequence[Importance]") -> None:
    from hydragnn_hpo.cli.tables import console
    from hydragnn_hpo.report import METHODS

    for each in found:
        typer.echo(heading(each))
        if each.effects:
            console().print(table(each))
        typer.echo("")
    typer.echo(METHODS)


def heading(found: "Importance") -> str:
    """Describe what is explained, from what, and whether to trust it."""
    text = f"{found.target.label}, {found.trials:,} trials"
    if found.skill is not None:
        text += f", out-of-bag R2 {found.skill:.2f}"
    return f"{text}\nNOT TO BE TRUSTED: {found.doubt}" if found.doubt else text


def table(found: "Importance") -> "Table":
    """Lay out the effects of the parameters on one target."""
    from rich.table import Table
    from rich.text import Text

    unit = f" ({found.target.unit})" if found.target.unit else ""
    effects = Table(style="dim" if found.doubt else "")
    effects.add_column("parameter")
    for name in (f"mean |SHAP|{unit}", "SHAP", "fANOVA", "PED-ANOVA"):
        effects.add_column(name, justify="right")
    effects.add_column("least at")
    for name, effect in found.effects.items():
        shares = (effect.shap_share, effect.fanova, effect.ped_anova)
        cells = [
            f"{effect.shap:.4f}",
            *("-" if s is None else f"{100.0 * s:.0f} %" for s in shares),
        ]
        least = Text(effect.least_at)
        effects.add_row(Text(name), *cells, least, style="dim" if found.doubt else None)
    return effects
