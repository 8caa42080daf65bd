"""Compile the loops of Triton for a GPU that need not be here.

    python tests/kernel_binaries.py cubin bfloat16

writes a line of JSON for each loop, with each choice of its terms: the size of its binary, and
whether its assembly has atomic operations. ``cubin`` is for an H100, ``hsaco`` for an MI250X.
"""

import json
import sys

import torch
from kernel_cases import FACTORS, TRITON_SUMS, factors_of, inputs_of, random_links

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
    links, rows = random_links(1, paired=True)
    for form in TRITON_SUMS:
        inputs = inputs_of(form, links, rows, dtype)
        slopes = subject.TRITON_FORMS.get("filtered" if form == "components" else form)
        if slopes is None:  # a form without loops of Triton
            continue
        slots = range(len(inputs) + 1)
        result = torch.empty(len(inputs[0]), *[3] * (form in ("directed", "vectors")),
                             *inputs[0].shape[1:], dtype=dtype)  # fmt: skip
        for slot in slots:
            slopes([*inputs, result], links.arrays, [place == slot for place in slots])
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
    return launches.values()


def main(binary, dtype):
    """Compile the loops; see above."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from hydragnn_hpo.model.kernels.triton_loops import EXACT, LOOPS

    assembly, *target = TARGETS[binary]
    for name, arrays, numbers, constants in launches_of_all_loops(getattr(torch, dtype)):
        loop, options = LOOPS[name], {"enable_fp_fusion": name not in EXACT}
        kinds = [*(TYPES[each.dtype] for each in arrays), *("i64" for _ in numbers)]
        signature = dict(zip(loop.arg_names, kinds + ["constexpr"] * len(constants), strict=True))
        source = ASTSource(loop, signature, constants)
        made = triton.compile(source, target=GPUTarget(*target), options=options).asm
        print(json.dumps({
            "loop": name, "bytes": len(made[binary]), "atomics": "atom" in made[assembly],
        }))  # fmt: skip


if __name__ == "__main__":
    main(*sys.argv[1:])
