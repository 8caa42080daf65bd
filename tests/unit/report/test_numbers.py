"""The headline is that of the raw lines; every other number is that of the room it comes from."""

import itertools
import statistics
from html.parser import HTMLParser

import numpy as np
import pytest
from made_campaign import made_structures, make_campaign
from safetensors.numpy import load_file
from unit.report.independent import (
    events_of,
    headline,
    progress,
    size_of,
    slot_seconds,
    training_seconds,
)

from hydragnn_hpo.report.charts import readable_name
from hydragnn_hpo.report.facts import read_facts
from hydragnn_hpo.report.html_report import make_sections
from hydragnn_hpo.report.importance import analyse_importance
from hydragnn_hpo.report.observations import list_targets, observe_trials
from hydragnn_hpo.report.page import render_section
from hydragnn_hpo.report.sections import SECTIONS
from hydragnn_hpo.report.sections.slots import LABELS

WISHES = {
    "plain": {},
    "several goals": {
        **{"objective": ["val_mae.gap", "train_seconds"], "trials": 36},
        **{"controllers": 2, "reseed": 2, "seed": 3},
    },
    "unfinished": {"finished": False, "controllers": 2, "reseed": 2, "seed": 4},
    "peaceful": {"hosts": 2, "slots": 1, "trials": 9, "failures": False, "energy": False},
}


class Numbers(HTMLParser):
    """Collects what stands in ``<data>``."""

    def __init__(self):
        super().__init__()
        self.values = {}

    def handle_starttag(self, tag, attrs):
        if tag == "data":
            known = dict(attrs)
            assert known["data-key"] not in self.values, f"{known['data-key']} stands there twice"
            self.values[known["data-key"]] = float(known["value"])


def numbers_of(run, makers):
    """Return the numbers of all sections by key, and the sections that are there."""
    parser = Numbers()
    sections = make_sections(read_facts(run), makers)
    for section in sections:
        html = render_section(section).html
        assert "could not be made" not in html
        parser.feed(html)
    return parser.values, [section.key for section in sections]


def assert_headline(run, values):
    """Compare with what is counted from the lines of the journal alone."""
    expected = {f"headline.{key}": value for key, value in headline(run.path).items()}
    expected |= {f"progress.{key}": value for key, value in progress(run.path).items()}
    assert {key: values.get(key) for key in expected} == pytest.approx(expected, rel=1e-6)


def assert_of_rooms(run, values):
    """Compare with the table of the ensemble, the importances, and the slot-seconds by cause."""
    facts = read_facts(run)
    shares = facts.losses.shares
    lost = {cause: values[f"slots.causes.{LABELS.get(cause, cause)}.share"] for cause in shares}
    assert lost == pytest.approx(shares)
    heads = facts.ensemble["heads"] if facts.ensemble else {}
    for name, head_scores in heads.items():
        scores = {
            k.split(".")[-1]: v
            for k, v in values.items()
            if k.startswith(f"heads.scores.{readable_name(name)}.")
        }
        assert len(scores) > 10
        assert scores == pytest.approx({figure: head_scores[figure] for figure in scores})
        row = {
            k.split(".")[-1]: v
            for k, v in values.items()
            if k.startswith(f"headline.heads.{readable_name(name)}.")
        }
        wanted = {
            "ensemble": head_scores["test_mae"],
            "single": head_scores["single_mae"],
            "baseline": head_scores["mean_baseline_mae"],
            "ratio": head_scores["ratio_to_mean"],
            "coverage90": head_scores["coverage90"],
        }
        assert row == pytest.approx(wanted | ({"published": 0.07} if name == "gap" else {}))
    if heads:
        assert_of_members(events_of(run.path), facts.ensemble, values)
    total = facts.losses.slot_seconds
    assert values["slots.slot_time"] == pytest.approx(total / size_of(total))
    assert values["slots.largest"] == max(s for c, s in shares.items() if c != "training")
    rows = observe_trials(facts)
    targets = list_targets(rows, facts.config.search.objective)
    importance = analyse_importance(facts.config, rows, next(t for t in targets if t.key == "cost"))
    assert values["importance.trust.cost.trials"] == importance.trials
    assert values["importance.trust.cost.r2"] == pytest.approx(importance.skill)
    for name, effect in importance.effects.items():
        row = {
            k.split(".")[-1]: v
            for k, v in values.items()
            if k.startswith(f"importance.cost.{name}.")
        }
        assert row == pytest.approx({figure: getattr(effect, figure) for figure in row})
    if facts.structure_errors is not None:
        assert_of_structures(facts, values)


