"""Every check is seen to fail: on a conv that is sound but for one thing."""

import random
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.autograd import Function

from hydragnn_hpo.model.edges import measure_edges
from hydragnn_hpo.testing import check_conv
from hydragnn_hpo.testing.conv_suite import CHECKS

pytestmark = pytest.mark.slow  # all together they take longer than most rooms

BROKEN = {}


def breaks(*checks):
    """Note which checks a conv must fail; all others it must pass."""

    def note(conv):
        BROKEN[conv.__name__] = (conv, frozenset(checks))
        return conv

    return note


class Sound(nn.Module):
    """Neighbours through filters of their distance; each broken conv changes one step."""

    def __init__(self, dimensions, options):
        super().__init__()
        features = dimensions.features
        self.send = nn.Linear(features, features)
        self.filter = nn.Linear(dimensions.basis_size, features)
        self.out = nn.Linear(features, features)

    def filters(self, edges):
        return edges.expand_pairs(self.filter(edges.pair_basis) * edges.pair_envelope)

    def gathered(self, scalars, edges):
        return edges.sum_messages(edges.at_sender(self.send(scalars)) * self.filters(edges))

    def forward(self, scalars, state, edges):
        return torch.tanh(self.out(self.gathered(scalars, edges))), None


class SoundVectors(Sound):
    """With one vector per channel, made anew by each layer."""

    vectors = True

    def arrows(self, scalars, edges):
        return edges.outer_sum(edges.at_sender(scalars) * self.filters(edges), edges.directions)

    def forward(self, scalars, state, edges):
        change, _ = super().forward(scalars, state, edges)
        if state is not None:
            change = change + (state * state).sum(1)
        return change, self.arrows(scalars, edges)


@breaks("contract")
class GivesNoPair(Sound):
    def forward(self, scalars, state, edges):
        return super().forward(scalars, state, edges)[0]


@breaks("contract")
class GivesSingle(Sound):
    def forward(self, scalars, state, edges):
        return super().forward(scalars, state, edges)[0].float(), None


@breaks("contract")
class GivesTransposedVectors(SoundVectors):
    def arrows(self, scalars, edges):
        return super().arrows(scalars, edges).transpose(1, 2)


@breaks("parameters")
class FeedsNobody(SoundVectors):
    """Builds what only its last state would need, also where nobody reads that."""

    def __init__(self, dimensions, options):
        super().__init__(dimensions, options)
        self.mix = nn.Linear(dimensions.features, dimensions.features, bias=False)

    def arrows(self, scalars, edges):
        return self.mix(super().arrows(scalars, edges))


@breaks("empty batch")
class SkipsWithoutNodes(Sound):
    def forward(self, scalars, state, edges):
        if len(scalars) == 0:
            return torch.zeros_like(scalars), None
        return super().forward(scalars, state, edges)


@breaks("empty batch")
class LearnsFromNothing(Sound):
    """Its bias has a gradient although no node does: the sum of no rows is taken as 1."""

    def forward(self, scalars, state, edges):
        change, _ = super().forward(scalars, state, edges)
        if len(scalars) == 0:
            self.out.bias.register_hook(lambda slope: slope + 1.0)
        return change, None


@breaks("float32")
class RoundsToHalf(Sound):
    def forward(self, scalars, state, edges):
        change, _ = super().forward(scalars, state, edges)
        half = change.bfloat16().to(change.dtype)
        return (half if change.dtype == torch.float32 else change), None


@breaks("seed")
class DrawsElsewhere(Sound):
    def __init__(self, dimensions, options):
        super().__init__(dimensions, options)
        nn.init.constant_(self.out.bias, random.SystemRandom().random())


@breaks("repeat")
class CountsItsCalls(Sound):
    """Its answer depends on how often it was asked; a buffer keeps the count."""

    def __init__(self, dimensions, options):
        super().__init__(dimensions, options)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, scalars, state, edges):
        change, _ = super().forward(scalars, state, edges)
        if not torch.is_grad_enabled() and scalars.dtype == torch.float64:
            self.calls += 1
        return change * (1.0 + 1e-13 * self.calls), None


@breaks("repeat")
class KnowsTheMode(Sound):
    """Its training mode is deterministic, and another function than its evaluation mode."""

    def forward(self, scalars, state, edges):
        change, _ = super().forward(scalars, state, edges)
        return change if self.training else 0.9 * change, None


@breaks("contract")
class WritesIntoItsInput(Sound):
    """Where gradients are needed, it leaves the scalars alone."""

    def forward(self, scalars, state, edges):
        change = super().forward(scalars, state, edges)
        if not torch.is_grad_enabled():
            scalars *= 0.5
        return change


