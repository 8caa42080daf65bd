"""Sums over neighbours equal a loop over edges, and so do their first and second gradients."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from hydragnn_hpo.model import sums
from hydragnn_hpo.model.arrows import arrows

NODES, FEATURES, COMPONENTS = 5, 2, 3
BONDS = [(0, 1), (2, 0), (0, 3), (1, 3), (2, 2), (2, 2), (0, 1)]
"""Sender and receiver of one edge of each pair: node 2 sees two images of itself, 0 and 1 are
joined twice, and node 4 is alone."""


def paired(bonds):
    """Lay out each bond and its reverse as data.pairs does."""
    first = torch.tensor(bonds, dtype=torch.long).view(-1, 2)
    sender, receiver = torch.cat((first, first.flip(1))).unbind(1)
    order = torch.argsort(receiver, stable=True)
    return sums.paired_links(sender, receiver, order, NODES), len(bonds)


def single(bonds):
    """Take the same edges in another order, and leave one out, so that they are no pairs."""
    first = torch.tensor(bonds, dtype=torch.long).view(-1, 2)
    both = torch.cat((first, first.flip(1)))
    some = both[torch.randperm(len(both), generator=torch.Generator().manual_seed(0))][1:]
    sender, receiver = some.unbind(1)
    return sums.links_of(sender, receiver, NODES), len(some)


LAYOUTS = {
    "paired": lambda: paired(BONDS),
    "single": lambda: single(BONDS),
    "one bond": lambda: paired(BONDS[:1]),
    "no pairs": lambda: paired([]),
    "no edges": lambda: single([]),
}


@pytest.fixture(params=list(LAYOUTS))
def layout(request):
    """Links, and the rows of a filter."""
    return LAYOUTS[request.param]()


def draw(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randn(shape, generator=generator, dtype=torch.float64)
    return numbers.requires_grad_(True)


def edges_of(links):
    return list(enumerate(zip(links.sender.tolist(), links.receiver.tolist(), strict=True)))


def row(edge, filters):
    return filters[edge % len(filters)]


def looped_filtered(values, filters, links):
    out = [torch.zeros_like(values[0]) for _ in range(NODES)]
    for edge, (sender, receiver) in edges_of(links):
        out[receiver] = out[receiver] + values[sender] * row(edge, filters)
    return torch.stack(out)


def looped_spread(messages, components, links):
    out = [messages.new_zeros(components.shape[1], FEATURES) for _ in range(NODES)]
    for edge, (_, receiver) in edges_of(links):
        out[receiver] = out[receiver] + torch.outer(components[edge], messages[edge])
    return torch.stack(out)


def looped_joined(at_receiver, at_sender, pair, links):
    rows = [
        at_receiver[receiver] + at_sender[sender] + (0.0 if pair is None else row(edge, pair))
        for edge, (sender, receiver) in edges_of(links)
    ]
    return torch.stack(rows) if rows else at_receiver.new_zeros(0, FEATURES)


def looped_scaled(values, filters, links):
    rows = [values[sender] * row(edge, filters) for edge, (sender, _) in edges_of(links)]
    return torch.stack(rows) if rows else values.new_zeros(0, FEATURES)


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-14)


def twice_differentiable(function, inputs):
    assert gradcheck(function, inputs)
    assert gradgradcheck(function, inputs)


@pytest.mark.parametrize("shape", [(NODES, FEATURES), (NODES, COMPONENTS, FEATURES)])
def test_filtered(layout, shape):
    links, rows = layout
    inputs = draw(*shape), draw(rows, FEATURES, seed=1)
    close(sums.filtered(*inputs, links), looped_filtered(*inputs, links))
    twice_differentiable(lambda v, f: sums.filtered(v, f, links), inputs)


def test_spread(layout):
    links, _ = layout
    edges = len(links.sender)
    inputs = draw(edges, FEATURES), draw(edges, COMPONENTS, seed=1)
    close(sums.spread(*inputs, links), looped_spread(*inputs, links))
    twice_differentiable(lambda m, c: sums.spread(m, c, links), inputs)


def test_joined(layout):
    links, rows = layout
    inputs = draw(NODES, FEATURES), draw(NODES, FEATURES, seed=1), draw(rows, FEATURES, seed=2)
    close(sums.joined(*inputs, links), looped_joined(*inputs, links))
    twice_differentiable(lambda r, s, p: sums.joined(r, s, p, links).sin(), inputs)
    close(sums.joined(*inputs[:2], None, links), looped_joined(*inputs[:2], None, links))
    twice_differentiable(lambda r, s: sums.joined(r, s, None, links).sin(), inputs[:2])


def test_scaled(layout):
    links, rows = layout
    inputs = draw(NODES, FEATURES), draw(rows, FEATURES, seed=1)
    close(sums.scaled(*inputs, links), looped_scaled(*inputs, links))
    twice_differentiable(lambda v, f: sums.scaled(v, f, links), inputs)


def test_times(layout):
    links, rows = layout
    messages, filters = draw(len(links.sender), FEATURES), draw(rows, FEATURES, seed=1)
    expected = [messages[e] * row(e, filters) for e in range(len(messages))]
    close(
        sums.times(messages, filters),
        torch.stack(expected) if expected else torch.zeros_like(messages),
    )
    twice_differentiable(sums.times, (messages, filters))


def test_add(layout):
    links, _ = layout
    messages = draw(len(links.sender), FEATURES)
    expected = messages.new_zeros(NODES, FEATURES).index_add(0, links.receiver, messages)
    close(sums.add(messages, links), expected)
    twice_differentiable(lambda m: sums.add(m, links).sin(), (messages,))


@pytest.mark.parametrize("end", ["sender", "receiver"])
@pytest.mark.parametrize("shape", [(NODES, FEATURES), (NODES, COMPONENTS, FEATURES)])
def test_take(layout, end, shape):
    links, _ = layout
    values = draw(*shape)
    close(sums.take(values, links, end), values[getattr(links, end)])
    twice_differentiable(lambda v: sums.take(v, links, end).sin(), (values,))


def test_no_nodes_at_all():
    nothing = torch.zeros(0, dtype=torch.long)
    for links in (
        sums.paired_links(nothing, nothing, nothing, 0),
        sums.links_of(nothing, nothing, 0),
    ):
        values, filters = draw(0, FEATURES), draw(0, FEATURES)
        found = sums.filtered(values, filters, links)
        assert found.shape == (0, FEATURES)
        assert sums.spread(values, draw(0, COMPONENTS), links).shape == (0, COMPONENTS, FEATURES)
        assert sums.joined(values, values, filters, links).shape == (0, FEATURES)
        slopes = torch.autograd.grad(found.sum(), (values, filters))
        assert [slope.shape for slope in slopes] == [(0, FEATURES)] * 2


def test_only_the_inputs_are_kept_for_the_backward_pass():
    """What is gathered along the edges would be E * F more numbers."""
    links, rows = paired(BONDS)
    values, filters = draw(NODES, FEATURES), draw(rows, FEATURES)
    kept = set()

    def note(tensor):
        kept.add(tensor.untyped_storage().data_ptr())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        found = sums.filtered(values, filters, links)
    known = (values, filters, *links.arrays)
    assert kept == {tensor.untyped_storage().data_ptr() for tensor in known}
    assert found.requires_grad


def test_links_list_each_edge_once_in_the_order_of_its_end(layout):
    links, _ = layout
    for end, order, starts in (
        (links.receiver, links.by_receiver, links.receiver_starts),
        (links.sender, links.by_sender, links.sender_starts),
    ):
        assert sorted(order.tolist()) == list(range(len(end)))
        for node in range(NODES):
            mine = order[starts[node] : starts[node + 1]]
            assert sorted(mine.tolist()) == [e for e in range(len(end)) if end[e] == node]


@pytest.mark.parametrize("components", [1, COMPONENTS])
def test_slopes_are_the_same_whether_or_not_they_are_differentiated_again(layout, components):
    """A gradient has a quick way and a differentiable one: checks of one miss the other."""
    links, rows = layout
    shape = (NODES, FEATURES) if components == 1 else (NODES, components, FEATURES)
    inputs = draw(*shape), draw(rows, FEATURES, seed=1)
    weigh = draw(*shape, seed=2).detach()
    quick, slow = (
        torch.autograd.grad(
            (sums.filtered(*inputs, links) * weigh).sum(), inputs, create_graph=again
        )
        for again in (False, True)
    )
    for one, other in zip(quick, slow, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-14)


def arrow_inputs(links, rows):
    edges = len(links.sender)
    return (
        draw(edges, FEATURES, seed=1),
        draw(edges, 3, seed=2),
        draw(NODES, 3, FEATURES, seed=3),
        draw(rows, FEATURES, seed=4),
    )


def test_arrows_are_both_sums_in_one(layout):
    links, rows = layout
    messages, directions, vectors, filters = inputs = arrow_inputs(links, rows)
    found = arrows(*inputs, links)
    apart = sums.spread(messages, directions, links) + sums.filtered(vectors, filters, links)
    torch.testing.assert_close(found, apart, rtol=0, atol=1e-14)
    assert gradcheck(lambda *given: arrows(*given, links), inputs)
    assert gradgradcheck(lambda *given: arrows(*given, links), inputs)
    # Energies alone: directions have no slope, and there is a quick way.
    learned = (messages, vectors, filters)
    weigh = draw(NODES, 3, FEATURES, seed=5).detach()
    wanted = torch.autograd.grad((apart * weigh).sum(), learned)
    quick = arrows(messages, directions.detach(), vectors, filters, links)
    for one, other in zip(torch.autograd.grad((quick * weigh).sum(), learned), wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-14)
