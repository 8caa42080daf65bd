"""Worker process of a build: converts the pieces whose numbers it reads from stdin."""

import json
import os
import queue
import sys
import threading
import traceback
from pathlib import Path
from typing import Any, TextIO

from hydragnn_hpo.data.build_plan import BuildPlan, parse_plan
from hydragnn_hpo.data.convert_pieces import finish_piece
from hydragnn_hpo.errors import HydraError
from hydragnn_hpo.files import read_json

_TELL_EVERY = 32
"""Structures between two messages."""


def main() -> None:
    """Convert pieces until stdin ends."""
    answers = _own_stdout()
    wishes: queue.SimpleQueue[int] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(wishes,), daemon=True).start()
    file = Path(sys.argv[1])
    plan = parse_plan(read_json(file))
    while True:
        answer = _answer(plan, wishes.get(), file.parent, answers)
        _say(answers, answer)


def _answer(plan: BuildPlan, number: int, work: Path, answers: TextIO) -> dict[str, Any]:
    """Finish a piece and say how it went."""
    untold = 0

    def tell(more: int) -> None:
        nonlocal untold
        untold += more
        if untold >= _TELL_EVERY:
            _say(answers, {"told": untold})
            untold = 0

    try:
        finish_piece(plan, number, work, tell)
    except HydraError as error:
        return {"failed": type(error).__name__, "sentence": str(error)}
    except Exception:  # a bug: the parent shows it and ends
        return {"bug": traceback.format_exc()}
    if untold:
        _say(answers, {"told": untold})
    return {"done": number}


def _own_stdout() -> TextIO:
    """Keep stdout for messages; what libraries print goes to stderr."""
    own = os.dup(1)
    os.dup2(2, 1)
    return os.fdopen(own, "w", encoding="utf-8")


def _say(answers: TextIO, message: dict[str, Any]) -> None:
    try:
        answers.write(json.dumps(message) + "\n")
        answers.flush()
    except BrokenPipeError:  # the parent is gone, and `_listen` has not seen it yet
        os._exit(0)


def _listen(wishes: "queue.SimpleQueue[int]") -> None:
    """Pass wishes on; end at once when the parent is gone, whatever is being done."""
    for line in sys.stdin:
        wishes.put(int(line))
    os._exit(0)


if __name__ == "__main__":
    main()
