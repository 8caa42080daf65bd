"""Compiled loops give what torch's operations give, repeat bit by bit, and stay out of the way."""

import os
import shutil
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from kernel_cases import (
    FACTORS,
    LAYOUTS,
    NODES,
    SUMS,
    WIDTH,
    all_of_aggregates,
    assert_same_net,
    everything,
    factors_of,
    inputs_of,
    links_of,
    random_links,
    whole,
)
from torch.fx.experimental.proxy_tensor import make_fx

import hydragnn_hpo
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.kernels import edge_loops, gate_loops, kernel_choice, numba_passes
from hydragnn_hpo.kernels.aggregation import aggregate_messages
from hydragnn_hpo.kernels.scatter import Links
from hydragnn_hpo.model import messages


@pytest.mark.parametrize("paired", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("form", SUMS)
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-4)], ids=["fp64", "fp32"]
)
def test_loops_equal_torch_to_the_second_derivative(form, paired, dtype, tolerance, loops):
    links, rows = links_of(form, 0, paired)
    inputs = inputs_of(form, links, rows, dtype)
    expected = everything(form, inputs, links, "eager")
    assert loops == []
    for values, wanted in zip(everything(form, inputs, links, "numba"), expected, strict=True):
        scale = float(wanted.detach().abs().max())
        torch.testing.assert_close(values, wanted, rtol=0, atol=tolerance * scale)
    assert loops


def slope_by_slope(form, inputs, links):
    """Return second and third derivatives of a sum, by way of one of its slopes at a time."""
    results = []
    for each in inputs:
        total = SUMS[form](*inputs, links).sin().sum()
        (slope,) = torch.autograd.grad(total, each, create_graph=True)
        second = torch.autograd.grad(slope.square().sum(), inputs, create_graph=True)
        results += [*second, *torch.autograd.grad(sum(x.sum() for x in second), inputs)]
    return results


@pytest.mark.parametrize("form", SUMS)
def test_derivatives_of_single_slopes_equal_torch_to_the_third(form, loops):
    links, rows = links_of(form, 5, paired="some")
    inputs = inputs_of(form, links, rows)
    expected = slope_by_slope(form, inputs, replace(links, kernels="eager"))
    assert not loops
    values = slope_by_slope(form, inputs, replace(links, kernels="numba"))
    assert loops
    for each, wanted in zip(values, expected, strict=True):
        scale = float(wanted.detach().abs().max()) or 1.0
        torch.testing.assert_close(each, wanted, rtol=0, atol=1e-12 * scale)


@pytest.mark.parametrize("form", SUMS)
def test_second_derivatives_share_one_pass(form, loops):
    links, rows = links_of(form, 5, paired=True)
    inputs = inputs_of(form, links, rows)
    total = SUMS[form](*inputs, replace(links, kernels="numba"))
    first = torch.autograd.grad(total.sin().sum(), inputs, create_graph=True)
    loops.clear()
    torch.autograd.grad(sum(each.square().sum() for each in first), inputs)
    changes = [name for name in loops if "_change" in name]
    assert bool(changes) == ("coupled" not in form)
    assert len(changes) <= len(inputs) + 1


def test_a_graph_gets_the_same_bits_alone_and_after_another():
    links, rows = random_links(2, paired=True)
    values, filters = inputs_of("filtered", links, rows, torch.float32)
    alone = messages.filtered_sum(values, filters, replace(links, kernels="numba"))
    ends = [torch.cat((end[:rows], end[:rows] + NODES)) for end in (links.sender, links.receiver)]
    sender = torch.cat(ends)
    receiver = torch.cat(ends[::-1])
    both = Links.of(sender, receiver, 2 * NODES)
    together = messages.filtered_sum(
        torch.cat((values * 3.0, values)),
        torch.cat((filters + 1.0, filters)),
        replace(both, kernels="numba"),
    )
    assert torch.equal(together[NODES:], alone)


def test_views_and_expanded_gradients_are_read_as_they_are():
    links, rows = random_links(3, paired=True)
    wide = torch.randn(NODES, 2 * WIDTH)
    filters = torch.randn(WIDTH, rows).t()
    values = wide.chunk(2, dim=1)[1].requires_grad_()
    slopes = [
        torch.autograd.grad(
            messages.filtered_sum(values, filters, replace(links, kernels=kernels)).sum(), values
        )[0]
        for kernels in ("numba", "eager")
    ]
    torch.testing.assert_close(*slopes)