@breaks("state dict")
class HidesATensor(Sound):
    """A random tensor that is neither parameter nor buffer; the seed decides it."""

    def __init__(self, dimensions, options):
        super().__init__(dimensions, options)
        self.hidden = torch.rand(()).item()

    def forward(self, scalars, state, edges):
        change, _ = super().forward(scalars, state, edges)
        return change * (1.0 + self.hidden), None


@breaks("rotation", "reflection")
class SeesX(Sound):
    def filters(self, edges):
        return super().filters(edges) * (1.0 + 0.1 * edges.directions[:, :1])


@breaks("reflection")
class GivesPseudovectors(SoundVectors):
    def forward(self, scalars, state, edges):
        change, _ = Sound.forward(self, scalars, state, edges)
        arrows = self.arrows(scalars, edges)
        turned = torch.linalg.cross(arrows, arrows.roll(1, dims=2), dim=1)
        return change + (0.0 if state is None else (state * state).sum(1)), turned


@breaks("node order", "edge order", "supercell", "batch", "cutoff")
class CountsAlongEdges(Sound):
    """Which edge comes first matters."""

    def filters(self, edges):
        place = torch.arange(len(edges.sender)).to(edges.directions) + 1.0
        return super().filters(edges) / place.unsqueeze(-1)


@breaks("edge order")
class TakesPairsForGranted(Sound):
    """Each half of the edges gets a weight of its own, as if the first were all pairs."""

    def filters(self, edges):
        return super().filters(edges) * (1.0 if edges.paired else 2.0)


@breaks("batch")
class MixesGraphs(Sound):
    def gathered(self, scalars, edges):
        results = super().gathered(scalars, edges)
        return results + results.sum(0) / max(len(results), 1)


@breaks("batch", "repeat")
class HasBatchNorm(Sound):
    """In evaluation mode its batches would pass (Law 1)."""

    def __init__(self, dimensions, options):
        super().__init__(dimensions, options)
        self.norm = nn.BatchNorm1d(dimensions.features, momentum=None)

    def gathered(self, scalars, edges):
        results = super().gathered(scalars, edges)
        unused = 0 * (self.norm.weight + self.norm.bias)
        return self.norm(results) if len(results) > 1 else results + unused


@breaks("batch")
class MixesLargeGraphs(Sound):
    """As attention in blocks of 64 rows that forgets where a graph ends."""

    def gathered(self, scalars, edges):
        results = super().gathered(scalars, edges)
        return results + results.mean(0) if len(results) > 64 else results


@breaks("supercell")
class IgnoresItsOwnImages(Sound):
    def filters(self, edges):
        return super().filters(edges) * (edges.sender != edges.receiver).unsqueeze(-1)


@breaks("images")
class IsDeaf(Sound):
    def filters(self, edges):
        return super().filters(edges) * 0.0


@breaks("cutoff")
class FallsQuadratically(Sound):
    def filters(self, edges):
        return edges.expand_pairs(self.filter(edges.pair_basis) * edges.pair_envelope ** (2 / 3))


@breaks("gradient", "force training")
class DetachesLengths(Sound):
    """Its energies are right, but their gradient lacks a term: so does its own gradient."""

    def filters(self, edges):
        return edges.expand_pairs(self.filter(edges.pair_basis.detach()) * edges.pair_envelope)


class OnceOnly(Function):
    """The sine, whose gradient cannot be differentiated again, and does not say so."""

    @staticmethod
    def forward(ctx, values):
        ctx.save_for_backward(values)
        return values.sin()

    @staticmethod
    def backward(ctx, slope):
        (values,) = ctx.saved_tensors
        return slope * values.detach().cos()


@breaks("force training")
class DifferentiatesOnce(Sound):
    def gathered(self, scalars, edges):
        return OnceOnly.apply(super().gathered(scalars, edges))


@breaks("isolated atom", "no edges")
class DividesByNothing(Sound):
    def gathered(self, scalars, edges):
        return super().gathered(scalars, edges) / edges.sum_messages(edges.envelope)


@breaks("symmetric site", "isolated atom", "kink")
class TakesNorms(SoundVectors):
    """The gradient of a norm is not a number where the vectors cancel, or where there are none."""

    def forward(self, scalars, state, edges):
        change, arrows = super().forward(scalars, state, edges)
        same = edges.outer_sum(self.filters(edges), edges.directions)
        return change + (same * same).sum(1).sqrt(), arrows


