"""Choose how a model is spread over the ranks of its trial."""

from hydragnn_hpo.config.parallel import ParallelConfig
from hydragnn_hpo.model.gnn import MultiHeadGNN
from hydragnn_hpo.training.ranks.ddp import Ranks
from hydragnn_hpo.training.ranks.parallel import Copied, Parallel
from hydragnn_hpo.training.ranks.recompute import recompute_rounds


def spread(model: MultiHeadGNN, config: ParallelConfig, ranks: Ranks) -> Parallel:
    """Spread a model over the ranks; every rank calls this with the same weights.

    Raises:
        ConfigError: a user's conv has a parameter that cannot be sharded.
    """
    if config.recompute:
        recompute_rounds(model.trunk)
    if config.is_sharded(ranks.world):
        # torch's sharding takes half a second to import, and most trials have none.
        from hydragnn_hpo.training.ranks.sharded import Sharded

        return Sharded(model, config, ranks)
    return Copied(model, config, ranks) if ranks.world > 1 else Parallel(model, config, ranks)
