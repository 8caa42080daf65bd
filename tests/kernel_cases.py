"""Random edges, inputs and derivatives for tests of all implementations of ``model.kernels``.

Each function that takes ``kernels`` computes by that implementation.
"""

from dataclasses import replace
from functools import partial

import torch
from torch import nn

from hydragnn_hpo.kernels.aggregation import aggregate_messages
from hydragnn_hpo.kernels.scatter import Links
from hydragnn_hpo.model import messages
from hydragnn_hpo.model.messages import (
    activate_ends,
    activate_rows,
    gated_linear_sum,
    gated_product_sum,
    update_gated_edges,
)

LAYOUTS = {"paired": True, "one-way": False, "some one-way": "some"}
"""What ``random_links`` takes, by name."""
NODES, WIDTH = 24, 19
"""The width is no multiple of a vector register."""


def random_links(seed, paired, nodes=NODES):
    """Draw edges: images of oneself, repeated bonds, and nodes without any.

    ``paired``: whether they are in pairs; ``"some"`` leaves some of these without the reverse.
    """
    draw = torch.Generator().manual_seed(seed)
    first, second = torch.randint(0, nodes - 2, (2, 5 * nodes), generator=draw)
    if not paired:
        return Links.of(first, second, nodes), len(first)
    lone = nodes if paired == "some" else 0
    rest = len(first) - lone
    sender = torch.cat((first, second[:rest]))
    receiver = torch.cat((second, first[:rest]))
    return Links.of(sender, receiver, nodes), len(first)


def links_of(form, seed, paired, nodes=NODES):
    """Draw the links of a sum, and return the rows of its filters, too.

    The ends of triplets are edges, and the triplets are sorted by the second.
    """
    links, rows = random_links(seed, paired, nodes)
    if form == "triplets":
        ends = (end[links.by_receiver] for end in (links.sender, links.receiver))
        links = Links.of(*ends, nodes)
    return links, rows


