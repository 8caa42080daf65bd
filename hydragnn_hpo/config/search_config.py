"""What a campaign searches and how. Read by ``search`` and ``campaign``."""

from typing import Annotated, Any, Literal, Self

from annotated_types import Len
from pydantic import Field, PositiveFloat, PositiveInt, field_validator, model_validator

from hydragnn_hpo.config.schema import Config
from hydragnn_hpo.sanitize import quote

Scalar = bool | int | float | str

Epochs = Annotated[int, Field(gt=0, le=10**7)]
"""A number of epochs."""

MAX_STEPS = 100_000
"""Most values of a range with a step: they are listed."""


class ParameterConfig(Config):
    """One searched key of the trial. Read by ``search.space``."""

    choices: tuple[Scalar, ...] | None = None
    """Values to choose from, unordered."""

    low: Annotated[int | float, Field(ge=-1e15, le=1e15)] | None = None
    """Smallest value of a range; integers make an integer range."""

    high: Annotated[int | float, Field(ge=-1e15, le=1e15)] | None = None
    """Largest value of a range."""

    log: bool = False
    """Search the range on a logarithmic scale."""

    step: Annotated[int | float, Field(gt=0)] | None = None
    """Distance between neighbouring values of a range, counted from ``low``."""

    prior: Scalar | None = None
    """Value that is believed to be good: the brain ``gp`` begins around it, and trusts it less with
    each result."""

    when: dict[str, Scalar | tuple[Scalar, ...]] = {}
    """Search this key only if each key named here has the given value, or one of those given."""

    @model_validator(mode="before")
    @classmethod
    def _list_is_choices(cls, value: Any) -> Any:
        if isinstance(value, Scalar):
            raise ValueError(
                f"is {value!r:.60}: name choices, as [ 2, 4 ], or a range, as "
                "{ low = 1, high = 6 }; a fixed value stands in [trial]."
            )
        return {"choices": value} if isinstance(value, (list, tuple)) else value

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        ranged = self.low is not None and self.high is not None
        range_keys = (self.low, self.high, self.step, self.log or None)
        mixed = self.choices is not None and any(key is not None for key in range_keys)
        if mixed or (self.choices is None and not ranged):
            raise ValueError("give either choices, or low and high (with log or step).")
        if self.choices == ():
            raise ValueError("choices are empty: name at least one.")
        if self.choices and len(set(map(repr, self.choices))) < len(self.choices):
            raise ValueError("choices repeat a value: name each once.")
        if ranged:
            self._range_is_right()
        if self.prior is not None:
            self._prior_is_inside()
        return self

    def _prior_is_inside(self) -> None:
        if self.choices is not None:
            inside = self.prior in self.choices
        else:
            number = isinstance(self.prior, int | float) and not isinstance(self.prior, bool)
            inside = number and self.low <= self.prior <= self.high  # type: ignore[operator]
        if not inside:
            raise ValueError(f"prior {self.prior!r} is outside: name a value of the key.")

    def _range_is_right(self) -> None:
        assert self.low is not None
        assert self.high is not None
        if self.low >= self.high:
            raise ValueError(f"low {self.low:g} is not below high {self.high:g}.")
        if self.log and self.low <= 0:
            raise ValueError(f"a log range needs low > 0, found {self.low:g}.")
        if self.log and self.step:
            raise ValueError("a range has either log or step: drop one.")
        if self.step and (self.high - self.low) / self.step > MAX_STEPS:
            raise ValueError(
                f"a step of {self.step:g} makes more than {MAX_STEPS} values: enlarge or drop it."
            )

    @property
    def integer(self) -> bool:
        """Whether the range holds integers."""
        return isinstance(self.low, int) and isinstance(self.high, int)


Space = Annotated[dict[str, ParameterConfig], Len(1, 200)]
"""Searched keys of the trial (``model.features``) and their ranges."""


Goal = str | Annotated[dict[str, PositiveFloat], Len(1)]
"""One number to minimize: a name in a trial's result, or weights of heads."""

Objective = Goal | Annotated[tuple[Goal, ...], Len(2)]
"""What is minimized: one goal, or several whose Pareto front is kept."""


