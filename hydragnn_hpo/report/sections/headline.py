"""Section that answers first: what to conclude, how large the errors are, and what runs now."""

import logging
from collections.abc import Mapping, Sequence
from typing import get_args

from hydragnn_hpo.campaign import build_status, predict_seconds_left
from hydragnn_hpo.config import find_published
from hydragnn_hpo.config.data_config import PublishedConfig
from hydragnn_hpo.errors import StorageError
from hydragnn_hpo.file_records import HeadScores, RunFigures
from hydragnn_hpo.files import read_json
from hydragnn_hpo.report.charts import cost_unit, readable_name, time_unit
from hydragnn_hpo.report.facts import Facts
from hydragnn_hpo.report.page_blocks import (
    Block,
    Cell,
    Level,
    Number,
    Numbers,
    Section,
    Table,
    Text,
    Verdict,
    VerdictConclusion,
    make_table,
)

logger = logging.getLogger(__name__)

JOULES_PER_KWH = 3.6e6

TOPICS = {
    "mean": "error against the mean",
    "elements": "error against the elements alone",
    "descriptor": "error against a regression",
    "single": "error against the best trial",
    "published": "error against published ones",
    "ranking": "sigma as a rank of errors",
    "intervals": "90 % intervals",
    "kinds": "90 % intervals by kind",
    "groups": "number of groups",
    "local": "local regressions",
    "data": "more data",
    "leakage": "twins outside of test",
    "far": "values far from all others",
}
"""Titles by rule of the verdict; other rules have their own names."""


def make_section(facts: Facts) -> Section:
    """Show conclusions, errors of the ensemble or of the best trial so far, and the cost."""
    blocks: list[Block] = []
    verdict = read_verdict(facts)
    if verdict:
        blocks.append(Verdict(verdict))
    if not facts.state.finished:
        blocks += _now(facts)
    heads = facts.ensemble["heads"] if facts.ensemble is not None else {}
    blocks += _ensemble(facts, heads) if heads else _best_trial(facts)
    blocks.append(_course(facts))
    lead = "How good the result is, against what it should be judged, and what it cost."
    return Section("headline", "Result", lead, tuple(blocks))


def read_verdict(facts: Facts) -> tuple[VerdictConclusion, ...]:
    """Read the conclusions about the ensemble, else those in the summary of the run.

    Returns:
        The conclusions in the order of the file; empty if there are none.
    """
    verdict: object = facts.ensemble.get("verdict") if facts.ensemble is not None else None
    if verdict is None and facts.run.summary.exists():
        try:
            summary = read_json(facts.run.summary)
        except StorageError as error:
            logger.warning("the conclusions are left out: %s", error)
            return ()
        verdict = summary.get("verdict") if isinstance(summary, dict) else None
    conclusions = []
    for one in verdict if isinstance(verdict, list) else ():
        if isinstance(one, dict) and isinstance(one.get("sentence"), str):
            level: Level = one["level"] if one.get("level") in get_args(Level) else "note"
            rule = str(one.get("rule", ""))
            topic = TOPICS.get(rule, readable_name(rule))
            head = readable_name(str(one.get("head") or ""))
            conclusions.append(VerdictConclusion(level, one["sentence"], topic, head))
    return tuple(conclusions)


def _now(facts: Facts) -> list[Block]:
    """Show how far an unfinished campaign is, as of its last event."""
    search, ledger = facts.config.search, facts.history.ledger
    left = predict_seconds_left(facts.state, ledger, search, facts.end)
    status = build_status(
        facts.state, ledger, trials=search.trials, rungs=search.rungs, now=facts.end, ends_in=left
    )
    unit, size = time_unit(left or 0.0)
    done = status.at_rest
    numbers = (
        Number("progress", "trials ended", done / max(1, status.budget), "%",
               f"{done} of {status.budget}, {status.phase}"),
        Number("left", "time left", None if left is None else left / size, unit, "a prediction"),
        Number("running", "running now", facts.state.count("running"),
               note=f"{facts.state.count('queued')} wait"),
    )  # fmt: skip
    columns = {
        "trial": "trial",
        "configuration": "configuration",
        "epoch": "epoch",
        "until": "to epoch",
        "objective": "objective",
        "width": "ranks",
        "ends_in": ("ends in", "s"),
    }
    rows: list[list[Cell]] = [
        [r.trial, r.configuration, r.epoch, r.until, r.objective, r.width, r.ends_in]
        for r in status.running
    ]
    blocks: list[Block] = [Numbers(numbers)]
    return [*blocks, make_table("running_trials", columns, rows)] if rows else blocks


