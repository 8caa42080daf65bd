"""Rules that every proposal meets: ``model.features % model.options.heads == 0``.

A rule is one expression of names with dots, numbers, texts, ``true`` and ``false``, arithmetic,
comparisons, ``and``, ``or`` and ``not``. Python's parser reads it; what runs is built here, from
these parts only.
"""

import ast
import itertools
import math
import operator
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hydragnn_hpo.config import Scalar, Space
from hydragnn_hpo.errors import ConfigError, unknown
from hydragnn_hpo.search.space import (
    active_parameters,
    fixed_values,
    list_configurations,
    list_values,
    value_at,
)

LONGEST = 500
"""Characters of a rule."""

DRAWS = 5000
"""Random points by which the share of a large space that meets the rules is estimated."""

LEAST_SHARE = 0.01
"""Least share of these points that must meet all rules: brains propose by rejection sampling."""

LISTED = 20_000
"""Most points of a space that is listed completely instead."""

Values = Mapping[str, Any]
Term = Callable[[Values], Any]

ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}

COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}

WORDS = {"true": True, "false": False}


@dataclass(frozen=True)
class Constraint:
    """A rule about searched and fixed values."""

    text: str
    names: tuple[str, ...]
    """Searched keys that it names."""
    fixed: Values
    """Fixed values that it names."""
    term: Term

    def met(self, values: Values) -> bool:
        """Check whether active values meet it; it is met if a key that it names is inactive.

        A division by zero breaks it.

        Raises:
            ConfigError: the rule combines values of different types, such as a text and a number.
        """
        if not all(name in values for name in self.names):
            return True
        try:
            return bool(self.term({**self.fixed, **values}))
        except ZeroDivisionError:
            return False
        except TypeError as error:
            named = ", ".join(f"{name} = {values[name]!r}" for name in self.names)
            raise ConfigError(
                f"search.constraints: '{self.text}' cannot be reckoned with {named} ({error}): "
                "compare texts with texts and numbers with numbers."
            ) from error


def find_broken_constraint(constraints: Sequence[Constraint], values: Values) -> Constraint | None:
    """Return the first rule that active values break, if any."""
    return next((rule for rule in constraints if not rule.met(values)), None)


def read_constraints(
    texts: Sequence[str], space: Space, template: Mapping[str, Any]
) -> tuple[Constraint, ...]:
    """Read the rules of a campaign.

    Args:
        texts: ``search.constraints``.
        space: searched keys.
        template: the values that all trials have in common.

    Returns:
        One rule for each text, in order.

    Raises:
        ConfigError: a text is not a valid rule, or names an unknown key.
    """
    fixed = fixed_values(template)
    return tuple(_constraint(text, space, fixed) for text in texts)


def _constraint(text: str, space: Space, fixed: Values) -> Constraint:
    try:
        if len(text) > LONGEST:
            raise ValueError(f"it has more than {LONGEST} characters")
        body = ast.parse(text.strip(), mode="eval").body
        term = _term(body)
        names = list(dict.fromkeys(_names(body)))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = getattr(error, "msg", None) or str(error) or "it is nested too deeply"
        raise ConfigError(
            f"search.constraints: '{text[:80]}' cannot be read ({reason}): write names, numbers, "
            "+ - * / // %, comparisons, and, or, not."
        ) from error
    for name in names:
        if name not in space and name not in fixed:
            known = unknown("key", name, [*space, *fixed])
            raise ConfigError(f"search.constraints: '{text}' names an {known}")
    searched = tuple(name for name in names if name in space)
    if not searched:
        raise ConfigError(f"search.constraints: '{text}' names no searched key: drop it.")
    constants = {name: fixed[name] for name in names if name not in space}
    return Constraint(text, searched, constants, term)


def _term(node: ast.expr) -> Term:
    """Build the function that evaluates one part of a rule.

    Raises:
        ValueError: rules may not contain such an expression.
    """
    if isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float, str)):
        constant = node.value
        return lambda values: constant
    if isinstance(node, (ast.Name, ast.Attribute)):
        name = _dotted(node)
        if name in WORDS:
            return lambda values: WORDS[name]
        return lambda values: values[name]
    if isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
        return _arithmetic(ARITHMETIC[type(node.op)], _term(node.left), _term(node.right))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.Not)):
        sign = operator.neg if isinstance(node.op, ast.USub) else operator.not_
        inner = _term(node.operand)
        return lambda values: sign(inner(values))
    if isinstance(node, ast.BoolOp):
        terms = [_term(part) for part in node.values]
        every = isinstance(node.op, ast.And)
        return lambda values: (all if every else any)(term(values) for term in terms)
    if isinstance(node, ast.Compare) and all(type(sign) in COMPARISONS for sign in node.ops):
        return _comparison(node)
    raise ValueError(f"'{ast.unparse(node)[:60]}' is none of these")