class CancelsFirst(Sound):
    """Its messages carry directions without the sender, which cancel at a symmetric site."""

    def summed(self, edges):
        return edges.outer_sum(self.filters(edges)[:, :4], edges.directions)

    def forward(self, scalars, state, edges):
        change, _ = super().forward(scalars, state, edges)
        return change + self.length(self.summed(edges)).sum(1, keepdim=True), None


@breaks("kink", "symmetric site")
class TakesTorchsNorm(CancelsFirst):
    """The gradient of ``norm`` is 0 at 0 and of finite size around it; its own is not finite."""

    def length(self, vectors):
        return vectors.norm(dim=1)


@breaks("kink")
class ClampsSquares(CancelsFirst):
    """No number is infinite, and 1e-6 angstrom aside the gradient is of finite size."""

    def length(self, vectors):
        return (vectors * vectors).sum(1).clamp(min=1e-14).sqrt()


@breaks("kink")
class TakesTheNormOfTensors(CancelsFirst):
    """Squares of directions cancel where three axes are alike, not in a straight molecule."""

    def summed(self, edges):
        one = edges.directions
        square = (one.unsqueeze(1) * one.unsqueeze(2)).flatten(1) - torch.eye(3).flatten().to(
            one
        ) / 3
        return edges.outer_sum(self.filters(edges)[:, :4], square)

    def length(self, vectors):
        return vectors.norm(dim=1)


@breaks("many neighbours", "batch")
class HearsTheNearest(Sound):
    """At most twenty neighbours send."""

    most = 20

    def filters(self, edges):
        lengths = edges.expand_pairs(edges.pair_lengths)
        apart = lengths + 1e3 * edges.receiver
        order = torch.argsort(apart)
        first = torch.searchsorted(apart[order], 1e3 * edges.receiver.to(apart))
        rank = torch.empty_like(order)
        rank[order] = torch.arange(len(order))
        return super().filters(edges) * (rank - first < self.most).unsqueeze(-1)


@breaks("many neighbours", "batch")
class HearsNearlyAll(HearsTheNearest):
    most = 60


@breaks("compile")
class ActsUpWhenCompiled(Sound):
    def filters(self, edges):
        doubled = torch.compiler.is_dynamo_compiling() and not torch.compiler.is_exporting()
        return super().filters(edges) * (2.0 if doubled else 1.0)


@breaks("export")
class BranchesOnValues(Sound):
    def gathered(self, scalars, edges):
        result = super().gathered(scalars, edges)
        return result if result.numel() and bool(result.sum() > 1e9) else result * 1.0


COSTLY = {"compile", "export"}


@pytest.mark.parametrize("conv", [Sound, SoundVectors])
def test_a_sound_conv_passes_everything(conv):
    assert [finding.sentence for finding in check_conv(conv).failures] == []


@pytest.mark.parametrize(("conv", "expected"), BROKEN.values(), ids=BROKEN)
def test_a_broken_conv_fails_what_it_breaks_and_nothing_else(conv, expected):
    report = check_conv(conv, only=set(CHECKS) - COSTLY | expected)
    results = {finding.name: finding.sentence for finding in report.failures}
    assert set(results) == expected, results
    assert not report.passed
    assert all(finding.advice for finding in report.failures)


def test_atoms_at_their_images_are_found_where_edges_forget_shifts(monkeypatch):
    """No conv sees positions, so that only the net's own geometry can break this."""

    def forgetful(batch, **settings):
        shifts = torch.zeros_like(batch.edge_shift)
        return measure_edges(replace(batch, edge_shift=shifts), **settings)

    monkeypatch.setattr("hydragnn_hpo.model.gnn.measure_edges", forgetful)
    report = check_conv(Sound, only=["translation", "node order"])
    assert [finding.name for finding in report.failures] == ["translation"]


def test_flags_of_the_class_leave_checks_out():
    class Flagged(BranchesOnValues):
        forces = exports = False

    report = check_conv(Flagged, only=["gradient", "force training", "export", "batch"])
    assert {finding.name: finding.result for finding in report.findings} == {
        "batch": "passed",
        "gradient": "left out",
        "force training": "left out",
        "export": "left out",
    }
    assert report.passed


def test_a_conv_that_gives_nothing_useful_gets_no_more_requests():
    report = check_conv(GivesNoPair)
    assert [finding.name for finding in report.failures] == ["contract"]
    assert {finding.result for finding in report.findings[1:]} == {"left out"}


def test_every_check_has_a_conv_that_breaks_it():
    broken = set().union(*(checks for _, checks in BROKEN.values()))
    assert broken | {"translation"} == set(CHECKS)
