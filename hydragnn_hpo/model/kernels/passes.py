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

import functools
import importlib
import logging
import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function

from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.model.kernels.eager_passes import (
    EAGER_FORMS,
    Arguments,
    FormCurvature,
    FormSlopes,
    Seconds,
    Slopes,
)
from hydragnn_hpo.model.layers import unify_dtypes, without_autocast
from hydragnn_hpo.model.scatter import Gradients, Links

logger = logging.getLogger(__name__)

_COMPILED_TYPES = {
    "numba": (torch.float32, torch.float64),
    "triton": (torch.float32, torch.float64, torch.bfloat16, torch.float16),
}
"""Types of messages that the loops of an implementation know."""

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


@functools.cache
def _import_problem(kernels: str) -> str:
    """Return why numba or Triton cannot be used; an empty text if it can."""
    try:
        importlib.import_module(f"hydragnn_hpo.model.kernels.{kernels}_passes")
    except ImportError as error:
        return str(error).strip().partition("\n")[0].rstrip(".")
    if kernels == "triton" and not any(
        map(shutil.which, (os.environ.get("CC", ""), "gcc", "clang"))
    ):
        return "it needs a C compiler, and there is neither gcc nor clang"
    return ""


def check_kernels(setting: str) -> str:
    """Check that the implementation that ``model.kernels`` names is there, and return the setting.

    Raises:
        ConfigError: ``numba`` or ``triton`` is asked for and cannot be used.
    """
    if setting in _COMPILED_TYPES and (problem := _import_problem(setting)):
        package = "hydragnn-hpo[fast]" if setting == "numba" else "triton"
        raise ConfigError(
            f"model.kernels is '{setting}', which cannot be used ({problem}): install "
            f"'{package}', or set it to 'auto'."
        )
    return setting


@functools.cache
def _warn_of_eager(kernels: str, device: str, dtype: torch.dtype) -> None:
    logger.warning(
        "model.kernels = '%s' knows %s: in %s on %s torch's operations run.",
        kernels,
        "fp32 and fp64 on CPUs" if kernels == "numba" else "CUDA and ROCm devices",
        str(dtype).removeprefix("torch."),
        device,
    )


def _knows(kernels: str, device: str, dtype: torch.dtype) -> bool:
    """Check whether an implementation by loops knows a type of device and of messages."""
    if dtype not in _COMPILED_TYPES[kernels]:
        return False
    if kernels == "numba":
        return device == "cpu"
    return device == "cuda" or (device == "cpu" and _triton_interprets())


@functools.cache
def _triton_interprets() -> bool:
    from hydragnn_hpo.model.kernels.triton_passes import interprets

    return interprets()


def choose_kernels(setting: str, device: str, dtype: torch.dtype) -> str:
    """Return the implementation that passes over the edges use.

    Args:
        setting: ``model.kernels``.
        device: type of the device, such as ``cpu``; ROCm's is ``cuda``, too.
        dtype: type of the messages.

    Returns:
        ``numba`` or ``triton``; ``eager`` where it is not wanted, is not there, does not know
        device or type, or torch traces the model.
    """
    if setting == "eager" or torch.compiler.is_compiling():
        return "eager"
    kernels = {"cpu": "numba", "cuda": "triton"}.get(device) if setting == "auto" else setting
    if kernels is None or _import_problem(kernels):
        return "eager"
    if _knows(kernels, device, dtype):
        return kernels
    if setting == kernels:
        _warn_of_eager(kernels, device, dtype)
    return "eager"


def filtered_sum(values: Tensor, filters: Tensor, links: Links) -> Tensor:
    """Sum filtered neighbours: ``out_i = sum_j filter_ij * value_j``.

    Args:
        values: of the nodes, [N, F] or [N, C, F].
        filters: of the pairs, [P, F].
        links: sender and receiver of every edge.

    Returns:
        [N, F] or [N, C, F].
    """
    return _sum("filtered", (values, filters), links)


def directed_sum(values: Tensor, filters: Tensor, directions: Tensor, links: Links) -> Tensor:
    """Sum directions times filtered neighbours: ``out_i = sum_j direction_ij x filter_ij value_j``.

    Args:
        values: of the nodes, [N, F].
        filters: of the pairs, [P, F].
        directions: unit vectors of the edges, [E, 3].
        links: sender and receiver of every edge.

    Returns:
        Vectors of the nodes, [N, 3, F].
    """
    return _sum("directed", (values, filters, directions), links)


def vector_messages_sum(
    values: Tensor,
    filters: Tensor,
    directions: Tensor,
    vectors: Tensor,
    vector_filters: Tensor,
    links: Links,
) -> Tensor:
    """Return ``directed_sum(values, ...) + filtered_sum(vectors, ...)`` in one pass over the edges.

    Args:
        values: of the nodes, [N, F].
        filters: of ``values``, of the pairs, [P, F].
        directions: unit vectors of the edges, [E, 3].
        vectors: of the nodes, [N, 3, F].
        vector_filters: of ``vectors``, of the shape of ``filters``.
        links: sender and receiver of every edge.

    Returns:
        Vectors of the nodes, [N, 3, F].
    """
    return _sum("vectors", (values, filters, directions, vectors, vector_filters), links)


