"""Degrees of real spherical harmonics and which of them couple, without torch.

Read by ``model.tensor_product`` and ``model.convs.mace``. A feature of degree l has 2l + 1
components; a row of features of all degrees holds degree l from column l^2 on. Parity is natural,
(-1)^l, so that degrees couple only where their sum is even.
"""

MAX_ELL = 3
"""Highest degree that ``model.tensor_product.spherical_harmonics`` computes."""

ORDERS = ((0,), (1, -1, 0), (-2, -1, 0, 1, 2), (-3, -2, -1, 0, 1, 2, 3))
"""Order m of each component: as sin(|m| phi) where negative. Degree 1 is x, y, z."""

Path = tuple[int, int, int]
"""Two degrees and the third that they are coupled to."""


def start(ell: int) -> int:
    """Return the first column of a degree; the number of columns below it."""
    return ell * ell


def paths(left: int, right: int, out: int, *, same: bool = False) -> tuple[Path, ...]:
    """List the couplings of degrees up to ``left`` and ``right``, those to degree 0 first.

    Args:
        left: highest degree of the first factor.
        right: highest degree of the second factor.
        out: highest degree of the product.
        same: both factors are the same features, so that their order does not matter.
    """
    return tuple(
        (one, two, three)
        for three in range(out + 1)
        for one in range(left + 1)
        for two in range(one if same else 0, right + 1)
        if abs(one - two) <= three <= one + two and (one + two + three) % 2 == 0
    )


def pairs(coupled: tuple[Path, ...], *, same: bool = False) -> tuple[tuple[int, int], ...]:
    """List the columns of both factors whose products the couplings need.

    Three harmonics couple where an even number of their orders is negative and one of the orders
    is the sum of the others, up to signs.
    """
    found = set()
    for one, two, three in coupled:
        for a, first in enumerate(ORDERS[one]):
            for b, second in enumerate(ORDERS[two]):
                if any(_meet(first, second, third) for third in ORDERS[three]):
                    columns = (start(one) + a, start(two) + b)
                    found.add((min(columns), max(columns)) if same else columns)
    return tuple(sorted(found))


def _meet(first: int, second: int, third: int) -> bool:
    low, middle, high = sorted(map(abs, (first, second, third)))
    return low + middle == high and sum(m < 0 for m in (first, second, third)) % 2 == 0
