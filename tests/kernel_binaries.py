"""Compile the loops of Triton for a GPU that need not be here.

    python tests/kernel_binaries.py cubin bfloat16

writes a line of JSON for each loop, with each choice of its terms: the size of its binary, and
whether its assembly has atomic operations. ``cubin`` is for an H100, ``hsaco`` for an MI250X.
"""

import json
import sys

import torch
from kernel_cases import (
    EDGE_CASES,
    FACTORS,
    SUMS,
    differentiate,
    draw_edges,
    factors_of,
    inputs_of,
    links_of,
    random_links,
)

from hydragnn_hpo.model.kernels import passes

TARGETS = {"cubin": ("ptx", "cuda", 90, 32), "hsaco": ("amdgcn", "hip", "gfx90a", 64)}
TYPES = {
    torch.bfloat16: "*bf16",
    torch.float32: "*fp32",
    torch.float64: "*fp64",
    torch.int64: "*i64",
}


def launches_of_all_loops(dtype):
    """Return the launches of all loops, in place of making them."""
    from hydragnn_hpo.model.kernels import triton_passes as subject

    launches = {}

    def noted(name, arrays, numbers, rows, **constants):
        key = (name, *sorted((word, str(value)) for word, value in constants.items()))
        launches[key] = (name, arrays, numbers, constants)

    subject.run_loop = noted
    for paired in (True, False):
        links, rows = random_links(1, paired)
        call_forms(paired, dtype)
        call_edge_functions(links, rows, dtype)
    return launches.values()


def call_forms(paired, dtype):
    """Differentiate each form by each argument, and the aggregates."""
    from hydragnn_hpo.model.kernels import triton_passes as subject

    for form in SUMS:
        name = {"components": "filtered", "coupled to fewer": "coupled"}.get(form, form)
        if name not in subject.TRITON_FORMS:  # scores are a derivative of another form
            continue
        links, rows = links_of(form, 1, paired)
        inputs = inputs_of(form, links, rows)
        given = [each.to(dtype) for each in (*inputs, SUMS[form](*inputs, links))]
        for slot in range(len(given)):
            needed = [place == slot for place in range(len(given))]
            subject.TRITON_FORMS[name](given, links.arrays, needed)
    links, rows = random_links(1, paired)
    for conv in FACTORS:
        received, sent, measured, filters, weights = (
            torch.empty(0, received.shape[1], dtype=dtype) if each is None else each.to(dtype)
            for received in [torch.empty(1, inputs_of("filtered", links, rows)[0].shape[1])]
            for each in factors_of(conv, links, rows)
        )
        inputs = (received, sent, measured, filters, weights)
        sums, extremes, shares = subject.aggregate_by_triton(inputs, links.arrays)
        reached = extremes, torch.cat((sums, shares), dim=1)
        subject.aggregate_slopes_by_triton(inputs, links.arrays, reached, [True] * 5)


def call_edge_functions(links, rows, dtype):
    """Differentiate each function of edges twice, by numbers that no loop has written."""
    passes._triton_interprets = lambda: True
    for case in EDGE_CASES:
        differentiate(case, draw_edges(case, (links, rows), dtype), links, "triton")


def main(binary, dtype):
    """Compile the loops; see above."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from hydragnn_hpo.model.kernels.triton_loops import EXACT
    from hydragnn_hpo.model.kernels.triton_passes import ALL_LOOPS

    assembly, *target = TARGETS[binary]
    for name, arrays, numbers, constants in launches_of_all_loops(getattr(torch, dtype)):
        loop, options = ALL_LOOPS[name], {"enable_fp_fusion": name not in EXACT}
        kinds = [*(TYPES[each.dtype] for each in arrays), *("i64" for _ in numbers)]
        signature = dict(zip(loop.arg_names, kinds + ["constexpr"] * len(constants), strict=True))
        source = ASTSource(loop, signature, constants)
        made = triton.compile(source, target=GPUTarget(*target), options=options).asm
        print(json.dumps({
            "loop": name, "bytes": len(made[binary]), "atomics": "atom" in made[assembly],
        }))  # fmt: skip


if __name__ == "__main__":
    main(*sys.argv[1:])
