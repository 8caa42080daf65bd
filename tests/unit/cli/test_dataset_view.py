"""What ``dataset info`` says about the numbers of a target."""

from typing import get_args

import pytest

from hydragnn_hpo.cli.dataset_command import SUMMARIZED
from hydragnn_hpo.config.data_config import TargetConfig


def test_every_shape_has_its_words():
    shapes = get_args(TargetConfig.model_fields["shape"].annotation)
    assert set(SUMMARIZED) == set(shapes)


@pytest.mark.parametrize("shape", ["spectrum", "class"])
def test_what_does_not_turn_has_no_norm(shape):
    assert "norm" not in SUMMARIZED[shape]
