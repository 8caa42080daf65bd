"""Every conv in CONVS, with every choice of its options, faces ``hydragnn_hpo.testing``."""

from dataclasses import replace

import pytest
import torch

from hydragnn_hpo.config.convs import CONV_SPECS, search_ranges
from hydragnn_hpo.model.convs import CONVS
from hydragnn_hpo.testing import check_conv
from hydragnn_hpo.testing.check_report import Measurement
from hydragnn_hpo.testing.conv_suite import CHECKS, run_check
from hydragnn_hpo.testing.conv_under_test import make_conv_under_test
from hydragnn_hpo.testing.sample_structures import batch_structures, molecule_and_crystal

COMPILED = ("schnet", "painn", "alignn", "dimenetpp", "mfc")
"""Those that cannot be exported, and two more: torch traces a conv alike for both, for a minute."""


@pytest.fixture(
    params=[
        *(pytest.param((conv, "auto"), id=conv) for conv in CONVS),
        *(
            pytest.param((conv, "eager"), id=f"{conv}-eager", marks=pytest.mark.stress)
            for conv in CONVS
        ),
    ]
)
def subject(request):
    """A conv with the kernels that it has by default on a CPU, or with those of torch."""
    conv, kernels = request.param
    return make_conv_under_test(conv, kernels=kernels)


def test_every_conv_has_a_spec_and_every_spec_a_conv():
    assert list(CONVS) == list(CONV_SPECS)


def test_it_obeys_every_law(subject):
    findings = [run_check(check, subject) for name, check in CHECKS.items() if name != "compile"]
    assert [finding.sentence for finding in findings if finding.failed] == []


@pytest.mark.stress
@pytest.mark.parametrize("conv", COMPILED)
def test_compiled_code_gives_the_same(conv):
    finding = run_check(CHECKS["compile"], make_conv_under_test(conv))
    assert finding.result == "passed", finding.sentence


@pytest.mark.parametrize("conv", CONVS)
def test_only_a_named_flag_leaves_a_check_out(conv):
    subject = make_conv_under_test(conv)
    spec = CONV_SPECS[conv]
    flags = {"": True, "forces": spec.forces, "exports": getattr(CONVS[conv], "exports", True)}
    flags["smooth"] = getattr(CONVS[conv], "smooth", spec.forces)
    expected = {name for name, check in CHECKS.items() if not flags[check.needs]}
    results = {
        name: run_check(replace(check, measure=lambda _: Measurement(0.0, 1.0)), subject).result
        for name, check in CHECKS.items()
    }
    assert {name for name, result in results.items() if result == "left out"} == expected


def test_slopes_are_the_same_whether_or_not_they_are_differentiated_again(subject):
    """A backward pass that needs no second one takes quicker ways, which no check above sees."""
    net = subject.build()
    batch = batch_structures(molecule_and_crystal())
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
        for option, result in search_ranges(spec.options).items():
            for value in result.choices or ():
                if value != getattr(spec.options(), option):
                    yield pytest.param(conv, {option: value}, id=f"{conv}-{option}-{value}")


@pytest.mark.stress
@pytest.mark.parametrize(("conv", "options"), list(choices()))
def test_it_obeys_with_each_choice_of_its_options(conv, options):
    report = check_conv(conv, options, only=set(CHECKS) - {"compile", "export"})
    assert [finding.sentence for finding in report.failures] == []
