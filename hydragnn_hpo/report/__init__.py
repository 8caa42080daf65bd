"""Reports, figures, comparisons and exports of campaigns."""

from typing import TYPE_CHECKING

from hydragnn_hpo.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from hydragnn_hpo.report.best_config import BestTrial, make_paths_absolute, read_best_trial
    from hydragnn_hpo.report.compare import (
        RunComparison,
        RunTable,
        compare_runs,
        read_campaigns,
        tabulate_comparison,
    )
    from hydragnn_hpo.report.dashboard import serve_dashboard
    from hydragnn_hpo.report.dataset_figure import draw_dataset
    from hydragnn_hpo.report.evaluation_figures import write_evaluation
    from hydragnn_hpo.report.export_formats import export
    from hydragnn_hpo.report.export_tables import make_run_frame
    from hydragnn_hpo.report.facts import Facts, read_facts
    from hydragnn_hpo.report.gantt import Chart, draw_gantt
    from hydragnn_hpo.report.html_report import write_report
    from hydragnn_hpo.report.importance import (
        METHODS,
        Importance,
        analyse_importance,
    )
    from hydragnn_hpo.report.observations import choose_targets, observe_trials
    from hydragnn_hpo.report.page_blocks import Cell
    from hydragnn_hpo.report.parity import draw_parity
    from hydragnn_hpo.report.plotly_figures import FIGURES, make_plotly_figure

__all__ = [
    "BestTrial",
    "Cell",
    "Chart",
    "FIGURES",
    "Facts",
    "Importance",
    "METHODS",
    "RunComparison",
    "RunTable",
    "analyse_importance",
    "choose_targets",
    "compare_runs",
    "draw_dataset",
    "draw_gantt",
    "draw_parity",
    "export",
    "make_paths_absolute",
    "make_plotly_figure",
    "make_run_frame",
    "observe_trials",
    "read_best_trial",
    "read_campaigns",
    "read_facts",
    "serve_dashboard",
    "tabulate_comparison",
    "write_evaluation",
    "write_report",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_exports(__name__, __file__)