@pytest.mark.parametrize("case", ["bf16", "traced", "mode", "eager"])
def test_what_loops_do_not_know_goes_through_torch(case, loops):
    links, rows = random_links(4, paired=True)
    links = replace(links, kernels="eager" if case == "eager" else "numba")
    values, filters = (each.detach() for each in inputs_of("filtered", links, rows))
    if case == "bf16":
        assert messages.filtered_sum(values.bfloat16(), filters.bfloat16(), links).shape
    elif case == "traced":
        traced = make_fx(lambda given: messages.filtered_sum(given, filters, links))(values)
        assert "embedding_bag" in traced.code
    elif case == "mode":
        from torch.utils.flop_counter import FlopCounterMode

        with FlopCounterMode(display=False):
            assert messages.filtered_sum(values, filters, links).shape
    else:
        assert messages.filtered_sum(values, filters, links).shape
    assert loops == []


@pytest.mark.parametrize(
    ("setting", "device", "dtype", "chosen"),
    [
        ("auto", "cpu", torch.float32, "numba"),
        ("numba", "cpu", torch.float64, "numba"),
        ("eager", "cpu", torch.float32, "eager"),
        ("numba", "cpu", torch.bfloat16, "eager"),
    ],
)
def test_kernels_are_chosen_by_setting_device_and_type(setting, device, dtype, chosen):
    assert kernel_choice.choose_kernels(setting, device, dtype) == chosen


@pytest.fixture
def no_numba(monkeypatch):
    """Let numba not be importable, as where it is older than numpy."""
    monkeypatch.setitem(sys.modules, "hydragnn_hpo.kernels.numba_passes", None)
    kernel_choice._import_problem.cache_clear()
    yield
    kernel_choice._import_problem.cache_clear()


def test_without_numba_auto_takes_torch_and_numba_is_refused(no_numba, make):
    assert kernel_choice.choose_kernels("auto", "cpu", torch.float32) == "eager"
    batch = make.batch(make.graph(*make.atoms(1)))
    assert torch.isfinite(make.net({"gap": {}}, conv="painn")(batch)["gap"]).all()
    with pytest.raises(ConfigError, match="install 'hydragnn-hpo\\[fast\\]', or set it to 'auto'"):
        make.net({"gap": {}}, kernels="numba")


def test_numba_is_reported_not_to_be_used_once(caplog):
    kernel_choice._warn_of_eager.cache_clear()
    for _ in range(2):
        kernel_choice.choose_kernels("numba", "cpu", torch.bfloat16)
        kernel_choice.choose_kernels("auto", "cuda", torch.float32)
    (message,) = caplog.messages
    assert message.endswith("in bfloat16 on cpu torch's operations run.")


@pytest.mark.parametrize(
    "conv",
    [
        *("schnet", "painn", "pna", "pnaplus", "pnaeq", "et", "mace", "dimenetpp", "egnn", "cgcnn"),
        *("gat", "tensornet"),
    ],
)
def test_forces_and_slopes_of_a_net_do_not_depend_on_the_kernels(conv, make, loops):
    graphs = [make.graph(*make.atoms(seed)) for seed in (1, 2)]
    assert_same_net(make, graphs, "numba", loops, features=16, conv=conv)


def looped_aggregates(received, sent, measured, filters, weights, links):
    """Aggregate by a loop over edges, as the names say."""
    rows = [[torch.zeros(WIDTH, dtype=torch.float64)] for _ in range(links.num_nodes)]
    squares = torch.zeros(links.num_nodes, WIDTH, dtype=torch.float64)
    ends = zip(links.sender.tolist(), links.receiver.tolist(), strict=True)
    for edge, (j, i) in enumerate(ends):
        pair = edge % len(weights)
        message = received[i] + sent[j] + (0.0 if measured is None else measured[pair])
        message = message * (1.0 if filters is None else filters[pair])
        rows[i].append(weights[pair] * message)
        squares[i] += weights[pair] * message**2
    stacked = [torch.stack(row) for row in rows]
    return (
        torch.stack([row.sum(0) for row in stacked]),
        squares,
        *(torch.stack([way(row, dim=0) for row in stacked]) for way in (torch.amax, torch.amin)),
    )


