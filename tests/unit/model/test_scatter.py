"""Sums over neighbours equal a loop over edges, and so do their first and second gradients."""

import pytest
import torch
from bonds import edges_between, random_edges
from torch.autograd import gradcheck, gradgradcheck

from hydragnn_hpo.model import scatter
from hydragnn_hpo.model.convs.painn import vector_messages_sum
from hydragnn_hpo.model.scatter import build_links, segment_max, segment_min, weighted_sum

NODES, FEATURES, COMPONENTS = 5, 2, 3
BONDS = [(0, 1), (2, 0), (0, 3), (1, 3), (2, 2), (2, 2), (0, 1)]
"""Sender and receiver of one edge of each pair: node 2 sees two images of itself, 0 and 1 are
joined twice, and node 4 is alone."""


def paired(bonds):
    """Lay out each bond and its reverse as data.pairs does."""
    first = torch.tensor(bonds, dtype=torch.long).view(-1, 2)
    sender, receiver = torch.cat((first, first.flip(1))).unbind(1)
    order = torch.argsort(receiver, stable=True)
    return scatter.build_paired_links(sender, receiver, order, NODES), len(bonds)


def single(bonds):
    """Take the same edges in another order, and leave one out, so that they are no pairs."""
    first = torch.tensor(bonds, dtype=torch.long).view(-1, 2)
    both = torch.cat((first, first.flip(1)))
    some = both[torch.randperm(len(both), generator=torch.Generator().manual_seed(0))][1:]
    sender, receiver = some.unbind(1)
    return scatter.build_links(sender, receiver, NODES), len(some)


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
    close(scatter.filtered_sum(*inputs, links), looped_filtered(*inputs, links))
    twice_differentiable(lambda v, f: scatter.filtered_sum(v, f, links), inputs)


def test_spread(layout):
    links, _ = layout
    edges = len(links.sender)
    inputs = draw(edges, FEATURES), draw(edges, COMPONENTS, seed=1)
    close(scatter.outer_sum(*inputs, links), looped_spread(*inputs, links))
    twice_differentiable(lambda m, c: scatter.outer_sum(m, c, links), inputs)


def test_joined(layout):
    links, rows = layout
    inputs = draw(NODES, FEATURES), draw(NODES, FEATURES, seed=1), draw(rows, FEATURES, seed=2)
    close(scatter.sum_ends(*inputs, links), looped_joined(*inputs, links))
    twice_differentiable(lambda r, s, p: scatter.sum_ends(r, s, p, links).sin(), inputs)
    close(scatter.sum_ends(*inputs[:2], None, links), looped_joined(*inputs[:2], None, links))
    twice_differentiable(lambda r, s: scatter.sum_ends(r, s, None, links).sin(), inputs[:2])


def test_scaled(layout):
    links, rows = layout
    inputs = draw(NODES, FEATURES), draw(rows, FEATURES, seed=1)
    close(scatter.filter_senders(*inputs, links), looped_scaled(*inputs, links))
    twice_differentiable(lambda v, f: scatter.filter_senders(v, f, links), inputs)


def test_times(layout):
    links, rows = layout
    messages, filters = draw(len(links.sender), FEATURES), draw(rows, FEATURES, seed=1)
    expected = [messages[e] * row(e, filters) for e in range(len(messages))]
    close(
        scatter.multiply_by_filters(messages, filters),
        torch.stack(expected) if expected else torch.zeros_like(messages),
    )
    twice_differentiable(scatter.multiply_by_filters, (messages, filters))


def test_add(layout):
    links, _ = layout
    messages = draw(len(links.sender), FEATURES)
    expected = messages.new_zeros(NODES, FEATURES).index_add(0, links.receiver, messages)
    close(scatter.sum_messages(messages, links), expected)
    twice_differentiable(lambda m: scatter.sum_messages(m, links).sin(), (messages,))


@pytest.mark.parametrize("end", ["sender", "receiver"])
@pytest.mark.parametrize("shape", [(NODES, FEATURES), (NODES, COMPONENTS, FEATURES)])
def test_take(layout, end, shape):
    links, _ = layout
    values = draw(*shape)
    close(scatter.gather_nodes(values, links, end), values[getattr(links, end)])
    twice_differentiable(lambda v: scatter.gather_nodes(v, links, end).sin(), (values,))


def test_no_nodes_at_all():
    nothing = torch.zeros(0, dtype=torch.long)
    for links in (
        scatter.build_paired_links(nothing, nothing, nothing, 0),
        scatter.build_links(nothing, nothing, 0),
    ):
        values, filters = draw(0, FEATURES), draw(0, FEATURES)
        found = scatter.filtered_sum(values, filters, links)
        assert found.shape == (0, FEATURES)
        assert scatter.outer_sum(values, draw(0, COMPONENTS), links).shape == (
            0,
            COMPONENTS,
            FEATURES,
        )
        assert scatter.sum_ends(values, values, filters, links).shape == (0, FEATURES)
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
        found = scatter.filtered_sum(values, filters, links)
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
            (scatter.filtered_sum(*inputs, links) * weigh).sum(), inputs, create_graph=again
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
    found = vector_messages_sum(*inputs, links)
    apart = scatter.outer_sum(messages, directions, links) + scatter.filtered_sum(
        vectors, filters, links
    )
    torch.testing.assert_close(found, apart, rtol=0, atol=1e-14)
    assert gradcheck(lambda *given: vector_messages_sum(*given, links), inputs)
    assert gradgradcheck(lambda *given: vector_messages_sum(*given, links), inputs)
    # Energies alone: directions have no slope, and there is a quick way.
    learned = (messages, vectors, filters)
    weigh = draw(NODES, 3, FEATURES, seed=5).detach()
    wanted = torch.autograd.grad((apart * weigh).sum(), learned)
    quick = vector_messages_sum(messages, directions.detach(), vectors, filters, links)
    for one, other in zip(torch.autograd.grad((quick * weigh).sum(), learned), wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-14)


