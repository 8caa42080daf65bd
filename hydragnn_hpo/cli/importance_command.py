"""``hydragnn-hpo importance``: which searched parameters mattered."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hydragnn_hpo.cli.arguments import JsonOption

if TYPE_CHECKING:
    from hydragnn_hpo.report import Importance

TARGETS = ("mae", "cost", "memory", "failure")


def importance(
    run_dirs: Annotated[
        list[Path], typer.Argument(help="Run directories; several over one space are pooled.")
    ],
    target: Annotated[
        str | None, typer.Option(help="mae, cost, memory or failure; all of them if left out.")
    ] = None,
    head: Annotated[
        str | None, typer.Option(help="Explain the MAE of this head instead of the objective.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Also draw a figure, NAME.png.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Show which searched parameters decide accuracy, cost, memory and failures."""
    from hydragnn_hpo.layout import RunDir
    from hydragnn_hpo.report import (
        METHODS,
        analyse_importance,
        choose_targets,
        draw_importance,
        pool_runs,
        read_facts,
    )

    wanted = _check_options(target, head, out)
    config, rows = pool_runs([read_facts(RunDir(path)) for path in run_dirs])
    chosen = choose_targets(rows, config.search.objective, wanted)
    analyses = [analyse_importance(config, rows, each) for each in chosen]
    if out is not None:
        draw_importance(analyses, out)
    if as_json:
        plain = [each.to_plain() for each in analyses]
        about = {"runs": [str(path) for path in run_dirs], "methods": METHODS}
        typer.echo(json.dumps({**about, "targets": plain}))
        return
    for each in analyses:
        _print_table(each)
    typer.echo(METHODS)
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


def _print_table(analysis: "Importance") -> None:
    """Print what is explained, whether to trust it, and the effects of the parameters."""
    from rich.table import Table
    from rich.text import Text

    from hydragnn_hpo.cli.tables import console

    skill = "" if analysis.skill is None else f", out-of-bag R2 {analysis.skill:.2f}"
    typer.echo(f"{analysis.target.label}, {analysis.trials:,} trials{skill}")
    if analysis.doubt:
        typer.echo(f"NOT TO BE TRUSTED: {analysis.doubt}")
    unit = f" ({analysis.target.unit})" if analysis.target.unit else ""
    style = "dim" if analysis.doubt else ""
    table = Table(style=style)
    table.add_column("parameter")
    for name in (f"mean |SHAP|{unit}", "SHAP", "fANOVA", "PED-ANOVA"):
        table.add_column(name, justify="right")
    table.add_column("least at")
    for name, effect in analysis.effects.items():
        shares = (effect.shap_share, effect.fanova, effect.ped_anova)
        cells = ("-" if share is None else f"{100.0 * share:.0f} %" for share in shares)
        least = Text(effect.least_at)
        table.add_row(Text(name), f"{effect.shap:.4f}", *cells, least, style=style)
    if analysis.effects:
        console().print(table)
    typer.echo("")