def weighted_sum(values: Tensor, weights: Tensor, links: Links) -> Tensor:
    """Sum neighbours by weights of the edges: ``out_i = sum_j weight_ij * value_j``.

    Args:
        values: of the nodes, [N, F]; head h owns the h-th of H equal parts of the channels.
        weights: of the pairs, [P, H].
        links: sender and receiver of every edge.

    Returns:
        [N, F].
    """
    if weights.shape[1] == 1:  # torch's own kernel is as quick as a loop
        links = replace(links, kernels="eager")
    return _sum("weighted", (values, weights), links)


def attention_sum(values: Tensor, filters: Tensor, weights: Tensor, links: Links) -> Tensor:
    """Sum attended neighbours: ``out_i = sum_j weight_ij filter_ij value_j``, [N, F].

    Args:
        values: of the nodes, [N, F]; head h owns the h-th of H equal parts of the channels.
        filters: of the pairs, [P, F].
        weights: attention weight of each edge and head, [E, H].
        links: sender and receiver of every edge.
    """
    return _sum("attended", (values, filters, weights), links)


def edge_scores(
    received: Tensor, sent: Tensor, filters: Tensor, links: Links, heads: int
) -> Tensor:
    """Return the attention scores of edges, ``sum_f received_i sent_j filter_ij``, [E, H].

    Args:
        received: queries of the nodes, read at the receiver, [N, F].
        sent: keys of the nodes, read at the sender, [N, F].
        filters: of the pairs, [P, F].
        links: sender and receiver of every edge.
        heads: number of heads, H; each sums over its own part of the features.
    """
    received, sent, filters = given = unify_dtypes((received, sent, filters))
    kernels = usable_kernels(links.kernels, given)
    shape = received.new_empty(1).expand(links.sender.shape[0], heads)
    return _differentiate("attended", 2, kernels, (sent, filters, shape, received), links.arrays)


def coupled_sum(values: Tensor, filters: Tensor, mixing: Tensor, links: Links) -> Tensor:
    """Sum coupled neighbours: ``out_i[b] = sum_j filter_ij sum_a mixing_ij[b, a] value_j[a]``.

    Args:
        values: of the nodes, [N, A, F].
        filters: of the pairs, [P, F].
        mixing: one matrix per edge, from components of the sender to those of the sum, [E, B, A].
        links: sender and receiver of every edge.

    Returns:
        Sums at the nodes, [N, B, F].
    """
    return _sum("coupled", (values, filters, mixing), links)


def triplet_sum(messages: Tensor, filters: Tensor, weights: Tensor, links: Links) -> Tensor:
    """Sum over triplets: ``out_ji = sum_k message_kj * sum_s weight_kji,s filter_s,kj``.

    Args:
        messages: of the edges, [E, F].
        filters: of the pairs, for each function of the angle, [S, P, F].
        weights: functions of the angles, [T, S].
        links: first edge (the sender) and second edge (the receiver) of every triplet, sorted by
            the second.

    Returns:
        Sums at the second edges, [E, F].
    """
    return _sum("triplets", (messages, filters, weights), links)


def _sum(form: str, inputs: Sequence[Tensor], links: Links) -> Tensor:
    """Differentiate a form by its last argument, the gradient of the sum."""
    given = unify_dtypes(inputs)
    kernels = usable_kernels(links.kernels, given)
    return _differentiate(form, len(given), kernels, (*given, None), links.arrays)


def usable_kernels(kernels: str, tensors: Sequence[Tensor]) -> str:
    """Return the implementation that runs on tensors: ``kernels``, or ``eager`` where it cannot.

    Loops take tensors of one device, plain and not being traced; those of numba, of one type.
    """
    if kernels == "eager" or torch.compiler.is_compiling():
        return "eager"
    if torch._C._len_torch_dispatch_stack():
        return "eager"
    device, dtype = tensors[0].device, tensors[0].dtype
    fits = all(
        t.device == device
        and type(t) in (Tensor, nn.Parameter)
        and (t.dtype is dtype or kernels == "triton")
        and _knows(kernels, device.type, t.dtype)
        for t in tensors
    )
    return kernels if fits else "eager"


def _find_slopes(form: str, kernels: str) -> FormSlopes:
    """Return the implementation of a form; numba and Triton are imported at their first use."""
    if kernels == "triton":
        from hydragnn_hpo.model.kernels.triton_passes import TRITON_FORMS

        return TRITON_FORMS[form]
    if kernels == "numba":
        from hydragnn_hpo.model.kernels.numba_passes import NUMBA_FORMS

        return NUMBA_FORMS[form]
    return EAGER_FORMS[form]


def _differentiate(
    form: str, slot: int, kernels: str, arguments: Arguments, links: Sequence[Tensor]
) -> Tensor:
    """Differentiate a form by its argument number ``slot``, with any kernels, without autocast."""
    with without_autocast(links[0]):
        result: Tensor = _Derivative.apply(  # type: ignore[no-untyped-call]
            form, slot, kernels, *arguments, *links
        )
    return result


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
    from hydragnn_hpo.model.kernels.numba_passes import NUMBA_CURVATURES

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
