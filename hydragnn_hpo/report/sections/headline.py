"""Section that summarizes the outcome on one screen: errors with units, baselines, and cost."""

from collections.abc import Mapping

from hydragnn_hpo.config import PublishedConfig
from hydragnn_hpo.file_records import HeadScores, RunFigures
from hydragnn_hpo.report.charts import cost_unit, time_unit
from hydragnn_hpo.report.facts import Facts
from hydragnn_hpo.report.page_blocks import Block, Number, Numbers, Section, Table, Text, make_table

JOULES_PER_KWH = 3.6e6


def make_section(facts: Facts) -> Section:
    """Show errors of the ensemble, or of the best trial so far, and the campaign's cost."""
    blocks: list[Block] = []
    if not facts.state.finished:
        blocks.append(Text("The campaign is not finished: what follows is as far as it has come."))
    heads = facts.ensemble["heads"] if facts.ensemble is not None else {}
    blocks += _ensemble(facts, heads) if heads else _best_trial(facts)
    blocks += [_counts(facts), _cost(facts)]
    if facts.figures.get("energy_joules") is None:
        blocks.append(Text("Energy was not counted: no counter of the hosts could be read."))
    lead = "How good the result is, against what it should be judged, and what it cost."
    return Section("headline", "Headline", lead, tuple(blocks))


def _ensemble(facts: Facts, heads: Mapping[str, HeadScores]) -> list[Block]:
    errors = [
        Number(f"test_mae.{name}", f"test MAE, {name}", head["test_mae"], head["unit"], "ensemble")
        for name, head in heads.items()
    ]
    return [Numbers(tuple(errors)), _heads(facts, heads)]


def best_published(facts: Facts, head: str) -> PublishedConfig | None:
    """Return the smallest published error of a target; None if no card names one."""
    cards = facts.cards.values()
    known = [p for card in cards if head in card.targets for p in card.targets[head].published]
    return min(known, key=lambda one: one.mae, default=None)


def _heads(facts: Facts, heads: Mapping[str, HeadScores]) -> Table:
    columns = {
        "head": "head",
        "unit": "unit",
        "ensemble": "ensemble, test MAE",
        "single": "best single member",
        "baseline": "predict the mean",
        "ratio": ("ensemble / mean", "%"),
        "coverage90": ("in the 90 % interval", "%"),
        "published": "published MAE",
        "by": "published by",
    }
    rows, sources = [], []
    for name, head in heads.items():
        published = best_published(facts, name)
        if published is not None:
            sources.append(f"{name}: {published.by}, {published.source}.")
        known = (published.mae, published.by) if published else (None, "-")
        errors = head["test_mae"], head.get("single_mae"), head.get("mean_baseline_mae")
        shares = head.get("ratio_to_mean"), head.get("coverage90")
        rows.append((name, head["unit"], *errors, *shares, *known))
    note = "All on the test split, which only the final ensemble sees. "
    note += " ".join(sources) or "The card names no published figure to compare with."
    return make_table("heads", columns, rows, note)


def _best_trial(facts: Facts) -> list[Block]:
    ranked = facts.state.ranked()
    if not ranked:
        return [Text("There is no ensemble yet, and no trial has a result.")]
    best, units = ranked[0], facts.units
    errors = [
        Number(f"val_mae.{head}", f"validation MAE, {head}", mae, units.get(head, ""), best.name)
        for head, mae in best.val_mae.items()
    ]
    objective = Number("objective", "best objective", best.objective, note=best.name)
    note = Text("There is no ensemble yet; these are the validation errors of the best trial.")
    return [note, Numbers(tuple(errors) or (objective,))]


def _counts(facts: Facts) -> Numbers:
    count = facts.state.count
    return Numbers(
        (
            Number("trials", "trials", len(facts.state.trials)),
            Number("completed", "trained to the end", count("completed")),
            Number("stopped", "ended at a rung", count("stopped")),
            Number("failed", "failed", count("failed")),
            Number("open", "running or queued", count("running", "queued")),
        )
    )


def _cost(facts: Facts) -> Numbers:
    figures = facts.figures
    duration = (facts.end or 0.0) - (facts.begin or facts.end or 0.0)
    long, second = time_unit(duration)
    hosts = figures["slot_seconds"] / facts.slots_per_host
    unit, size = cost_unit(hosts)
    return Numbers(
        (
            Number("duration", "duration", duration / second, long, "from the first start"),
            Number("host_time", "host time", hosts / size, f"host {unit}"),
            _energy(figures),
            Number("utilization", "utilization", figures["utilization"], "%", "in training"),
        )
    )


def _energy(figures: RunFigures) -> Number:
    joules, parts = figures.get("energy_joules"), figures.get("energy_parts") or ()
    if joules is None:
        return Number("energy", "energy", None, note="not counted")
    unit, size = ("kWh", JOULES_PER_KWH) if joules >= JOULES_PER_KWH else ("kJ", 1e3)
    return Number("energy", "energy", joules / size, unit, ", ".join(parts))
