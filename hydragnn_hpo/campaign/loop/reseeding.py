"""The best trials once more, with new seeds: members for an ensemble, no search.

Source: Wenzel et al. (2020), Hyperparameter ensembles for robustness and uncertainty
quantification, NeurIPS 33: varying seeds beside hyperparameters.
"""

from hydragnn_hpo.campaign.loop.book import Book
from hydragnn_hpo.campaign.loop.proposals import Proposals
from hydragnn_hpo.campaign.state import State, Trial
from hydragnn_hpo.errors import RunError


class Reseeding:
    """Proposes them once the search is over, to the full budget at once."""

    def __init__(self, wanted: int, book: Book, proposals: Proposals) -> None:
        """Know how many of the best the campaign itself wants to be trained again."""
        self.wanted, self.book, self.proposals = wanted, book, proposals

    @property
    def missing(self) -> list[Trial]:
        """Give the trials that are to be trained again and are not yet, best first.

        A person who ended the campaign early wants no more of it, unless they ask.
        """
        state = self.book.state
        wanted = max(0 if state.ending else self.wanted, state.reseed)
        return to_reseed(state, wanted) if wanted else []

    def ask(self, count: int) -> None:
        """Note that a person wants the best trained again: whoever goes on knows it.

        Raises:
            RunError: the search goes on, or nothing came to its end.
        """
        state, where = self.book.state, self.book.path.parent
        if not (state.closed or state.ending):
            raise RunError(
                f"{where}: its search is not over, so the best are not known yet: let it end, or "
                "set ensemble.reseed in the campaign file."
            )
        if not any(trial.status == "completed" for trial in state.trials.values()):
            raise RunError(f"{where}: no trial was trained to the full budget: none can be best.")
        self.book.note("reseed", count=count)

    def turn(self) -> None:
        """Propose what is missing."""
        for trial in self.missing:
            self.proposals.propose(dict(trial.values), parent=trial.name)


def to_reseed(state: State, wanted: int) -> list[Trial]:
    """Give those of the best completed trials of a search that nobody trained again.

    Args:
        state: the campaign's.
        wanted: how many of the best are to be trained again.

    Returns:
        Best first, by the objective that members are chosen by; none before the search is over
        and all rest.
    """
    if not (state.closed or state.ending) or state.count("queued", "running"):
        return []
    done = [t for t in state.with_status("completed") if t.parent is None]
    scored = [(t.objective, t.name) for t in done if t.objective is not None]
    best = [state.trials[name] for _, name in sorted(scored)[:wanted]]
    return [trial for trial in best if trial.name not in state.reseeded]
