"""Compile the loops of Triton for a GPU that need not be here.

    python tests/kernel_binaries.py cubin bfloat16

writes a line of JSON for each loop, with each choice of its terms: the size of its binary, and
whether its assembly has atomic operations. ``cubin`` is for an H100, ``hsaco`` for an MI250X.
"""

import json
import sys

import torch
from kernel_cases import kernel_functions

from hydragnn_hpo.kernels import kernel_choice

TARGETS = {"cubin": ("ptx", "cuda", 90, 32), "hsaco": ("amdgcn", "hip", "gfx90a", 64)}
TYPES = {
    torch.bfloat16: "*bf16",
    torch.float32: "*fp32",
    torch.float64: "*fp64",
    torch.int64: "*i64",
}


def launches_of_all_loops(dtype):
    """Return the launches of all loops, in place of making them."""
    from hydragnn_hpo.kernels import triton_passes as subject

    launches = {}

    def noted(name, arrays, numbers, rows, **constants):
        key = (name, *sorted((word, str(value)) for word, value in constants.items()))
        launches[key] = (name, arrays, numbers, constants)

    subject.run_loop = noted
    kernel_choice._triton_interprets = lambda: True
    for paired in (True, False):
        for _, results, inputs, links in kernel_functions(paired):
            given = [x if x is None else x.detach().to(dtype).requires_grad_() for x in inputs]
            results(given, links, "triton")
    return launches.values()


def main(binary, dtype):
    """Compile the loops; see above."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from hydragnn_hpo.kernels.triton_loops import EXACT
    from hydragnn_hpo.kernels.triton_passes import ALL_LOOPS

    assembly, *target = TARGETS[binary]
    for name, arrays, numbers, constants in launches_of_all_loops(getattr(torch, dtype)):
        loop = ALL_LOOPS[name]
        options = {"enable_fp_fusion": name not in EXACT}
        kinds = [*(TYPES[each.dtype] for each in arrays), *("i64" for _ in numbers)]
        signature = dict(zip(loop.arg_names, kinds + ["constexpr"] * len(constants), strict=True))
        source = ASTSource(loop, signature, constants)
        made = triton.compile(source, target=GPUTarget(*target), options=options).asm
        print(json.dumps({
            "loop": name, "bytes": len(made[binary]), "atomics": "atom" in made[assembly],
        }))  # fmt: skip


if __name__ == "__main__":
    main(*sys.argv[1:])