def inputs_of(form, links, rows, dtype=torch.float64, seed=0):
    draw = torch.Generator().manual_seed(seed)
    nodes = links.num_nodes
    edges = len(links.sender)
    shapes = {
        "filtered": [(nodes, WIDTH), (rows, WIDTH)],
        "components": [(nodes, 4, WIDTH), (rows, WIDTH)],
        "directed": [(nodes, WIDTH), (rows, WIDTH), (edges, 3)],
        "vectors": [
            *((nodes, WIDTH), (rows, WIDTH), (edges, 3)),
            *((nodes, 3, WIDTH), (rows, WIDTH)),
        ],
        "weighted": [(nodes, 4 * WIDTH), (rows, 4)],
        "attended": [(nodes, 4 * WIDTH), (rows, 4 * WIDTH), (edges, 4)],
        "scores": [(nodes, 4 * WIDTH), (nodes, 4 * WIDTH), (rows, 4 * WIDTH)],
        "coupled": [(nodes, 3, WIDTH), (rows, WIDTH), (edges, 6, 3)],
        "coupled to fewer": [(nodes, 5, WIDTH), (rows, WIDTH), (edges, 2, 5)],
        "triplets": [(nodes, WIDTH), (7, nodes * rows // max(edges, 1), WIDTH), (edges, 7)],
    }[form]
    return [torch.randn(shape, generator=draw, dtype=dtype).requires_grad_() for shape in shapes]


SUMS = {
    "filtered": messages.filtered_sum,
    "components": messages.filtered_sum,
    "directed": messages.directed_sum,
    "vectors": messages.vector_messages_sum,
    "weighted": messages.weighted_sum,
    "attended": messages.attention_sum,
    "scores": lambda *given: messages.edge_scores(*given, heads=4),
    "coupled": messages.coupled_sum,
    "coupled to fewer": messages.coupled_sum,
    "triplets": messages.triplet_sum,
}


def everything(form, inputs, links, kernels):
    """Return a sum, its derivatives, those of a function of these, and the quick derivatives."""
    total = SUMS[form](*inputs, replace(links, kernels=kernels))
    first = torch.autograd.grad(total.sin().sum(), inputs, create_graph=True)
    second = torch.autograd.grad(sum(each.square().sum() for each in first), inputs)
    quick = torch.autograd.grad(SUMS[form](*inputs, replace(links, kernels=kernels)).sum(), inputs)
    return [total, *first, *second, *quick]


FACTORS = {"pna": (True, False), "pnaplus": (True, True), "pnaeq": (False, True)}
"""Whether messages have a term of the pair, and a filter."""


def factors_of(conv, links, rows, seed=0, like=torch.randn):
    """Draw the inputs of ``aggregate_messages``; whole numbers make ties."""
    draw = torch.Generator().manual_seed(seed)

    def drawn(*shape, there=True):
        numbers = like(shape, generator=draw, dtype=torch.float64)
        return numbers.requires_grad_() if there else None

    measures, filters = FACTORS[conv]
    pair = (rows, WIDTH)
    ends = drawn(links.num_nodes, WIDTH), drawn(links.num_nodes, WIDTH)
    weights = torch.rand(rows, 1, generator=draw, dtype=torch.float64).requires_grad_()
    return *ends, drawn(*pair, there=measures), drawn(*pair, there=filters), weights


def all_of_aggregates(inputs, links, kernels):
    """Return the aggregates, first and second derivatives, and the quick first derivatives."""
    given = [each for each in inputs if each is not None]
    links = replace(links, kernels=kernels)
    outputs = aggregate_messages(*inputs, links)
    weigh = [(1.0 + k) * each.cos().detach() for k, each in enumerate(outputs)]
    first = torch.autograd.grad(outputs, given, weigh, create_graph=True)
    second = torch.autograd.grad(sum(each.square().sum() for each in first), given)
    quick = torch.autograd.grad(aggregate_messages(*inputs, links), given, weigh)
    return [*outputs, *first, *second, *quick]


def whole(shape, generator, dtype):
    return torch.randint(-2, 3, shape, generator=generator).to(dtype)


def gated(hidden, weights, matrix, bias, *gate_and_links):
    """Call ``gated_linear_sum`` with the parameters as inputs."""
    *gate, links = gate_and_links
    last = nn.Linear(WIDTH, WIDTH)
    score = nn.Linear(WIDTH, 1)
    for layer, values in ((last, (matrix, bias)), (score, gate)):
        for name, value in zip(("weight", "bias"), values, strict=False):
            del layer._parameters[name]
            setattr(layer, name, value)
    return gated_linear_sum(hidden, last, score if gate else None, weights, links)


def update(product, nodes, weights, *rest):
    """Call ``update_gated_edges`` with the parameters as inputs."""
    *edges, links = rest
    norm = nn.LayerNorm(WIDTH) if edges else None
    if norm is not None:
        for name, value in zip(("weight", "bias"), edges[1:], strict=True):
            del norm._parameters[name]
            norm._parameters[name] = value
    values = update_gated_edges(product, nodes, weights, edges[0] if edges else None, norm, links)
    return values if edges else values[:2]


N, E, P = "nodes", "edges", "pairs"
TERMS, DOUBLE = (
    [(N, WIDTH), (N, WIDTH), (P, WIDTH)],
    [(N, 2 * WIDTH), (N, 2 * WIDTH), (P, 2 * WIDTH)],
)
GATED = [(E, WIDTH), (N, 3 * WIDTH), (P, 1)]
LINEAR = [(E, WIDTH), (P, 1), (WIDTH, WIDTH), (WIDTH,)]
EDGE_CASES = {
    "ends": (activate_ends, TERMS),
    "leaky ends": (partial(activate_ends, slope=0.2), TERMS),
    "gated": (gated, [*LINEAR, (1, WIDTH), (1,)]),
    "no gate": (gated, LINEAR),
    "softplus": (gated_product_sum, [*DOUBLE, (P, 1)]),
    "silu": (partial(gated_product_sum, activation="silu"), [*DOUBLE, (P, 1)]),
    "soft": (partial(activate_rows, activation="softplus"), [(P, WIDTH)]),
    "silu rows": (activate_rows, [(E, WIDTH)]),
    "edges": (update, [*GATED, (E, WIDTH), (WIDTH,), (WIDTH,)]),
    "edges stay": (update, GATED),
}
"""Function of edges, and shapes of its inputs."""
SMOOTH = {"gated": 2, "no gate": 2, "edges": 4}
"""Number of inputs, the first ones, that depend on positions where not all do."""


def draw_edges(case, layout, dtype=torch.float64, scale=1.0):
    """Draw the inputs of a function of edges, given links and the number of pairs."""
    links, rows = layout
    sizes = {N: links.num_nodes, E: len(links.sender), P: rows}
    draws = torch.Generator().manual_seed(3)
    shapes = EDGE_CASES[case][1]
    sized = [(sizes.get(shape[0], shape[0]), *shape[1:]) for shape in shapes]
    return [
        (scale * torch.randn(shape, generator=draws, dtype=dtype)).requires_grad_()
        for shape in sized
    ]


def differentiate(case, inputs, links, kernels, smooth=None):
    """Return the values, first derivatives, and those of a function of the first ``smooth``.

    Those of the function are by all inputs, and by what the values are multiplied by.
    """
    smooth = SMOOTH.get(case, len(inputs)) if smooth is None else smooth
    values = EDGE_CASES[case][0](*inputs, replace(links, kernels=kernels))
    values = values if isinstance(values, tuple) else (values,)
    slopes = [value.detach().cos().requires_grad_() for value in values]
    quick = torch.autograd.grad(values, inputs, slopes, retain_graph=True)
    first = torch.autograd.grad(values, inputs[:smooth], slopes, create_graph=True)
    loss = sum(each.square().sum() for each in (*first, *values))
    return [*values, *quick, *first, *torch.autograd.grad(loss, (*inputs, *slopes))]


def kernel_functions(paired):
    """Yield name, function of inputs, links and kernels, inputs and links of all functions.

    What they return are values and derivatives, as above.
    """
    for form in SUMS:
        links, rows = links_of(form, 1, paired)
        yield form, partial(everything, form), inputs_of(form, links, rows), links
    links, rows = random_links(1, paired)
    for conv in FACTORS:
        yield f"aggregate {conv}", all_of_aggregates, factors_of(conv, links, rows), links
    for case in EDGE_CASES:
        results = partial(differentiate, case)
        inputs = draw_edges(case, (links, rows))
        yield f"edge function {case}", results, inputs, links


def assert_same_net(make, graphs, kernels, loops, **sizes):
    """Compare energies, forces and gradients of a net with loops and without.

    Args:
        make: the fixture.
        graphs: to which an isolated atom is added.
        kernels: the loops that the net has.
        loops: what has run; filled by these loops alone.
        sizes: of the net.
    """
    alone = make.graph(*make.atoms(3, count=1, periodic=False))
    batch = make.batch(*graphs, alone)
    results = []
    for each in ("eager", kernels):
        net = make.net({"energy": {}, "forces": {}}, kernels=each, **sizes).train()
        out = net(batch)
        loss = out["forces"].square().sum() + out["energy"].square().sum()
        results.append([*out.values(), *torch.autograd.grad(loss, list(net.parameters()))])
        assert bool(loops) == (each == kernels)
    for values, wanted in zip(*results[::-1], strict=True):
        scale = max(float(wanted.detach().abs().max()), 1e-3)
        torch.testing.assert_close(values, wanted, rtol=0, atol=1e-10 * scale)