class SearchConfig(Config):
    """The search. Read by ``search`` and ``campaign``."""

    brain: Literal["gp", "deephyper", "optuna", "random", "sobol"] = "gp"
    """Algorithm that proposes trials. ``gp``: a Gaussian process that learns from all rungs.
    ``deephyper`` and ``optuna``: these libraries, told the first rung. ``random`` and ``sobol``
    learn nothing."""

    trials: Annotated[int, Field(gt=0, le=10**6)]
    """Total number of trials."""

    initial: Annotated[int, Field(ge=0, le=10**5)] = 6
    """Number of trials spread over the space before the brain learns from results, beside
    ``initial_points``; those that fail count, too, once two have succeeded."""

    initial_points: Annotated[tuple[dict[str, Scalar], ...], Len(0, 1000)] = ()
    """Configurations to try before all others, in this order: tables of searched keys and values.
    Active keys that a table leaves out take the middle of their range or their first choice. They
    count as trials, and the brain learns from them. Those outside of ``[space]`` are left out, with
    a warning."""

    constraints: Annotated[tuple[str, ...], Len(0, 100)] = ()
    """Conditions on every proposal, such as ``"model.features % model.options.heads == 0"``. They
    may contain keys of the space or of ``[trial]``, numbers, strings, ``+ - * / // %``,
    comparisons, ``and``, ``or`` and ``not``. A condition on an inactive key counts as met."""

    objective: Objective = "weighted"
    """What is minimized. ``weighted``: the mean of the heads' validation MAEs by their ``weight``,
    in units of each target's standard deviation. ``val_mae.HEAD`` or another number of
    ``result.json``, such as ``parameters`` or ``train_seconds``. A table of weights by head, in
    the same units as ``weighted``. With a list of these the Pareto front is kept, and stopping
    rules use the first."""

    warm_start: Annotated[tuple[str, ...], Len(0, 1000)] = ()
    """Run directories of earlier campaigns whose results the brain learns from."""

    rungs: Annotated[tuple[Epochs, ...], Len(1, 50)]
    """Epochs of a trial up to each rung, ascending; the last is the full budget."""

    reduction: Annotated[int, Field(ge=2)] = 3
    """One in this many of a rung's trials is promoted to the next rung."""

    promotion: Literal["asynchronous", "together"] = "asynchronous"
    """When trials are promoted. ``asynchronous``: as soon as they are among the best of their rung
    so far, the very best at once. ``together``: when all trials have reached the rung."""

    stop_rule: Literal["none", "median", "curve"] = "none"
    """Rule that stops a trial before its rung. ``median``: its best objective is worse than the
    median of the others' running averages. ``curve``: its learning curve, extrapolated to the
    rung, is worse than at least ``finalists`` other trials."""

    grace: PositiveInt = 5
    """Number of epochs before a stopping rule may stop a trial."""

    finalists: PositiveInt = 6
    """Least number of trials to train to the full budget: the candidates for the ensemble."""

    max_failures: PositiveInt = 3
    """End the campaign after this many trials failed with reason ``bug`` and the same last line."""

    max_restarts: PositiveInt = 5
    """Number of interruptions without progress after which a trial counts as failed."""

    @field_validator("objective", mode="before")
    @classmethod
    def _goals_are_right(cls, value: Any) -> Any:
        parts = value if isinstance(value, (list, tuple)) else [value]
        for part in parts:
            if not _is_goal(part):
                raise ValueError(
                    f"{quote(str(part))} is no goal: name a number of a trial's result, or give "
                    "heads weights above 0."
                )
        if not parts:
            raise ValueError("is an empty list: name at least one goal, or leave it out.")
        return parts if len(parts) > 1 else parts[0]

    @model_validator(mode="after")
    def _rungs_rise(self) -> Self:
        if list(self.rungs) != sorted(set(self.rungs)):
            raise ValueError(f"search.rungs {list(self.rungs)} must rise; write them in order.")
        if self.finalists > self.trials:
            raise ValueError(
                f"search.finalists is {self.finalists}, search.trials {self.trials}: "
                "ask for fewer finalists or more trials."
            )
        return self


def _is_goal(part: Any) -> bool:
    if isinstance(part, dict):
        numbers = [isinstance(w, (int, float)) and w > 0 for w in part.values()]
        return bool(numbers) and all(numbers)
    return isinstance(part, str) and bool(part)