def random_messages(seed=0, num_nodes=6, num_edges=25, features=3):
    torch.manual_seed(seed)
    sender, receiver = torch.randint(0, num_nodes - 1, (2, num_edges))
    messages = torch.randn(num_edges, features, dtype=torch.float64)
    return messages, build_links(sender, receiver, num_nodes)


def by_hand(messages, links, pick):
    rows = []
    for node in range(links.num_nodes):
        heard = [m for m, r in zip(messages, links.receiver, strict=True) if r == node]
        stack = torch.stack([torch.zeros_like(messages[0]), *heard])
        rows.append(pick(stack, dim=0))
    return torch.stack(rows)


@pytest.mark.parametrize(("found", "pick"), [(segment_max, torch.amax), (segment_min, torch.amin)])
def test_values_equal_a_loop_and_nodes_without_edges_hear_zero(found, pick):
    messages, links = random_messages()
    assert torch.equal(found(messages, links), by_hand(messages, links, pick))
    assert (found(messages, links)[-1] == 0).all()


@pytest.mark.parametrize("found", [segment_max, segment_min])
def test_two_derivatives_equal_finite_differences(found):
    messages, links = random_messages(1)
    messages.requires_grad_(True)
    weight = torch.rand(links.sender.shape[0], 1, dtype=torch.float64, requires_grad=True)

    def curved(messages, weight):
        return found(messages * weight, links).square()

    torch.autograd.gradcheck(curved, (messages, weight))
    torch.autograd.gradgradcheck(curved, (messages, weight))


def test_equal_messages_share_the_gradient_and_the_floor_takes_none():
    links = build_links(torch.tensor([0, 1, 2, 0]), torch.tensor([3, 3, 3, 1]), 4)
    messages = torch.tensor([[2.0], [2.0], [1.0], [0.0]], requires_grad=True)
    segment_max(messages, links).sum().backward()
    assert messages.grad.flatten().tolist() == [0.5, 0.5, 0.0, 0.0]
    messages.grad = None
    segment_min(messages, links).sum().backward()
    assert (messages.grad == 0).all()


@pytest.mark.parametrize("num_nodes", [0, 3])
def test_no_edges_give_zeros_that_reach_the_parameters(num_nodes):
    none = torch.zeros(0, dtype=torch.long)
    messages = torch.zeros(0, 4, requires_grad=True)
    found = segment_max(messages, build_links(none, none, num_nodes))
    found.sum().backward()
    assert found.shape == (num_nodes, 4)
    assert messages.grad.shape == (0, 4)


def dense(values, weights, edges):
    """Sum through a matrix [N, N] per head."""
    both = edges.expand_pairs(weights)
    parts = []
    for part, weight in zip(values.chunk(weights.shape[1], dim=1), both.unbind(1), strict=True):
        matrix = torch.zeros(len(values), len(values), dtype=values.dtype)
        matrix = matrix.index_put((edges.receiver, edges.sender), weight, accumulate=True)
        parts.append(matrix @ part)
    return torch.cat(parts, dim=1)


@pytest.mark.parametrize("paired", [True, False])
@pytest.mark.parametrize("heads", [1, 3])
def test_sums_equal_a_dense_matrix_and_have_two_derivatives(paired, heads):
    edges = random_edges(paired)
    values = torch.randn(6, 6, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(len(edges.pair_lengths), heads, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(
        weighted_sum(values, weights, edges.links), dense(values, weights, edges)
    )

    def curved(values, weights):
        return weighted_sum(values, weights, edges.links).square()

    torch.autograd.gradcheck(curved, (values, weights))
    torch.autograd.gradgradcheck(curved, (values, weights))


@pytest.mark.parametrize("num_nodes", [0, 2])
def test_no_edges_give_zeros_that_reach_the_parameters_weighted(num_nodes):
    none = torch.zeros(0, dtype=torch.long)
    edges = edges_between(none, none, num_nodes, True)
    values = torch.ones(num_nodes, 4, dtype=torch.float64, requires_grad=True)
    weights = edges.pair_envelope.clone().requires_grad_(True)
    found = weighted_sum(values, weights, edges.links)
    found.sum().backward()
    assert torch.equal(found, torch.zeros_like(values))
    assert torch.equal(values.grad, torch.zeros_like(values))
    assert weights.grad.shape == (0, 1)


def test_degrees_are_sums_of_envelopes():
    edges = edges_between(torch.tensor([0, 0]), torch.tensor([1, 2]), 4, True)
    near, far = edges.pair_envelope.flatten().tolist()
    expected = torch.tensor([[near + far], [near], [far], [0.0]], dtype=torch.float64)
    torch.testing.assert_close(edges.sum_messages(edges.envelope), expected)
