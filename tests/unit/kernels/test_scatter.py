"""Sums over neighbours equal a loop over edges, and so do their first and second gradients."""

from dataclasses import replace

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from hydragnn_hpo.kernels.scatter import Links
from hydragnn_hpo.model.edges import Edges
from hydragnn_hpo.model.messages import (
    attention_sum,
    coupled_sum,
    directed_sum,
    edge_scores,
    filtered_sum,
    triplet_sum,
    vector_messages_sum,
    weighted_sum,
)

NODES, FEATURES, COMPONENTS, HEADS = 5, 2, 3, 2
BONDS = [(0, 1), (2, 0), (0, 3), (1, 3), (2, 2), (2, 2), (0, 1)]
"""Sender and receiver of one edge of each pair: node 2 sees two images of itself, 0 and 1 are
joined twice, and node 4 is alone."""


def paired(bonds, lone=0):
    """Lay out each bond and its reverse, which the last ``lone`` ones lack, as data.pairs does."""
    first = torch.tensor(bonds, dtype=torch.long).view(-1, 2)
    sender, receiver = torch.cat((first, first.flip(1)[: len(bonds) - lone])).unbind(1)
    return Links.of(sender, receiver, NODES), len(bonds)


def single(bonds):
    """Take the same edges in another order, and leave one out, so that they are no pairs."""
    first = torch.tensor(bonds, dtype=torch.long).view(-1, 2)
    both = torch.cat((first, first.flip(1)))
    some = both[torch.randperm(len(both), generator=torch.Generator().manual_seed(0))][1:]
    sender, receiver = some.unbind(1)
    return Links.of(sender, receiver, NODES), len(some)


