"""Loops of Triton give what torch does, interpreted on this CPU, and compile for GPUs."""

import itertools
import json
import os
import subprocess
import sys
from dataclasses import replace

import kernel_binaries
import pytest
import torch
from kernel_cases import (
    EDGE_CASES,
    FACTORS,
    SUMS,
    all_of_aggregates,
    assert_same_net,
    differentiate,
    draw_edges,
    everything,
    factors_of,
    inputs_of,
    links_of,
    random_links,
    whole,
)

from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.kernels import kernel_choice
from hydragnn_hpo.kernels.eager_edge_functions import EAGER_FUNCTIONS
from hydragnn_hpo.kernels.eager_passes import EAGER_FORMS
from hydragnn_hpo.kernels.scatter import Links
from hydragnn_hpo.model import messages

triton = pytest.importorskip("triton", reason="Triton is not installed: pip install triton.")
from hydragnn_hpo.kernels import triton_loops, triton_passes  # noqa: E402
from hydragnn_hpo.kernels.triton_edge_functions import TRITON_EDGE_LOOPS  # noqa: E402

needs_interpreter = pytest.mark.skipif(
    not triton_loops.interprets(), reason="Triton compiles its loops where there is a GPU."
)


@pytest.fixture
def loops(monkeypatch):
    """Names and constants of the loops that run, in small tiles: nodes have several."""
    launches = []
    run_loop = triton_passes.run_loop

    def noted(name, arrays, numbers, rows, **constants):
        launches.append((name, constants))
        run_loop(name, arrays, numbers, rows, **constants)

    monkeypatch.setattr(triton_passes, "run_loop", noted)
    monkeypatch.setattr(triton_passes, "_ROWS", 8)
    monkeypatch.setattr(triton_passes, "_FEATURES", 16)  # two blocks for rows of 19
    return launches


@pytest.fixture
def compiles(monkeypatch):
    """Let Triton not interpret its loops, as without ``TRITON_INTERPRET``."""
    monkeypatch.setattr(kernel_choice, "_triton_interprets", lambda: False)
    kernel_choice._warn_of_eager.cache_clear()


def assert_near(values, expected, tolerance):
    for each, wanted in zip(values, expected, strict=True):
        scale = float(wanted.detach().abs().max())
        torch.testing.assert_close(each, wanted, rtol=0, atol=tolerance * scale)


CASES_OF_FORMS = [
    *((form, "some") for form in SUMS if form != "coupled"),
    *(
        pytest.param(form, paired, marks=pytest.mark.stress)
        for form, paired in (
            *((form, paired) for form in ("filtered", "vectors") for paired in (True, False)),
            ("coupled", "some"),
        )
    ),
]
"""The layout with edges that have a reverse and edges that have none; others in stress tests."""


def test_all_forms_and_functions_of_edges_have_loops():
    assert triton_passes.TRITON_FORMS.keys() == EAGER_FORMS.keys()
    assert TRITON_EDGE_LOOPS.keys() == EAGER_FUNCTIONS.keys()


@needs_interpreter
@pytest.mark.parametrize(("form", "paired"), CASES_OF_FORMS)
def test_forms_equal_torch_to_the_second_derivative(form, paired, loops):
    links, rows = links_of(form, 1, paired, nodes=4)
    inputs = inputs_of(form, links, rows)
    expected = everything(form, inputs, links, "eager")
    assert_near(everything(form, inputs, links, "triton"), expected, 1e-12)
    assert {constants["COMPUTE"] for _, constants in loops} == {triton.language.float64}


@needs_interpreter
@pytest.mark.parametrize("case", EDGE_CASES)
def test_edge_functions_equal_torch_to_the_second_derivative(case, loops):
    links, rows = random_links(1, "some", nodes=4)
    inputs = draw_edges(case, (links, rows))
    expected = differentiate(case, inputs, links, "eager")
    assert not loops
    assert_near(differentiate(case, inputs, links, "triton"), expected, 1e-11)
    assert any(constants["CURVED"] for _, constants in loops)