def _arithmetic(sign: Callable[[Any, Any], Any], left: Term, right: Term) -> Term:
    def reckon(values: Values) -> Any:
        one = left(values)
        other = right(values)
        if isinstance(one, str) or isinstance(other, str):
            raise TypeError("a text is no number")
        return sign(one, other)

    return reckon


def _comparison(node: ast.Compare) -> Term:
    terms = [_term(part) for part in (node.left, *node.comparators)]
    comparisons = [COMPARISONS[type(sign)] for sign in node.ops]

    def compare(values: Values) -> bool:
        sides = [term(values) for term in terms]
        steps = zip(comparisons, sides, sides[1:], strict=False)
        return all(compares(one, other) for compares, one, other in steps)

    return compare


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    raise ValueError(f"'{ast.unparse(node)}' is no name")


def _names(node: ast.AST) -> list[str]:
    if isinstance(node, (ast.Name, ast.Attribute)):
        name = _dotted(node)
        return [] if name in WORDS else [name]
    return [name for child in ast.iter_child_nodes(node) for name in _names(child)]


def check_feasible_share(space: Space, constraints: Sequence[Constraint]) -> None:
    """Raise an error if too few points of a space meet the rules.

    A small space is listed; a large one is sampled at random.

    Raises:
        ConfigError: no point of a small space, or less than one in a hundred of a large one,
            meets all rules; or a rule cannot be evaluated for a value.
    """
    if not constraints:
        return
    listed = _count_points(space) <= LISTED
    points = list(list_configurations(space)) if listed else _draw_values(space)
    meeting = sum(find_broken_constraint(constraints, values) is None for values in points)
    if meeting >= (1 if listed else LEAST_SHARE * len(points)):
        return
    met = {rule.text: sum(rule.met(values) for values in points) for rule in constraints}
    worst = min(met, key=lambda text: met[text])
    raise ConfigError(
        f"search.constraints leave {meeting} of {len(points)} points of the space; the narrowest, "
        f"'{worst}', is met by {met[worst]}: widen it, or search fewer values."
    )


def count_configurations(space: Space, constraints: Sequence[Constraint], most: int) -> int:
    """Count the points of a space that meet all rules, up to a limit.

    Args:
        space: searched keys; one too large to be listed has as many points as the limit.
        constraints: rules that each point meets.
        most: the limit.
    """
    if _count_points(space) > LISTED:
        return most
    listed = list_configurations(space)
    meeting = (v for v in listed if find_broken_constraint(constraints, v) is None)
    return sum(1 for _ in itertools.islice(meeting, most))


def _count_points(space: Space) -> float:
    """Count the points of a space as if all keys were always active."""
    domains = [list_values(parameter) for parameter in space.values()]
    return math.prod(math.inf if values is None else len(values) for values in domains)


def _draw_values(space: Space) -> list[dict[str, Scalar]]:
    generator = random.Random(0)
    return [active_parameters(space, _draw_anywhere(space, generator)) for _ in range(DRAWS)]


def _draw_anywhere(space: Space, generator: random.Random) -> dict[str, Scalar]:
    return {name: value_at(space[name], generator.random()) for name in space}


def complete_configuration(
    space: Space, constraints: Sequence[Constraint], wanted: Values, plain: Values
) -> dict[str, Scalar] | None:
    """Complete some values to an active configuration that meets all rules.

    Args:
        space: searched keys.
        constraints: the rules.
        wanted: values that it must have.
        plain: values of all keys, used for the others if the rules allow it; else those are drawn
            at random, with a fixed seed.

    Returns:
        The configuration; None if none was found.
    """
    generator = random.Random(0)
    values = plain
    for _ in range(DRAWS):
        chosen = active_parameters(space, {**values, **wanted})
        if find_broken_constraint(constraints, chosen) is None:
            return chosen
        values = _draw_anywhere(space, generator)
    return None
