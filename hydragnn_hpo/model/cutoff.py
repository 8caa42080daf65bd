"""Fall smoothly to zero at the cutoff (Law 8)."""

from torch import Tensor


def envelope(lengths: Tensor, cutoff: float) -> Tensor:
    """Fall from 1 at contact to 0 at the cutoff, with two derivatives vanishing there.

    Args:
        lengths: edge lengths in angstrom, [E].
        cutoff: cutoff radius in angstrom, > 0.

    Returns:
        Weight of each edge, dimensionless, [E]; exactly 0 from ``cutoff`` on.

    Source: Gasteiger et al. (2020), arXiv:2003.03123, eq. 8 with p = 6.
    """
    x = (lengths / cutoff).clamp(max=1.0)
    x3 = x * x * x
    x6 = x3 * x3
    return 1.0 - 28.0 * x6 + 48.0 * x6 * x - 21.0 * x6 * x * x