def assert_of_structures(facts, values):
    """Compare with the arrays of the ensemble: the largest errors, and errors by element."""
    arrays = load_file(facts.run.report / "test_predictions.safetensors")
    numbers = made_structures({}).numbers
    for head in facts.ensemble["heads"]:
        error = np.abs(arrays[f"{head}/truth"] - arrays[f"{head}/mean"])[:, 0]
        worst = [values[f"worst.rows.{head}.{rank}.error"] for rank in range(1, 9)]
        assert worst == pytest.approx(sorted(error, reverse=True)[:8])
        per_group = error.reshape(20, -1)
        shares = per_group.sum(axis=1) / error.sum()
        first = [
            v
            for k, v in values.items()
            if k.startswith(f"worst.groups.{head}.") and k.endswith(".share")
        ]
        assert first == pytest.approx(sorted(shares, reverse=True)[:8])
        of_atom = error if len(error) == 600 else np.repeat(error, 3)
        hydrogen = of_atom[numbers == 1].mean()
        assert values[f"errors.by_element.H.mae.{head}"] == pytest.approx(hydrogen)
        assert values[f"errors.by_size.3.mae.{head}"] == pytest.approx(error.mean())
        if head == "gap":
            assert values["worst.twins.1.error"] == pytest.approx(error[4])
            assert values["worst.twins.1.difference"] == 3.0
        distance = arrays[f"{head}/distance"][:, 0]
        assert values[f"worst.rows.{head}.1.distance"] == distance[error.argmax()]
        tenth = np.sort(distance)[: len(distance) // 10]
        label = f"{tenth[0]:.3g} to {tenth[-1]:.3g}"
        near = error[np.isin(distance, tenth)].mean()
        assert values[f"errors.by_distance.{label}.mae.{head}"] == pytest.approx(near)


def assert_of_members(events, table, values):
    """Compare members with the journal, and what they gain with the matrix of their errors."""
    sizes = {e["trial"]: e["parameters"] for e in events if e.get("parameters")}
    sel = {one["trial"]: one["sel_mae"] for one in table["candidates"]}
    for member in table["members"]:
        name = member["trial"]
        row = f"members.members.{member['trial']}"
        assert values[f"{row}.weight"] == pytest.approx(member["weight"])
        assert values[f"{row}.parameters"] == sizes[name]
        assert values[f"{row}.objective"] == pytest.approx(member["objective"])
        for head in table["heads"]:
            errors = f"members.member_errors.{name}"
            assert values[f"{errors}.val_mae.{head}"] == pytest.approx(member["val_mae"][head])
            assert values[f"{errors}.sel_mae.{head}"] == pytest.approx(sel[name][head])
    for head, seen in table["diversity"].items():
        row = f"members.alike.{readable_name(head)}"
        error = seen["mean_member_mse"]
        pairs = itertools.permutations(range(len(seen["members"])), 2)
        mean = statistics.fmean(seen["correlation"][a][b] for a, b in pairs)
        assert values[f"{row}.mean_correlation"] == pytest.approx(mean)
        assert values[f"{row}.member_rmse"] == pytest.approx(error**0.5)
        assert values[f"{row}.rmse"] == pytest.approx(seen["mse"] ** 0.5)
        assert values[f"{row}.ambiguity"] == pytest.approx(error - seen["mse"])
        assert values[f"{row}.gained"] == pytest.approx(1.0 - seen["mse"] / error)
    for method, split in itertools.product(table["by_size"], ("sel", "test")):
        for size in table["by_size"][method]:
            for head, error in (size[f"{split}_mae"] or {}).items():
                key = f"members.by_size.{size['members']}.{method}_{split}.{head}"
                assert values[key] == pytest.approx(error)


@pytest.mark.parametrize("wishes", WISHES.values(), ids=WISHES)
def test_every_number_of_the_report(wishes, tmp_path):
    run = make_campaign(tmp_path / "run", **wishes)
    values, sections = numbers_of(run, SECTIONS)
    assert_headline(run, values)
    assert_of_rooms(run, values)
    absent = {"heads", "worst", "errors"} if "finished" in wishes else set()
    assert set(sections) == set(SECTIONS) - absent
    assert len(values) > 150


def test_training_is_the_share_of_all_epochs(tmp_path):
    run = make_campaign(tmp_path / "run", **WISHES["peaceful"])
    values, _ = numbers_of(run, {"headline": SECTIONS["headline"]})
    events = events_of(run.path)
    share = training_seconds(events) / slot_seconds(events)
    assert values["headline.utilization"] == pytest.approx(share, rel=1e-6)


def test_every_number_whenever_the_journal_is_read(tmp_path):
    run = make_campaign(tmp_path / "run", trials=24)
    lines = run.journal.read_bytes().splitlines(keepends=True)
    (run.report / "ensemble.json").unlink()
    makers = {key: make for key, make in SECTIONS.items() if key not in ("importance", "slices")}
    for share in (0.8, 0.5, 0.2):
        run.journal.write_bytes(b"".join(lines[: int(share * len(lines))]))
        assert_headline(run, numbers_of(run, makers)[0])
