"""An answer as short lines: ``srun --label`` cuts those of more than 1,024 letters (22.05).

Lines of several hosts may also come mixed, so that each says whose it is and where it belongs.
"""

import secrets

MARK = "hpo-doctor"
WIDTH = 800
"""Letters of a piece."""


def cut(text: str) -> list[str]:
    """Give the lines that carry a text which has no line ends."""
    name = secrets.token_hex(6)
    pieces = [text[at : at + WIDTH] for at in range(0, len(text), WIDTH)]
    return [f"{MARK} {name} {k} {len(pieces)} {piece}" for k, piece in enumerate(pieces)]


class Collector:
    """Puts pieces together, whatever else is printed between them."""

    def __init__(self) -> None:
        self._pieces: dict[str, dict[int, str]] = {}

    def hear(self, line: str) -> str | None:
        """Take a line; give the text that it completes."""
        _, found, rest = line.partition(f"{MARK} ")
        words = rest.split(" ", 3)
        if not found or len(words) != 4 or not (words[1].isdigit() and words[2].isdigit()):
            return None
        name, place, count = words[0], int(words[1]), int(words[2])
        pieces = self._pieces.setdefault(name, {})
        pieces[place] = words[3]
        if len(pieces) < count:
            return None
        del self._pieces[name]
        return "".join(pieces[k] for k in sorted(pieces))
