"""Every kernel and conv on a device beside torch's operations in fp64 on the CPU."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import models
import numpy as np
import torch
from kernel_cases import kernel_functions
from torch import Tensor

from hydragnn_hpo.config.convs import CONV_SPECS
from hydragnn_hpo.data.batch import Batch, make_batch
from hydragnn_hpo.kernels import choose_kernels
from hydragnn_hpo.kernels.scatter import Links

if TYPE_CHECKING:
    from run import Report

LIMITS = {torch.float64: 1e-9, torch.float32: 3e-3, torch.bfloat16: 0.2}
"""Largest error of a net's results by type, over their norm: in fp32 a gradient sums all graphs."""

KERNEL_LIMITS = {torch.float64: 1e-11, torch.float32: 1e-4}


def error_of(values: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """Return the largest norm of a difference over the norm of what is expected."""
    return max(
        float((a.detach().cpu().double() - b).norm() / b.norm().clamp_min(1e-12))
        for a, b in zip(values, [each.detach().double() for each in expected], strict=True)
    )


def links_on(links: Links, device: torch.device) -> Links:
    """Return the links of edges on a device."""
    names = ("sender", "receiver", "by_receiver", "receiver_starts", "by_sender", "sender_starts")
    return replace(links, **{name: getattr(links, name).to(device) for name in names})


def compare_kernels(
    results: Callable[..., Any], inputs: Sequence[Any], links: Links, dtype: torch.dtype,
    device: torch.device,
) -> float:  # fmt: skip
    """Compare sums and their derivatives with those of torch in fp64 on the CPU."""
    kernels = choose_kernels("auto", device.type, dtype)
    if device.type == "cuda" and kernels != "triton":
        raise AssertionError(f"auto takes {kernels} on {device}")
    there = [
        None if each is None else each.detach().to(device, dtype).requires_grad_()
        for each in inputs
    ]
    exact = [None if each is None else each.detach().requires_grad_() for each in inputs]
    return error_of(
        results(there, links_on(links, device), kernels), results(exact, links, "eager")
    )


def results_of(
    conv: str, forces: bool, batch: Batch, dtype: torch.dtype, kernels: str
) -> list[Tensor]:
    """Return the predictions of a net, its loss, and the gradient by all weights as one tensor."""
    bench = models.Bench([], [], 16.0, -80.0, 5.0, 0.0)
    net, heads = models.our_net(conv, bench, forces, kernels)
    device = batch.positions.device
    net = net.to(device, torch.float64 if dtype is torch.float64 else torch.float32)
    with torch.autocast(device.type, torch.bfloat16, enabled=dtype is torch.bfloat16):
        out = net(batch)
    counts = {"energy": float(batch.num_graphs), "forces": 3.0 * len(batch.numbers)}
    loss = models.combine_losses(models.head_sums(net, out, batch, heads), counts, heads, 1)
    slopes = torch.autograd.grad(loss, list(net.parameters()), materialize_grads=True,
                                 allow_unused=True)  # fmt: skip
    return [*(out[name] for name in sorted(out)), torch.cat([each.flatten() for each in slopes])]


def compare_conv(
    conv: str, forces: bool, dtype: torch.dtype, batches: dict[torch.dtype, Batch],
    device: torch.device,
) -> float:  # fmt: skip
    """Compare a net's predictions and gradients with those in fp64 on the CPU."""
    exact = results_of(conv, forces, batches[torch.float64], torch.float64, "eager")
    own = batches[torch.float64 if dtype is torch.float64 else torch.float32]
    return error_of(results_of(conv, forces, copy.copy(own).to(device), dtype, "auto"), exact)


def run(report: "Report", device: torch.device) -> None:
    """Check kernels, then energies of all convs, then forces, each in several types."""
    for dtype, limit in KERNEL_LIMITS.items():
        for name, results, inputs, links in kernel_functions("some"):
            work = partial(compare_kernels, results, inputs, links, dtype, device)
            report.check(f"kernel {name} {str(dtype)[6:]}", work, limit)
    columns = models.molecules(2 if report.small else 8)
    batches = {
        dtype: make_batch(
            columns, np.arange(columns.num_graphs), cutoff=models.CUTOFF, dtype=dtype,
            targets=("energy", "forces"), pairs=True,
        )
        for dtype in (torch.float32, torch.float64)
    }  # fmt: skip
    for forces in (False, True):
        for conv, spec in CONV_SPECS.items():
            for dtype, limit in LIMITS.items():
                if (forces and not spec.forces) or (forces and dtype is torch.bfloat16):
                    continue
                name = f"{conv} {'forces' if forces else 'energies'} {str(dtype)[6:]}"
                work = partial(compare_conv, conv, forces, dtype, batches, device)
                report.check(name, work, limit)
