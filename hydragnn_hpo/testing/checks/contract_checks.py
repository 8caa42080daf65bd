"""Laws of ranks, files and precision: shapes, gradients, seeds, state, weights as tensors.

Shapes: N nodes, C components, F features.
"""

from collections.abc import Iterator, Sequence

import torch
from safetensors.torch import load, save
from torch import Tensor

from hydragnn_hpo.data import Batch
from hydragnn_hpo.model import MultiHeadGNN
from hydragnn_hpo.testing.check_report import ConvCheck, Measurement
from hydragnn_hpo.testing.conv_under_test import ConvUnderTest, largest_deviation, predict_all
from hydragnn_hpo.testing.sample_structures import (
    batch_structures,
    empty_batch,
    molecule,
    molecule_and_crystal,
)

SINGLE = 1e-4
"""Largest relative difference between fp32 and fp64."""


def count_contract_errors(subject: ConvUnderTest) -> Measurement:
    """Count wrong shapes, dtypes and values that layers return, in fp64 and fp32."""
    faults: list[str] = []
    for dtype in (torch.float64, torch.float32):
        trunk = subject.build(dtype=dtype).trunk
        edges = trunk.edges(batch_structures(molecule_and_crystal(), dtype))
        generator = torch.Generator().manual_seed(0)
        scalars = torch.randn(
            edges.num_nodes, subject.features, generator=generator, dtype=torch.float64
        ).to(dtype)
        state = None
        for layer, conv in enumerate(trunk.convs):
            answer = conv(scalars, state, edges)
            if not (isinstance(answer, tuple) and len(answer) == 2):
                returned = type(answer).__name__
                return Measurement(1, 0, detail=f"layer {layer} gives no pair but a {returned}")
            given = scalars.clone()
            with torch.no_grad():
                conv(given, state, edges)
            if not torch.equal(given, scalars):
                faults.append(f"layer {layer}: it writes into the scalars that it gets")
            change, state = answer
            faults += [
                f"layer {layer}: {f}" for f in _contract_error(change, scalars, "the change")
            ]
            if subject.vectors:
                faults += [f"layer {layer}: {f}" for f in _vector_error(state, scalars)]
            if faults:
                return Measurement(len(faults), 0, detail="; ".join(faults[:2]))
    return Measurement(0, 0)


def _contract_error(value: object, like: Tensor, what: str) -> list[str]:
    if not isinstance(value, Tensor):
        return [f"{what} is no tensor but a {type(value).__name__}"]
    faults = []
    if value.shape != like.shape:
        faults.append(f"{what} is {list(value.shape)} instead of [N, F] = {list(like.shape)}")
    if value.dtype != like.dtype:
        faults.append(f"{what} is {value.dtype} where the scalars are {like.dtype}")
    if not torch.isfinite(value).all():
        faults.append(f"{what} holds numbers that are not finite")
    return faults


def _vector_error(state: object, scalars: Tensor) -> list[str]:
    if not isinstance(state, Tensor):
        return [f"the state is no tensor [N, C, F] but a {type(state).__name__}"]
    nodes, features = scalars.shape
    if state.dim() != 3 or state.shape[::2] != (nodes, features) or state.shape[1] < 3:
        return [f"the state is {list(state.shape)} instead of [N, C, F] with C of 3 or more"]
    faults = _contract_error(state, state.to(scalars.dtype), "the state")
    return faults if state[:, :3].abs().max() > 0 else [*faults, "the vectors are all zero"]


def _train_steps(net: MultiHeadGNN, batch: Batch) -> tuple[list[str], list[str]]:
    """Run one backward pass.

    Returns:
        Names of parameters without a gradient, and of those whose gradient is not finite.
    """
    net.zero_grad(set_to_none=True)
    loss = torch.stack([value.double().square().sum() for value in net(batch).values()]).sum()
    loss.backward()  # type: ignore[no-untyped-call]
    named = list(net.named_parameters())
    missing = [name for name, each in named if each.grad is None]
    bad = [n for n, p in named if p.grad is not None and not torch.isfinite(p.grad).all()]
    return missing, bad


def _heads(subject: ConvUnderTest) -> Sequence[tuple[str, ...]]:
    """Return the heads of nets: of one that ignores the last state, and of one that reads it."""
    return (("energy",), ("arrow",)) if subject.vectors else (("energy",),)


def _few(faults: Sequence[str]) -> str:
    more = f" and {len(faults) - 3} more" if len(faults) > 3 else ""
    return "; ".join(faults[:3]) + more


def count_missing_gradients(subject: ConvUnderTest) -> Measurement:
    """Count parameters that a loss does not depend on."""
    faults = []
    for names in _heads(subject):
        missing, bad = _train_steps(
            subject.build(targets=names), batch_structures(molecule_and_crystal())
        )
        faults += [f"no gradient for {name} (loss of {names[0]})" for name in missing]
        faults += [f"gradient of {name} is not finite" for name in bad]
    return Measurement(len(faults), 0, detail=_few(faults))


