"""Every conv in CONVS, with every choice of its options, faces ``hydragnn_hpo.testing``."""

from dataclasses import replace

import pytest
import torch

from hydragnn_hpo.config.convs import CONV_SPECS, search_ranges
from hydragnn_hpo.model.convs import CONVS
from hydragnn_hpo.testing import CHECKS, check_conv
from hydragnn_hpo.testing.check_report import Measurement
from hydragnn_hpo.testing.conv_suite import run_check
from hydragnn_hpo.testing.conv_under_test import make_conv_under_test
from hydragnn_hpo.testing.sample_structures import batch_structures, molecule_and_crystal

SLOW = {"compile", "export"}
COMPILED = ("schnet", "painn")
"""Beside those that cannot be exported: torch traces a conv alike for both, for half a minute."""
ASKED = [pytest.param(c, marks=pytest.mark.slow) if c in SLOW else c for c in CHECKS]


COMPILED_LOOPS = ("alignn", "et", "mace", "painn", "pna", "pnaeq", "pnaplus", "schnet")
"""Convs that send by the passes of ``model.kernels``; the others compute the same with any."""


@pytest.fixture(
    scope="module",
    params=[*((conv, "eager") for conv in CONVS), *((conv, "numba") for conv in COMPILED_LOOPS)],
    ids=lambda given: "-".join(given),
)
def subject(request):
    conv, kernels = request.param
    return make_conv_under_test(conv, kernels=kernels)


def test_every_conv_has_a_spec_and_every_spec_a_conv():
    assert list(CONVS) == list(CONV_SPECS)


@pytest.mark.parametrize("check", ASKED)
def test_it_obeys(subject, check):
    if check == "compile" and subject.exports and subject.name not in COMPILED:
        pytest.skip("its export is traced; compilers are asked about two of these.")
    finding = run_check(CHECKS[check], subject)
    assert not finding.failed, finding.sentence


def test_only_a_named_flag_leaves_a_check_out(subject):
    spec, conv = CONV_SPECS[subject.name], CONVS[subject.name]
    flags = {"": True, "forces": spec.forces, "exports": getattr(conv, "exports", True)}
    expected = {name for name, check in CHECKS.items() if not flags[check.needs]}
    results = {
        name: run_check(replace(check, measure=lambda _: Measurement(0.0, 1.0)), subject).result
        for name, check in CHECKS.items()
    }
    assert {name for name, result in results.items() if result == "left out"} == expected


def test_slopes_are_the_same_whether_or_not_they_are_differentiated_again(subject):
    """A backward pass that needs no second one takes quicker ways, which no check above sees."""
    net, batch = subject.build(), batch_structures(molecule_and_crystal())
    quick, slow = (
        torch.autograd.grad(
            sum(values.square().sum() for values in net(batch).values()),
            list(net.parameters()),
            create_graph=again,
        )
        for again in (False, True)
    )
    torch.testing.assert_close(quick, slow, rtol=1e-9, atol=1e-11)


def choices():
    """Give every conv with each choice of each option that is a choice."""
    for conv, spec in CONV_SPECS.items():
        for option, found in search_ranges(spec.options).items():
            for value in found.choices or ():
                if value != getattr(spec.options(), option):
                    yield pytest.param(conv, {option: value}, id=f"{conv}-{option}-{value}")


@pytest.mark.slow
@pytest.mark.parametrize(("conv", "options"), list(choices()))
def test_it_obeys_with_each_choice_of_its_options(conv, options):
    report = check_conv(conv, options, only=set(CHECKS) - SLOW)
    assert [finding.sentence for finding in report.failures] == []