@pytest.mark.parametrize("like", [torch.randn, whole], ids=["numbers", "ties"])
@pytest.mark.parametrize("paired", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("conv", FACTORS)
def test_aggregates_equal_torch_and_a_loop(conv, paired, like, loops):
    links, rows = random_links(5, paired)
    inputs = factors_of(conv, links, rows, like=like)
    expected = all_of_aggregates(inputs, links, "eager")
    assert not loops
    values = all_of_aggregates(inputs, links, "numba")
    assert set(loops) == {"aggregate", "aggregate_slopes", "aggregate_curvature"}
    assert all(torch.equal(a, b) for a, b in zip(values[:4], expected[:4], strict=True))
    for each, wanted in zip(values, expected, strict=True):
        scale = float(wanted.detach().abs().max())
        torch.testing.assert_close(each, wanted, rtol=0, atol=1e-12 * scale)
    for each, wanted in zip(values, looped_aggregates(*inputs, links), strict=False):
        torch.testing.assert_close(each, wanted, rtol=0, atol=1e-12)


def test_aggregates_without_edges_are_zero_and_reach_all_inputs():
    none = torch.zeros(0, dtype=torch.long)
    links = Links.of(none, none, 3)
    inputs = factors_of("pnaplus", links, 0)
    for values in all_of_aggregates(inputs, links, "numba"):
        assert not values.any()


def test_an_input_of_aggregates_may_depend_on_another():
    """Features of a later layer depend on the weights, which all layers share."""
    links, rows = random_links(7, paired=True)
    received, *others, weights = factors_of("pna", links, rows)
    first, again = (
        torch.autograd.grad(
            aggregate_messages(
                received * weights.sum(), *others, weights, replace(links, kernels=kernels)
            )[0].sum(),
            weights,
            create_graph=True,
        )[0]
        for kernels in ("eager", "numba")
    )
    torch.testing.assert_close(first, again, rtol=1e-12, atol=0)


def test_training_on_forces_aggregates_by_loops(make, loops):
    net = make.net({"energy": {}, "forces": {}}, conv="pna", kernels="numba").train()
    made = net(make.batch(make.graph(*make.atoms(3)))).values()
    sum(each.square().sum() for each in made).backward()
    assert set(loops) == {"aggregate", "aggregate_slopes", "aggregate_curvature"}


def test_third_derivatives_of_aggregates_equal_those_of_torch():
    links, rows = random_links(8, paired="some")
    inputs = factors_of("pnaplus", links, rows)
    thirds = []
    for kernels in ("eager", "numba"):
        outputs = aggregate_messages(*inputs, replace(links, kernels=kernels))
        each = sum(output.square().sum() for output in outputs)
        for _ in range(3):
            grads = torch.autograd.grad(each, inputs, create_graph=True)
            each = sum(grad.square().sum() for grad in grads)
        thirds.append(grads)
    for third, wanted in zip(*reversed(thirds), strict=True):
        scale = float(wanted.detach().abs().max())
        torch.testing.assert_close(third, wanted, rtol=0, atol=1e-12 * scale)


def test_aggregates_by_loops_pass_gradcheck():
    links, rows = random_links(6, paired=True, nodes=4)
    links = replace(links, kernels="numba")
    inputs = [each[:, :3].detach().requires_grad_() for each in factors_of("pnaplus", links, rows)]
    assert torch.autograd.gradcheck(lambda *given: aggregate_messages(*given, links), inputs)
    assert torch.autograd.gradgradcheck(lambda *given: aggregate_messages(*given, links), inputs)


ONE_SUM = """
import os, sys, torch
from dataclasses import replace
from hydragnn_hpo.kernels import Links
from hydragnn_hpo.model import messages
links = Links.of(torch.tensor([0, 1]), torch.tensor([1, 0]), 2)
out = messages.filtered_sum(torch.eye(2), torch.ones(2, 2), replace(links, kernels="numba"))
assert out.tolist() == [[0.0, 1.0], [1.0, 0.0]], out
assert len(os.listdir("/proc/self/task")) == 1, "a thread was started"
"""


def start(cache, code=ONE_SUM, scratch="/proc/none"):
    env = os.environ | {"XDG_CACHE_HOME": str(cache), "OMP_NUM_THREADS": "1"}
    code = f"import tempfile; tempfile.tempdir = {str(scratch)!r}\n{code}"
    run = [sys.executable, "-W", "error", "-W", "ignore::DeprecationWarning", "-c", code]
    return subprocess.Popen(run, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.stress
def test_two_processes_share_a_cache_that_only_the_user_can_write_to(tmp_path):
    ends = [(p.communicate(timeout=300), p.returncode) for p in [start(tmp_path) for _ in "ab"]]
    assert [(code, output[1]) for output, code in ends] == [(0, ""), (0, "")]
    (folder,) = (tmp_path / "hydragnn-hpo" / "kernels").iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    (binary,) = folder.glob("*.nbc")
    written = binary.stat().st_mtime_ns
    third = start(tmp_path)
    assert third.communicate(timeout=300)[1] == ""
    assert binary.stat().st_mtime_ns == written, "it was compiled once more"


@pytest.mark.slow
def test_a_change_of_one_file_of_loops_has_a_cache_of_its_own(monkeypatch, tmp_path):
    """Numba looks at the file of a loop alone, and loops of gates call those of edges."""
    loops = numba_passes.KERNELS
    before = list(loops.folders("float32"))
    changed = tmp_path / "edge_loops.py"
    monkeypatch.setattr(edge_loops, "__file__", str(changed))
    changed.write_bytes(Path(gate_loops.__file__).read_bytes())
    assert not {*loops.folders("float32")} & {*before}
    monkeypatch.undo()
    assert list(loops.folders("float32")) == before


WIDEST = """
import numba
from hydragnn_hpo.kernels.numba_passes import KERNELS
from numba.core.codegen import get_host_cpu_features
KERNELS.folders = lambda dtype, make: ()  # what is cached has no assembly
(code,) = KERNELS.compile("soft_rows", "float32").inspect_asm().values()
print("+avx512vbmi2" in get_host_cpu_features(), "zmm" in code)
print(numba.config.CPU_FEATURES)
"""


@pytest.mark.stress
@pytest.mark.parametrize("chosen", [None, "+avx,+avx2,+fma"], ids=["ours", "the user's"])
def test_loops_use_wide_vectors_where_these_do_not_slow_the_processor_down(chosen):
    """In a process of its own: numba reads its features once."""
    env = {k: v for k, v in os.environ.items() if k != "NUMBA_CPU_FEATURES"}
    env |= {} if chosen is None else {"NUMBA_CPU_FEATURES": chosen}
    run = [sys.executable, "-c", WIDEST]
    output = subprocess.run(run, env=env, capture_output=True, text=True, check=True).stdout.split()
    assert output[2] == str(chosen), "a setting of the process has changed"
    if chosen is None:  # which vectors the user's features mean depends on the processor
        assert output[1] == output[0]


def test_a_torn_cache_is_compiled_around(tmp_path):
    assert start(tmp_path).communicate(timeout=300)[1] == ""
    for torn in (tmp_path / "hydragnn-hpo" / "kernels").glob("*/*"):
        torn.write_bytes(torn.read_bytes()[:50])
    loud = "import logging\nlogging.basicConfig(level=logging.INFO)\n"
    again = start(tmp_path, loud + ONE_SUM)
    assert "is not cached in" in again.communicate(timeout=300)[1]
    assert again.returncode == 0


@pytest.mark.slow
def test_without_a_home_loops_are_kept_in_scratch(tmp_path):
    blocked, scratch = tmp_path / "file", tmp_path / "scratch"
    blocked.write_text("not a folder")
    scratch.mkdir()
    first = start(blocked, scratch=scratch)
    assert first.communicate(timeout=300) == ("", "")
    (binary,) = scratch.glob(f"hydragnn-hpo-{os.getuid()}/kernels/*/*.nbc")
    written = binary.stat().st_mtime_ns
    assert start(blocked, PRELOADED, scratch).communicate(timeout=300) == ("1\n", "")
    assert start(blocked, scratch=scratch).communicate(timeout=300) == ("", "")
    assert binary.stat().st_mtime_ns == written, "it was compiled once more"


@pytest.mark.stress
def test_scratch_that_others_can_write_to_is_not_trusted(tmp_path):
    """Whoever can write there could have us run anything."""
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    (tmp_path / f"hydragnn-hpo-{os.getuid()}").mkdir()
    (tmp_path / f"hydragnn-hpo-{os.getuid()}").chmod(0o777)
    assert "cannot be kept" in start(blocked, scratch=tmp_path).communicate(timeout=300)[1]
    assert not list(tmp_path.rglob("*.nbi"))


@pytest.mark.stress
def test_without_a_folder_of_ones_own_loops_are_compiled_in_memory_with_one_warning(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    alone = start(blocked)
    (warning,) = alone.communicate(timeout=300)[1].splitlines()
    assert warning.startswith(f"compiled loops cannot be kept in {blocked}/hydragnn-hpo/kernels: ")
    assert alone.returncode == 0


PRELOADED = """
import os
import hydragnn_hpo.kernels.preload
from hydragnn_hpo.kernels import numba_passes
assert len(os.listdir("/proc/self/task")) == 1, "a thread was started"
print(numba_passes.KERNELS.count)
"""


@pytest.mark.stress
def test_a_fork_server_loads_what_is_cached_and_compiles_nothing(tmp_path):
    empty = start(tmp_path, PRELOADED).communicate(timeout=300)
    assert empty == ("0\n", "")
    assert start(tmp_path).communicate(timeout=300)[1] == ""
    assert start(tmp_path, PRELOADED).communicate(timeout=300) == ("1\n", "")


@pytest.mark.stress
def test_an_installation_at_another_place_uses_what_the_first_one_compiled(tmp_path, monkeypatch):
    """Its fork server took what others had compiled for its own, and compiled all of it at once."""
    assert start(tmp_path).communicate(timeout=300)[1] == ""
    (binary,) = tmp_path.glob("hydragnn-hpo/kernels/*/*.nbc")
    written = binary.stat().st_mtime_ns
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(Path(hydragnn_hpo.__file__).parent, elsewhere / "hydragnn_hpo")
    for source in elsewhere.rglob("*loops.py"):
        os.utime(source, (1e9, 1e9))
    monkeypatch.setenv("PYTHONPATH", str(elsewhere))
    monkeypatch.setenv("PYTHONSAFEPATH", "1")  # not from the folder that tests run in
    place = f"assert hydragnn_hpo.__file__.startswith({str(elsewhere)!r})"
    code = f"import hydragnn_hpo\n{place}\n{PRELOADED}"
    assert start(tmp_path, code).communicate(timeout=300) == ("1\n", "")
    assert start(tmp_path, f"{code}\n{ONE_SUM}").communicate(timeout=300) == ("1\n", "")
    assert binary.stat().st_mtime_ns == written, "it was compiled once more"


UNTOUCHED = """
import os, pkgutil, sys, warnings
import numba, torch
from numba.core.codegen import get_host_cpu_features
from numba.core.registry import cpu_target

def settings():
    numbas = {key: str(value) for key, value in vars(numba.core.config).items() if key.isupper()}
    options = sorted(vars(cpu_target.options))
    return numbas, options, dict(os.environ), torch.get_num_threads(), torch.get_default_dtype()

before = settings()
import hydragnn_hpo.kernels, hydragnn_hpo.model
for room in (hydragnn_hpo.kernels, hydragnn_hpo.model):
    for module in pkgutil.iter_modules(room.__path__, room.__name__ + "."):
        if ".triton_" not in module.name:
            __import__(module.name)
for one, other in zip(before, settings(), strict=True):
    assert one == other
from hydragnn_hpo.kernels.numba_passes import KERNELS
KERNELS.compile("filtered_by_node", "float32")
assert before == settings()
assert cpu_target.target_context.codegen().magic_tuple()[2] == get_host_cpu_features()
"""


def test_kernels_change_nothing_for_the_process():
    """Functions that users compile are compiled as if ours were not there."""
    env = {key: value for key, value in os.environ.items() if key != "NUMBA_CPU_FEATURES"}
    run = [sys.executable, "-c", UNTOUCHED]
    done = subprocess.run(run, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


class OwnConv(torch.nn.Module):
    """A user's conv that sends along the directions of its edges."""

    def __init__(self, dimensions, options):
        super().__init__()
        self.filter = torch.nn.Linear(dimensions.basis_size, dimensions.features)

    def forward(self, scalars, state, edges):
        filters = self.filter(edges.pair_basis) * edges.pair_envelope
        vectors = messages.directed_sum(scalars, filters, edges.directions, edges.links)
        return vectors.square().sum(1), None


def test_a_users_conv_runs_the_same_loops(make, loops):
    conv = f"{__name__}:OwnConv"
    graphs = [make.graph(*make.atoms(seed)) for seed in (1, 2)]
    assert_same_net(make, graphs, "numba", loops, features=16, conv=conv)
    assert "vectors_by_receiver" in loops
