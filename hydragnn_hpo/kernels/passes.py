"""Sums of messages over neighbours, multilinear in their factors, and all their derivatives.

A message that is a product of node values, filters and directions makes a *form* together with the
gradient of its sum: one number, linear in each of its arguments, such as

    filtered(values, filters, grad) = sum over edges j -> i of  filters_ij * values_j * grad_i

The sum of the messages is the derivative of the form by ``grad``, the gradients of training are its
derivatives by the other arguments. And the derivative by one argument, multiplied by a tensor of
its shape, is the form again, with this tensor as the argument. So derivatives of every order (the
training of forces needs the second) are first derivatives of the same form. Two autograd functions
serve all: ``_Derivative`` is one derivative, ``_Slopes`` are several, whose ``backward`` calls
itself, and which share passes over the edges. Second derivatives share passes as well where there
are loops for it: they are the change of the slopes as the arguments change.

A form has an implementation by torch's operations (``eager_passes``), which is the reference and
always there, and two by compiled loops: ``numba_passes`` for fp32 and fp64 on a CPU,
``triton_passes`` for these and fp16 and bf16 on CUDA and ROCm devices.
``Links.kernels`` chooses; what torch traces (``torch.compile``, ``torch.export``) are torch's
operations.

Shapes: N nodes, E edges, P rows of a filter (see ``scatter``), C components, F features.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from hydragnn_hpo.kernels.eager_passes import (
    EAGER_FORMS,
    Arguments,
    FormCurvature,
    FormSlopes,
    Seconds,
    Slopes,
)
from hydragnn_hpo.kernels.scatter import Gradients, Links, unify_dtypes, without_autocast

_TERMS: dict[str, tuple[tuple[str, tuple[int, ...]], ...]] = {
    "filtered": (("filtered", (0, 1, 2)),),
    "directed": (("directed", (0, 1, 2, 3)),),
    "vectors": (("directed", (0, 1, 2, 5)), ("filtered", (3, 4, 5))),
    "weighted": (("weighted", (0, 1, 2)),),
    "attended": (("attended", (0, 1, 2, 3)),),
    "coupled": (("coupled", (0, 1, 2, 3)),),
    "triplets": (("triplets", (0, 1, 2, 3)),),
}
"""Terms that a form is the sum of: each a form, and its arguments among those of the sum."""


def differentiate_form(
    form: str, inputs: Sequence[Tensor], links: Links, slot: int | None = None
) -> Tensor:
    """Differentiate a form by one of its arguments, for any order of further derivatives.

    Args:
        form: key of ``EAGER_FORMS``, where the arguments of each are explained.
        inputs: its arguments; where ``slot`` is None, without the last one, the gradient of the
            sum.
        links: sender and receiver of every edge.
        slot: number of an argument, of which only the shape matters; None for the last one, whose
            derivative is the sum over neighbours.
    """
    given = unify_dtypes(inputs)
    kernels = links.usable_kernels(given)
    arguments = (*given, None) if slot is None else given
    place = len(given) if slot is None else slot
    with without_autocast(given[0]):
        result: Tensor = _Derivative.apply(  # type: ignore[no-untyped-call]
            form, place, kernels, *arguments, *links.arrays
        )
    return result


def _find_slopes(form: str, kernels: str) -> FormSlopes:
    """Return the implementation of a form; numba and Triton are imported at their first use."""
    if kernels == "triton":
        from hydragnn_hpo.kernels.triton_passes import TRITON_FORMS

        return TRITON_FORMS[form]
    if kernels == "numba":
        from hydragnn_hpo.kernels.numba_passes import NUMBA_FORMS

        return NUMBA_FORMS[form]
    return EAGER_FORMS[form]


class _Derivative(Function):
    """Derivative of a form by one of its arguments."""

    @staticmethod
    def forward(ctx: Any, form: str, slot: int, kernels: str, *tensors: Tensor) -> Tensor:
        """Differentiate a form by one argument.

        Args:
            ctx: keeps the other arguments for ``backward``.
            form: key of ``_TERMS``.
            slot: number of the argument.
            kernels: implementation, ``eager``, ``numba`` or ``triton``.
            tensors: arguments, then the six tensors of ``Links.arrays``.

        Returns:
            Derivative of the shape of the argument.
        """
        arguments, links = tensors[:-6], tensors[-6:]
        ctx.save_for_backward(*arguments[:slot], *arguments[slot + 1 :], *links)
        ctx.plan = (form, slot, kernels)
        needed = [place == slot for place in range(len(arguments))]
        result: Tensor = _find_slopes(form, kernels)(arguments, links, needed)[slot]
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Gradients:
        form, slot, kernels = ctx.plan
        saved = ctx.saved_tensors  # once: recomputation of layers allows no more
        others, links = saved[:-6], saved[-6:]
        arguments = (*others[:slot], grad, *others[slot:])
        needed = [ctx.needs_input_grad[3 + p] and p != slot for p in range(len(arguments))]
        slopes = _compute_slopes(form, kernels, arguments, links, needed)
        return None, None, None, *slopes, *[None] * 6


def _compute_slopes(
    form: str,
    kernels: str,
    arguments: Arguments,
    links: Sequence[Tensor],
    needed: Sequence[bool],
) -> Sequence[Tensor | None]:
    """Differentiate a form by all arguments that are needed; again, where gradients are on."""
    with without_autocast(links[0]):
        if torch.is_grad_enabled():
            slopes: Sequence[Tensor | None] = _Slopes.apply(  # type: ignore[no-untyped-call]
                form, kernels, needed, *arguments, *links
            )
            return slopes
        return _find_slopes(form, kernels)(arguments, links, needed)


class _Slopes(Function):
    """Derivatives of a form by several of its arguments, which share passes over the edges."""

    @staticmethod
    def forward(
        ctx: Any, form: str, kernels: str, needed: Sequence[bool], *tensors: Tensor
    ) -> tuple[Tensor | None, ...]:
        """Differentiate a form.

        Args:
            ctx: keeps the arguments for ``backward``.
            form: key of ``_TERMS``.
            kernels: implementation, ``eager``, ``numba`` or ``triton``.
            needed: whether the derivative by each argument is needed.
            tensors: arguments, then the six tensors of ``Links.arrays``.

        Returns:
            One derivative per argument; None where not needed.
        """
        ctx.save_for_backward(*tensors)
        ctx.set_materialize_grads(False)
        ctx.plan = (form, kernels)
        return tuple(_find_slopes(form, kernels)(tensors[:-6], tensors[-6:], needed))

    @staticmethod
    def backward(ctx: Any, *seconds: Tensor | None) -> Gradients:
        (form, kernels), saved = ctx.plan, ctx.saved_tensors
        arguments, links, needed = saved[:-6], saved[-6:], ctx.needs_input_grad[3:-6]
        curvature = None if torch.is_grad_enabled() else _find_curvature(form, kernels, seconds)
        if curvature is None:
            slopes = _add_terms(form, kernels, (arguments, seconds), links, needed)
        else:
            with without_autocast(links[0]):
                slopes = curvature(arguments, seconds, links, needed)
        return None, None, None, *slopes, *[None] * 6


def _find_curvature(form: str, kernels: str, seconds: Seconds) -> FormCurvature | None:
    """Return the loops for all second derivatives of a form at once; None where there are none."""
    if kernels != "numba":
        return None
    from hydragnn_hpo.kernels.numba_passes import NUMBA_CURVATURES

    curvature, smooth = NUMBA_CURVATURES.get(form, (None, ()))
    known = all(each is None or slot in smooth for slot, each in enumerate(seconds))
    return curvature if known else None


def _add_terms(
    form: str,
    kernels: str,
    tensors: tuple[Arguments, Seconds],
    links: Sequence[Tensor],
    needed: Sequence[bool],
) -> Slopes:
    """Differentiate the sum of slopes times given tensors, one slope at a time.

    Args:
        form: key of ``_TERMS``.
        kernels: implementation.
        tensors: arguments of the form, and what the slope by each is multiplied by; None for 0.
        links: the six tensors of ``Links.arrays``.
        needed: whether the derivative by each argument is needed.

    Returns:
        One derivative per argument; None where it is not needed, or 0.
    """
    arguments, seconds = tensors
    total: Slopes = [None] * len(arguments)
    for slot, second in enumerate(seconds):
        if second is None:
            continue
        ((term, places),) = [each for each in _TERMS[form] if slot in each[1]]
        chosen = [second if place == slot else arguments[place] for place in places]
        wanted = [needed[place] and place != slot for place in places]
        if not any(wanted):
            continue
        slopes = _compute_slopes(term, kernels, chosen, links, wanted)
        for place, slope in zip(places, slopes, strict=True):
            if slope is not None:
                total[place] = slope if total[place] is None else total[place] + slope
    return total
