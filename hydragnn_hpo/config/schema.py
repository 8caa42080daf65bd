"""What every config is: frozen, strict, documented field by field."""

from pydantic import BaseModel, ConfigDict


class Config(BaseModel):
    """A frozen settings object; unknown keys are errors."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        validate_default=True,
        allow_inf_nan=False,
    )