LAYOUTS = {
    "paired": lambda: paired(BONDS),
    "some paired": lambda: paired(BONDS, lone=3),
    "none paired": lambda: paired(BONDS, lone=len(BONDS)),
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


def stacked(rows):
    return torch.stack(rows) if rows else torch.zeros(0, FEATURES, dtype=torch.float64)


def looped_filtered(values, filters, links):
    out = [torch.zeros_like(values[0]) for _ in range(NODES)]
    for edge, (sender, receiver) in edges_of(links):
        out[receiver] = out[receiver] + values[sender] * row(edge, filters)
    return torch.stack(out)


def looped_outer(messages, components, links):
    out = [messages.new_zeros(components.shape[1], FEATURES) for _ in range(NODES)]
    for edge, (_, receiver) in edges_of(links):
        out[receiver] = out[receiver] + torch.outer(components[edge], messages[edge])
    return torch.stack(out)


def looped_ends(at_receiver, at_sender, pair, links):
    return stacked(
        [
            at_receiver[receiver] + at_sender[sender] + (0.0 if pair is None else row(edge, pair))
            for edge, (sender, receiver) in edges_of(links)
        ]
    )


def looped_weighted(values, weights, links):
    out = [torch.zeros_like(values[0]) for _ in range(NODES)]
    for edge, (sender, receiver) in edges_of(links):
        by_head = values[sender].view(HEADS, -1) * row(edge, weights).unsqueeze(1)
        out[receiver] = out[receiver] + by_head.flatten()
    return torch.stack(out)


def looped_directed(values, filters, directions, links):
    messages = [values[s] * row(edge, filters) for edge, (s, _) in edges_of(links)]
    return looped_outer(stacked(messages), directions, links)


def looped_vectors(values, filters, directions, vectors, vector_filters, links):
    sent = looped_directed(values, filters, directions, links)
    return sent + looped_filtered(vectors, vector_filters, links)


def looped_coupled(values, filters, mixing, links):
    out = [values.new_zeros(mixing.shape[1], FEATURES) for _ in range(NODES)]
    for edge, (sender, receiver) in edges_of(links):
        mixed = mixing[edge] @ values[sender]
        out[receiver] = out[receiver] + mixed * row(edge, filters)
    return torch.stack(out)


def sorted_by_receiver(links):
    ends = (end[links.by_receiver] for end in (links.sender, links.receiver))
    return replace(Links.of(*ends, NODES), kernels=links.kernels)


def looped_triplets(messages, filters, weights, links):
    """Sum with nodes in the role of edges, and edges in that of triplets."""
    out = [torch.zeros_like(messages[0]) for _ in range(NODES)]
    for triplet, (first, second) in edges_of(sorted_by_receiver(links)):
        factor = weights[triplet] @ filters[:, first % filters.shape[1]]
        out[second] = out[second] + factor * messages[first]
    return torch.stack(out)


SCALARS, VECTORS = (NODES, FEATURES), (NODES, COMPONENTS, FEATURES)
BY_PAIR, BY_EDGE = "one row per pair", "one row per edge"
SUMS = {
    "filtered": (filtered_sum, looped_filtered, (SCALARS, (BY_PAIR, FEATURES))),
    "filtered vectors": (filtered_sum, looped_filtered, (VECTORS, (BY_PAIR, FEATURES))),
    "outer": (
        lambda messages, components, links: links.outer_sum(messages, components),
        looped_outer,
        ((BY_EDGE, FEATURES), (BY_EDGE, COMPONENTS)),
    ),
    "ends": (
        lambda *ends: ends[3].sum_ends(*ends[:3]),
        looped_ends,
        (SCALARS, SCALARS, (BY_PAIR, FEATURES)),
    ),
    "ends alone": (
        lambda *ends: ends[2].sum_ends(*ends[:2]),
        lambda *ends: looped_ends(*ends[:2], None, ends[2]),
        (SCALARS, SCALARS),
    ),
    "senders": (
        lambda values, filters, links: links.filter_senders(values, filters),
        lambda values, filters, links: stacked(
            [values[sender] * row(edge, filters) for edge, (sender, _) in edges_of(links)]
        ),
        (SCALARS, (BY_PAIR, FEATURES)),
    ),
    "times": (
        lambda messages, filters, links: links.filter_messages(messages, filters),
        lambda messages, filters, _: stacked(
            [messages[edge] * row(edge, filters) for edge in range(len(messages))]
        ),
        ((BY_EDGE, FEATURES), (BY_PAIR, FEATURES)),
    ),
    "times one number": (
        lambda messages, filters, links: links.filter_messages(messages, filters),
        lambda messages, filters, _: stacked(
            [messages[edge] * row(edge, filters) for edge in range(len(messages))]
        ),
        ((BY_EDGE, FEATURES), (BY_PAIR, 1)),
    ),
    "added": (
        lambda messages, links: links.sum_messages(messages),
        lambda messages, links: messages.new_zeros(NODES, FEATURES).index_add(
            0, links.receiver, messages
        ),
        ((BY_EDGE, FEATURES),),
    ),
    "at receiver": (
        lambda values, links: links.at_receiver(values),
        lambda values, links: values[links.receiver],
        (SCALARS,),
    ),
    "vectors at sender": (
        lambda values, links: links.at_sender(values),
        lambda values, links: values[links.sender],
        (VECTORS,),
    ),
    "weighted": (
        weighted_sum,
        looped_weighted,
        ((NODES, HEADS * FEATURES), (BY_PAIR, HEADS)),
    ),
    "weighted alike": (weighted_sum, looped_filtered, (SCALARS, (BY_PAIR, 1))),
    "directed": (
        directed_sum,
        looped_directed,
        (SCALARS, (BY_PAIR, FEATURES), (BY_EDGE, 3)),
    ),
    "vectors": (
        vector_messages_sum,
        looped_vectors,
        (SCALARS, (BY_PAIR, FEATURES), (BY_EDGE, 3), (NODES, 3, FEATURES), (BY_PAIR, FEATURES)),
    ),
    "coupled": (
        coupled_sum,
        looped_coupled,
        (VECTORS, (BY_PAIR, FEATURES), (BY_EDGE, 5, COMPONENTS)),
    ),
    "coupled to fewer": (
        coupled_sum,
        looped_coupled,
        (VECTORS, (BY_PAIR, FEATURES), (BY_EDGE, 2, COMPONENTS)),
    ),
    "coupled scalars": (
        coupled_sum,
        looped_coupled,
        ((NODES, 1, FEATURES), (BY_PAIR, FEATURES), (BY_EDGE, 1, 1)),
    ),
    "triplets": (
        lambda messages, filters, weights, links: triplet_sum(
            messages, filters, weights, sorted_by_receiver(links)
        ),
        looped_triplets,
        (SCALARS, (4, NODES, FEATURES), (BY_EDGE, 4)),
    ),
    "triplets, eight functions": (
        lambda messages, filters, weights, links: triplet_sum(
            messages, filters, weights, sorted_by_receiver(links)
        ),
        looped_triplets,
        (SCALARS, (8, NODES, FEATURES), (BY_EDGE, 8)),
    ),
    # What these two give is seen in the layer that uses them.
    "scores": (
        lambda *given: edge_scores(*given, HEADS),
        None,
        (SCALARS, SCALARS, (BY_PAIR, FEATURES)),
    ),
    "attended": (attention_sum, None, (SCALARS, (BY_PAIR, FEATURES), (BY_EDGE, HEADS))),
}


def drawn_for(layout, shapes):
    links, rows = layout
    sizes = {BY_PAIR: rows, BY_EDGE: len(links.sender)}
    return [draw(sizes.get(s[0], s[0]), *s[1:], seed=seed) for seed, s in enumerate(shapes)]


PASSES = (
    *("filtered", "filtered vectors", "directed", "vectors"),
    *("coupled", "coupled to fewer", "coupled scalars", "triplets", "triplets, eight functions"),
)
"""Sums that compiled loops know, too."""
WAYS = [*((name, "eager") for name in SUMS), *((name, "numba") for name in PASSES)]


@pytest.mark.parametrize(("name", "kernels"), [way for way in WAYS if SUMS[way[0]][1]])
def test_sums_equal_a_loop_over_edges(name, kernels):
    function, loop, shapes = SUMS[name]
    for layout in (make() for make in LAYOUTS.values()):
        inputs = drawn_for(layout, shapes)
        links = replace(layout[0], kernels=kernels)
        expected = loop(*inputs, links)
        torch.testing.assert_close(function(*inputs, links), expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize(("name", "kernels"), WAYS)
def test_two_derivatives_equal_differences(name, kernels):
    """All edges have a reverse, some have, and rows of filters are those of edges."""
    function, _, shapes = SUMS[name]
    for layout in (LAYOUTS[kind]() for kind in ("paired", "some paired", "single")):
        inputs = drawn_for(layout, shapes)
        links = replace(layout[0], kernels=kernels)

        def curved(*given, links=links):
            return function(*given, links).sin()

        assert gradcheck(curved, inputs)
        assert gradgradcheck(curved, inputs)


@pytest.mark.parametrize(("name", "kernels"), WAYS)
def test_slopes_are_the_same_whether_or_not_they_are_differentiated_again(name, kernels):
    """A gradient has a quick way and a differentiable one: checks of one miss the other."""
    function, _, shapes = SUMS[name]
    for layout in (make() for make in LAYOUTS.values()):
        inputs = drawn_for(layout, shapes)
        links = replace(layout[0], kernels=kernels)
        weigh = draw(*function(*inputs, links).shape, seed=9).detach()
        quick, slow = (
            torch.autograd.grad(
                (function(*inputs, links) * weigh).sum(), inputs, create_graph=again
            )
            for again in (False, True)
        )
        torch.testing.assert_close(quick, slow, rtol=0, atol=1e-14)


def test_only_the_inputs_are_kept_for_the_backward_pass():
    """What is gathered along the edges would be E * F more numbers."""
    links, rows = paired(BONDS)
    values = draw(NODES, FEATURES)
    filters = draw(rows, FEATURES)
    kept = set()

    def note(tensor):
        kept.add(tensor.untyped_storage().data_ptr())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        result = filtered_sum(values, filters, links)
    known = (values, filters, *links.arrays)
    assert kept == {tensor.untyped_storage().data_ptr() for tensor in known}
    assert result.requires_grad


@pytest.mark.parametrize(
    ("extreme", "pick"), [(Links.largest, torch.amax), (Links.smallest, torch.amin)]
)
def test_extremes_equal_a_loop_and_nodes_without_edges_receive_zero(layout, extreme, pick):
    links, _ = layout
    messages = draw(len(links.sender), FEATURES)
    rows = [[torch.zeros(FEATURES, dtype=torch.float64)] for _ in range(NODES)]
    for edge, (_, receiver) in edges_of(links):
        rows[receiver].append(messages[edge])
    expected = torch.stack([pick(torch.stack(received), dim=0) for received in rows])
    assert torch.equal(extreme(links, messages), expected)
    assert gradcheck(lambda given: extreme(links, given).square(), (messages,))
    assert gradgradcheck(lambda given: extreme(links, given).square(), (messages,))


def test_equal_messages_share_the_gradient_and_the_floor_takes_none():
    links = Links.of(torch.tensor([0, 1, 2, 0]), torch.tensor([3, 3, 3, 1]), 4)
    messages = torch.tensor([[2.0], [2.0], [1.0], [0.0]], requires_grad=True)
    links.largest(messages).sum().backward()
    assert messages.grad.flatten().tolist() == [0.5, 0.5, 0.0, 0.0]
    messages.grad = None
    links.smallest(messages).sum().backward()
    assert (messages.grad == 0).all()


@pytest.mark.parametrize("kernels", ["eager", "numba"])
@pytest.mark.parametrize("learned", [False, True], ids=["weights", "weights with gradients"])
def test_neighbours_are_summed_by_their_envelopes(layout, learned, kernels):
    """The sum is a product with the matrix that the weights fill."""
    links = replace(layout[0], kernels=kernels)
    rows = layout[1]
    values = draw(NODES, FEATURES)
    weights = draw(rows, 1, seed=1).detach().requires_grad_(learned)
    edges = Edges(links, weights.new_zeros(0, 3), weights[:, 0], weights, weights)
    matrix = torch.zeros(NODES, NODES, dtype=values.dtype)
    matrix.index_put_((links.receiver, links.sender), edges.envelope[:, 0], accumulate=True)
    torch.testing.assert_close(edges.faded_sum(values), matrix @ values)
    mean = matrix @ values / (1.0 + matrix.sum(1, keepdim=True))
    torch.testing.assert_close(edges.faded_mean(values), mean)

    own = torch.tensor([1.25], dtype=values.dtype, requires_grad=True)
    torch.testing.assert_close(edges.faded_sum(values, own), matrix @ values + 1.25 * values)
    assert gradcheck(edges.faded_sum, (values, own))
    assert gradgradcheck(edges.faded_sum, (values, own))

    for name in ("faded_sum", "faded_mean"):

        def faded(values, weights, name=name):
            return getattr(replace(edges, pair_envelope=weights), name)(values)

        assert gradcheck(faded, (values, weights))
        assert gradgradcheck(faded, (values, weights))