def _share(subject: ConvUnderTest, batch: Batch, *, zero: bool) -> Measurement:
    """Count bad gradients of a batch, but not those that are missing with any batch.

    Args:
        subject: the conv.
        batch: without edges or graphs.
        zero: whether all gradients must be 0.
    """
    faults = []
    for names in _heads(subject):
        net = subject.build(targets=names)
        never, _ = _train_steps(net, batch_structures(molecule_and_crystal()))
        missing, bad = _train_steps(net, batch)
        faults += [f"no gradient for {name}" for name in missing if name not in never]
        faults += [f"gradient of {name} is not finite" for name in bad]
        named = [(n, p.grad) for n, p in net.named_parameters() if p.grad is not None]
        moved = [name for name, slope in named if zero and name not in bad and slope.any()]
        faults += [f"gradient of {name} is not zero" for name in moved]
    return Measurement(len(faults), 0, detail=_few(faults))


def measure_no_edges(subject: ConvUnderTest) -> Measurement:
    """Run a backward pass on isolated atoms."""
    far = molecule([1, 8], [[0.0, 0.0, 0.0], [30.0, 0.0, 0.0]])
    return _share(subject, batch_structures([molecule([26], [[0.0, 0.0, 0.0]]), far]), zero=False)


def measure_empty_batch(subject: ConvUnderTest) -> Measurement:
    """Run a backward pass on no graph: gradients must exist, and be 0."""
    return _share(subject, empty_batch(), zero=True)


def measure_single_precision(subject: ConvUnderTest) -> Measurement:
    """Compare fp32 with fp64."""
    net = subject.build(dtype=torch.float32)
    net.load_state_dict(subject.net.state_dict())
    predicted = predict_all(net, batch_structures(molecule_and_crystal(), torch.float32))
    return Measurement(
        largest_deviation(predicted, subject.predict(molecule_and_crystal())), SINGLE
    )


def measure_same_seed(subject: ConvUnderTest) -> Measurement:
    """Build twice with one seed."""
    first, second = (dict(_tensors(subject.build(seed=5))) for _ in range(2))
    wrong = [n for n in first if n not in second or not torch.equal(first[n], second[n])]
    return Measurement(len(wrong), 0, detail=f"differ: {_few(wrong)}" if wrong else "")


def _tensors(net: MultiHeadGNN) -> Iterator[tuple[str, Tensor]]:
    yield from net.named_parameters()
    yield from net.named_buffers()


def measure_repetition(subject: ConvUnderTest) -> Measurement:
    """Predict one batch twice, with another in between, and a third time in evaluation mode."""
    first, *others = molecule_and_crystal()
    before = subject.predict([first])
    subject.predict(others)
    again = [subject.predict([first])]
    subject.net.eval()
    again.append(subject.predict([first]))
    subject.net.train()
    deviations = torch.tensor([largest_deviation(each, before) for each in again])
    return Measurement(float(deviations.max()), 0.0)  # NaN if one of them is


def measure_round_trip(subject: ConvUnderTest) -> Measurement:
    """Save the weights without pickle and load them into a net of another seed."""
    weights = subject.net.state_dict()
    strange = [name for name, value in weights.items() if not isinstance(value, Tensor)]
    if strange:
        return Measurement(len(strange), 0, detail=f"not a tensor: {_few(strange)}")
    saved = save({name: value.contiguous().clone() for name, value in weights.items()})
    other = subject.build(seed=11)
    other.load_state_dict(load(saved))
    batch = batch_structures(molecule_and_crystal())
    return Measurement(
        largest_deviation(predict_all(other, batch), predict_all(subject.net, batch)), 0.0
    )


CHECKS = (
    ConvCheck(
        "contract",
        "a layer gives the change of the scalars, [N, F], and its state",
        "See hydragnn_hpo/model/convs/__init__.py for what a conv gets and gives; make new tensors "
        "with scalars.new_zeros, so that they are of the same type.",
        count_contract_errors,
    ),
    ConvCheck(
        "parameters",
        "every parameter of every layer gets a gradient",
        "DDP waits for each of them: build no parameter that forward does not use, and none that "
        "only feeds a state where dimensions.state_is_read is false.",
        count_missing_gradients,
    ),
    ConvCheck(
        "no edges",
        "a batch without edges gives finite gradients to all parameters",
        "Do not skip the layer when there are no edges: operations on zero rows are fine.",
        measure_no_edges,
    ),
    ConvCheck(
        "empty batch",
        "a batch without graphs gives zero gradients to all parameters",
        "Do not skip the layer when there are no nodes, and take no mean or maximum over all rows.",
        measure_empty_batch,
    ),
    ConvCheck(
        "float32",
        "float32 gives what float64 gives",
        "Look for divisions by small numbers and differences of large ones.",
        measure_single_precision,
    ),
    ConvCheck(
        "seed",
        "one seed gives the same weights",
        "Draw initial weights from torch's generator, not from numpy or random (Law 5).",
        measure_same_seed,
    ),
    ConvCheck(
        "repeat",
        "the same batch gives the same answer again, in training and in evaluation mode",
        "Draw no random numbers in forward, dropout included, keep nothing between calls, and ask "
        "not for self.training (Laws 1 and 5).",
        measure_repetition,
    ),
    ConvCheck(
        "state dict",
        "weights saved as plain tensors give the same answer elsewhere",
        "Make tensors parameters or buffers (register_buffer), and write no get_extra_state.",
        measure_round_trip,
    ),
)
