"""Every conv by its name."""

import pytest

from hydragnn_hpo.config.convs import CONV_SPECS


@pytest.fixture(params=list(CONV_SPECS))
def conv(request):
    return request.param