@needs_interpreter
@pytest.mark.parametrize("case", ["leaky ends", "gated", "softplus", "edges"])
def test_edge_functions_take_several_types_and_give_each_its_own(case, loops):
    links, rows = random_links(2, True, nodes=4)
    inputs = [
        each.detach().to(dtype).requires_grad_()
        for each, dtype in zip(
            draw_edges(case, (links, rows)), itertools.cycle([torch.bfloat16, torch.float32])
        )
    ]
    exact = [each.detach().double().requires_grad_() for each in inputs]
    results = []
    draws = torch.Generator()
    for given, kernels in ((inputs, "triton"), (exact, "eager")):
        value = EDGE_CASES[case][0](*given, replace(links, kernels=kernels))
        value = torch.cat(value) if isinstance(value, tuple) else value
        slope = torch.randn(value.shape, generator=draws.manual_seed(5), dtype=torch.float64)
        slopes = torch.autograd.grad(value, given, slope.to(value.dtype))
        results.append([value, *slopes])
    assert [each.dtype for each in results[0]] == [torch.float32, *(e.dtype for e in inputs)]
    largest = max(float(each.detach().abs().max()) for each in results[1])
    for each, wanted in zip(*results, strict=True):
        # a sum over all edges, such as the slope of the gate's bias, may cancel
        scale = max(float(wanted.detach().abs().max()), 0.1 * largest)
        torch.testing.assert_close(each.double(), wanted, rtol=0, atol=0.03 * scale)
    assert loops


@needs_interpreter
def test_fp32_is_summed_in_fp32(loops):
    links, rows = random_links(1, True, nodes=5)
    inputs = inputs_of("directed", links, rows, torch.float32)
    expected = everything("directed", inputs, links, "eager")
    assert_near(everything("directed", inputs, links, "triton"), expected, 1e-5)
    assert {constants["COMPUTE"] for _, constants in loops} == {triton.language.float32}


@needs_interpreter
@pytest.mark.parametrize("name", ["filtered", "directed", "vectors", "soft"])
def test_bf16_is_summed_in_fp32_and_rounded_once(name, loops):
    """To one unit in the last of 8 bits: the interpreter cuts off where a GPU rounds."""
    links, rows = random_links(1, "some", nodes=4)
    if name in SUMS:
        function = SUMS[name]
        drawn = inputs_of(name, links, rows)
    else:
        function = EDGE_CASES[name][0]
        drawn = draw_edges(name, (links, rows))
    low = [each.detach().bfloat16() for each in drawn]
    results = []
    for kernels, dtype in (("triton", torch.bfloat16), ("eager", torch.float64)):
        inputs = [each.to(dtype).requires_grad_() for each in low]
        value = function(*inputs, replace(links, kernels=kernels))
        slope = torch.randn(value.shape, generator=torch.Generator().manual_seed(9)).bfloat16()
        results.append([value, *torch.autograd.grad(value, inputs, slope.to(dtype))])
    for each, exact in zip(*results, strict=True):
        assert each.dtype is torch.bfloat16
        most = 2**-7 * exact.abs() + 1e-6 * exact.abs().max()  # of fp32, where a sum cancels
        assert ((each.double() - exact).abs() <= most).all()
    assert {constants["COMPUTE"] for _, constants in loops} == {triton.language.float32}


@needs_interpreter
@pytest.mark.parametrize("conv", ["schnet", "painn"])
def test_a_net_under_autocast_is_as_exact_as_bf16(conv, make, loops):
    graph = make.graph(*make.atoms(1, count=4))
    results = []
    for kernels, dtype in (("eager", torch.float64), ("triton", torch.float32)):
        net = make.net({"energy": {}}, features=16, conv=conv, kernels=kernels).to(dtype)
        with torch.autocast("cpu", torch.bfloat16, enabled=kernels == "triton"):
            energy = net(make.batch(graph, dtype=dtype))["energy"]
        slopes = torch.autograd.grad(energy.sum(), list(net.parameters()))
        results.append([energy, torch.cat([slope.flatten() for slope in slopes])])
    for exact, values in zip(*results, strict=True):
        error = (values - exact).detach().norm() / exact.detach().norm()
        assert 1e-4 < error < 0.02
    assert {constants["COMPUTE"] for _, constants in loops} == {triton.language.float32}


@needs_interpreter
@pytest.mark.parametrize("like", [torch.randn, whole], ids=["numbers", "ties"])
@pytest.mark.parametrize("conv", FACTORS)
def test_aggregates_equal_torch_to_the_second_derivative(conv, like, loops):
    links, rows = random_links(5, conv != "pnaplus", nodes=5)
    inputs = factors_of(conv, links, rows, like=like)
    expected = all_of_aggregates(inputs, links, "eager")
    assert_near(all_of_aggregates(inputs, links, "triton"), expected, 1e-12)
    assert {name for name, _ in loops} == {
        *("aggregate", "aggregate_slopes_by_node", "aggregate_slopes_by_pair"),
    }


