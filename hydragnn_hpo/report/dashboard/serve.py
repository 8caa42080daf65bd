"""Serve the dashboard of a run on this computer alone, until Ctrl-C."""

from collections.abc import Callable

from hydragnn_hpo.layout import RunDir
from hydragnn_hpo.report.dashboard.app import Desk
from hydragnn_hpo.report.dashboard.board import Board
from hydragnn_hpo.report.dashboard.gate import Keys
from hydragnn_hpo.report.sections.contents import SECTIONS
from hydragnn_hpo.web.listening import listen, serve_on

ADDRESS = "127.0.0.1"
"""Nobody else gets in (Law 10); a tunnel brings it to another computer."""

GRACE_SECONDS = 1.0


def serve_dashboard(run: RunDir, port: int, told: Callable[[str, int], None]) -> None:
    """Serve until SIGINT or SIGTERM.

    Args:
        run: the run directory; nothing in it is written.
        port: to listen on; 0 takes a free one.
        told: called with each new link and the port.

    Raises:
        RunError: the directory holds no campaign.
        ConfigError: the port is taken.
    """
    board = Board(run, SECTIONS)
    with listen(ADDRESS, port) as opened:
        taken = opened.getsockname()[1]

        def tell(key: str) -> None:
            told(f"http://{ADDRESS}:{taken}/enter?key={key}", taken)

        desk = Desk(board, Keys(taken, tell))
        serve_on(opened, desk.app(), grace=GRACE_SECONDS, stopping=desk.stop)
