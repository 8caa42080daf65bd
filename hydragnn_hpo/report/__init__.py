"""Reports, figures, comparisons and exports of campaigns."""

from typing import TYPE_CHECKING

from hydragnn_hpo.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from hydragnn_hpo.report.dashboard import serve_dashboard
    from hydragnn_hpo.report.dataset_figure import draw_dataset
    from hydragnn_hpo.report.evaluation_figures import write_evaluation
    from hydragnn_hpo.report.export_formats import export
    from hydragnn_hpo.report.facts import read_facts
    from hydragnn_hpo.report.gantt import draw_gantt
    from hydragnn_hpo.report.html_report import write_report
    from hydragnn_hpo.report.parity import draw_parity
    from hydragnn_hpo.report.run_progress import RunProgress
    from hydragnn_hpo.report.sections import FIGURES
    from hydragnn_hpo.report.status_view import headline

__all__ = [
    "FIGURES",
    "RunProgress",
    "draw_dataset",
    "draw_gantt",
    "draw_parity",
    "export",
    "headline",
    "read_facts",
    "serve_dashboard",
    "write_evaluation",
    "write_report",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_exports(__name__, __file__)
