"""What a trial costs: seconds per epoch and memory at every width, chance of failure."""

from hydragnn_hpo.placement.cost.hindsight import Comparison, compare, typical_error
from hydragnn_hpo.placement.cost.model import CostModel
from hydragnn_hpo.placement.cost.price import Price

__all__ = ["Comparison", "CostModel", "Price", "compare", "typical_error"]