@needs_interpreter
def test_no_edges_sum_to_zero(loops):
    links, rows = random_links(0, paired=False, nodes=3)
    none = links.sender[:0]
    links = replace(
        links, sender=none, receiver=none, by_receiver=none, by_sender=none,
        receiver_starts=torch.zeros(4, dtype=torch.long),
        sender_starts=torch.zeros(4, dtype=torch.long),
    )  # fmt: skip
    for form in ("filtered", "vectors", "scores", "triplets"):
        values = everything(form, inputs_of(form, links, 0), links, "triton")
        assert not any(each.any() for each in values)
    assert not any(each.any() for each in all_of_aggregates(
        factors_of("pnaplus", links, 0), links, "triton"))  # fmt: skip
    for case in EDGE_CASES:
        values = differentiate(case, draw_edges(case, (links, 0)), links, "triton")
        assert not any(each.any() for each in values)


@needs_interpreter
def test_a_graph_gets_the_same_bits_alone_and_after_another(loops):
    links, rows = random_links(2, paired=False, nodes=5)
    values, filters = inputs_of("filtered", links, rows, torch.float32)
    alone = messages.filtered_sum(values, filters, replace(links, kernels="triton"))
    ends = (torch.cat((end[:9], end + 5)) for end in (links.sender, links.receiver))
    both = replace(Links.of(*ends, 10), kernels="triton")
    together = messages.filtered_sum(
        torch.cat((values * 3.0, values)), torch.cat((filters[:9] + 1.0, filters)), both
    )
    assert torch.equal(together[5:], alone)


@needs_interpreter
@pytest.mark.parametrize("conv", ["painn", "pna", "et", "egnn", "schnet", "alignn"])
def test_forces_and_slopes_of_a_net_do_not_depend_on_the_kernels(conv, make, loops):
    graphs = [make.graph(*make.atoms(1, count=4))]
    assert_same_net(make, graphs, "triton", loops, features=8, layers=1, conv=conv)


@pytest.mark.parametrize(
    ("setting", "device", "dtype", "chosen"),
    [
        ("auto", "cuda", torch.float32, "triton"),
        ("auto", "cuda", torch.bfloat16, "triton"),
        ("auto", "cpu", torch.float32, "numba"),
        ("auto", "xpu", torch.float32, "eager"),
        ("triton", "cuda", torch.float64, "triton"),
        ("triton", "cpu", torch.float32, "eager"),
        ("eager", "cuda", torch.float32, "eager"),
        ("numba", "cuda", torch.float32, "eager"),
    ],
)
def test_kernels_are_chosen_by_setting_device_and_type(setting, device, dtype, chosen, compiles):
    assert kernel_choice.choose_kernels(setting, device, dtype) == chosen


def test_where_triton_cannot_run_torch_does_and_that_is_reported_once(loops, compiles, caplog):
    links, rows = random_links(4, paired=True)
    values, filters = inputs_of("filtered", links, rows)
    for _ in range(2):
        links = replace(links, kernels=kernel_choice.choose_kernels("triton", "cpu", torch.float64))
        messages.filtered_sum(values, filters, links)
    assert loops == []
    (message,) = caplog.messages
    assert "knows CUDA and ROCm devices: in float64 on cpu torch's operations run" in message


@pytest.mark.parametrize("missing", ["triton", "compiler"])
def test_without_triton_or_a_compiler_auto_takes_torch_and_triton_is_refused(missing, monkeypatch):
    if missing == "triton":
        monkeypatch.setitem(sys.modules, "hydragnn_hpo.kernels.triton_passes", None)
    else:
        monkeypatch.setenv("PATH", "")
        monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(kernel_choice, "_import_problem", kernel_choice._import_problem.__wrapped__)
    assert kernel_choice.choose_kernels("auto", "cuda", torch.float32) == "eager"
    with pytest.raises(ConfigError, match="install .*, or set it to 'auto'"):
        kernel_choice.check_kernels("triton")


BINARIES = [("cubin", "float32"), ("cubin", "bfloat16"), ("hsaco", "float64")]


@pytest.mark.stress
@pytest.mark.parametrize(("binary", "dtype"), BINARIES)
def test_every_loop_compiles_for_gpus_that_are_not_here(binary, dtype, tmp_path):
    command = [sys.executable, "-W", "error", "-W", "ignore::DeprecationWarning"]
    env = os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [*command, kernel_binaries.__file__, binary, dtype],
        env=env, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    made = [json.loads(line) for line in done.stdout.splitlines()]
    assert {each["loop"] for each in made} == set(triton_passes.ALL_LOOPS)
    for each in made:
        assert each["bytes"] > 1000, each
        assert not each["atomics"], f"{each['loop']} adds in an order that differs between runs"