def _ensemble(facts: Facts, heads: Mapping[str, HeadScores]) -> list[Block]:
    errors = []
    for name, head in heads.items():
        baseline = head.get("ratio_to_mean")
        note = "" if baseline is None else f"{100 * baseline:.0f} % of predicting the mean"
        norm = head.get("test_norm_error")
        if norm is not None:
            whole = f"mean norm of the error {norm:.4g} {head['unit']}"
            note = f"{note}; {whole}" if note else whole
        label = f"{readable_name(name)}, test MAE"
        errors.append(Number(f"test_mae.{name}", label, head["test_mae"], head["unit"], note))
    return [Numbers(tuple(errors)), _heads(facts, heads)]


def best_published(facts: Facts, head: str) -> PublishedConfig | None:
    """Return the smallest published error of a target; None if no card names one."""
    cards = facts.cards.values()
    return find_published(card.targets[head] for card in cards if head in card.targets)


def _heads(facts: Facts, heads: Mapping[str, HeadScores]) -> Table:
    published = {name: best_published(facts, name) for name in heads}
    described_by = "local descriptors"
    if facts.ensemble is not None:
        described_by = facts.ensemble.get("described_by", described_by)
    columns: dict[str, str | Sequence[str]] = {
        "head": "target",
        "unit": "unit",
        "ensemble": "ensemble, test MAE",
        "single": "best single member",
        "descriptor": described_by,
        "elements": "elements alone",
        "baseline": "predict the mean",
        "ratio": ("ensemble / mean", "%"),
        "coverage90": ("in the 90 % interval", "%"),
    }
    if any(published.values()):
        columns |= {"published": "published MAE", "by": "published by"}
    rows, sources = [], []
    for name, head in heads.items():
        errors = head["test_mae"], head.get("single_mae")
        row: list[Cell] = [readable_name(name), head["unit"], *errors]
        row += [head.get("descriptor_mae"), head.get("elements_mae")]
        row += [head.get("mean_baseline_mae"), head.get("ratio_to_mean"), head.get("coverage90")]
        if any(published.values()):
            known = published[name]
            row += [known.mae, known.by] if known else [None, None]
            sources += [f"{readable_name(name)}: {known.by}, {known.source}."] if known else []
        rows.append(row)
    note = "All on the test split, which only the final ensemble is evaluated on. "
    return make_table("heads", columns, rows, (note + " ".join(sources)).strip())


def _best_trial(facts: Facts) -> list[Block]:
    ranked = facts.state.ranked()
    if not ranked:
        return [Text("There is no ensemble yet, and no trial has a result.")]
    best = ranked[0]
    units = facts.units
    errors = [
        Number(f"val_mae.{head}", f"{readable_name(head)}, validation MAE", mae,
               units.get(head, ""), best.name)
        for head, mae in best.val_mae.items()
    ]  # fmt: skip
    objective = Number("objective", "best objective", best.objective, note=best.name)
    note = Text("There is no ensemble yet; these are the validation errors of the best trial.")
    return [note, Numbers(tuple(errors) or (objective,))]


def _course(facts: Facts) -> Numbers:
    """Return counts of trials, and what they cost."""
    count, figures = facts.state.count, facts.figures
    duration = (facts.end or 0.0) - (facts.begin or facts.end or 0.0)
    long, second = time_unit(duration)
    hosts = figures["slot_seconds"] / facts.slots_per_host
    unit, size = cost_unit(hosts)
    return Numbers(
        (
            Number("trials", "trials", len(facts.state.trials)),
            Number("completed", "trained to the end", count("completed")),
            Number("stopped", "stopped early", count("stopped")),
            Number("failed", "failed", count("failed")),
            Number("open", "running or queued", count("running", "queued")),
            Number("duration", "duration", duration / second, long, "from the first start"),
            Number("host_time", "host time", hosts / size, f"host {unit}"),
            _energy(figures),
            Number("utilization", "utilization", figures["utilization"], "%", "in training"),
        )
    )


def _energy(figures: RunFigures) -> Number:
    joules = figures.get("energy_joules")
    parts = figures.get("energy_parts") or ()
    if joules is None:
        return Number("energy", "energy", None, note="the hosts have no readable counter")
    unit, size = ("kWh", JOULES_PER_KWH) if joules >= JOULES_PER_KWH else ("kJ", 1e3)
    return Number("energy", "energy", joules / size, unit, ", ".join(parts))
