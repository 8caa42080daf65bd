"""A plan in words and as JSON, of forecasts made by hand."""

from dataclasses import replace
from types import SimpleNamespace

from made_forecast import make_forecast

from hydragnn_hpo.cli.plan_report import report_lines, report_plain
from hydragnn_hpo.planning import CampaignPlan, FeaturesPrice
from hydragnn_hpo.planning.simulator import Bar


def planned(result):
    search = SimpleNamespace(rungs=(1, 4), finalists=2)
    config = SimpleNamespace(name="mine", search=search)
    features = (FeaturesPrice("CHGNet 0.3.0", 120.0, 24_000_000, "measured on 50 structures"),)
    return CampaignPlan(config, "a store", result, features)


def test_what_a_person_reads():
    assert list(report_lines(planned(make_forecast(tail=0.05)))) == [
        "mine: 8 trials, epochs 1 -> 4, 2 finalists",
        "machine      frontier: 10 hosts of 8 slots",
        "data         a store",
        "first        features of CHGNet 0.3.0: 2.0 min on one slot (measured on 50 structures), "
        "24 MB on disk",
        "takes        60.0 min, 10 host-hours",
        "useful       86 % of slot-time is work that one rank would have, too",
        "slot-time      95 %  training and validation",
        "              5.0 %  idle, nothing is left to start",
        "attempts     8 x 1 rank; 1 restart for a better width",
        "longest      t0000: 30.0 min on as many ranks as are efficient",
        "trust        prices follow what ran before",
    ]


def test_the_fits_of_the_learning_curve_have_a_line_of_their_own():
    """Two of the eight pieces of work are fits, of half an hour each on one rank."""
    result = replace(make_forecast(), curve=frozenset({"t0006", "t0007"}))
    lines = list(report_lines(planned(result)))
    assert lines[0] == "mine: 6 trials, epochs 1 -> 4, 2 finalists"
    assert lines[4] == (
        "then         2 fits of the best trial for the learning curve, to epoch 4: 60.0 min on one "
        "slot"
    )
    report = report_plain(planned(result))["forecast"]
    assert (report["trials"], report["curve_fits"]) == (6, 2)


def test_many_widths_are_written_in_short():
    result = make_forecast()
    bars = tuple(
        Bar(work.name, tuple("abcdefgh"[: 1 + n]), 0.0, 1.0, "training")
        for n, work in enumerate(result.works)
    )
    lines = list(
        report_lines(planned(replace(result, simulated=replace(result.simulated, bars=bars))))
    )
    line = next(line for line in lines if line.startswith("attempts"))
    assert "8, of 1 to 8 ranks, half of them up to 5" in line
