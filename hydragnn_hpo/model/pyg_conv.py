"""Our convs as layers for PyTorch Geometric: node features, edges and positions in, features out.

Shapes: N nodes, E edges, F features, C components of the state.
"""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import JsonValue
from torch import Tensor, nn

from hydragnn_hpo.config import ModelConfig, parse_config
from hydragnn_hpo.config.convs import CONV_SPECS, Dimensions
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.kernels import Links
from hydragnn_hpo.model.convs import CONVS
from hydragnn_hpo.model.edges import BASES, make_edges
from hydragnn_hpo.model.gnn import check_options, find_conv


class PygConv(nn.Module):
    """A conv, the expansion of its edges' lengths, and the sum with its input.

    A trunk of ours without norms is a stack of such layers, numbered from 0.
    """

    def __init__(
        self,
        conv: nn.Module,
        dimensions: Dimensions,
        basis: nn.Module | None,
        *,
        returns_state: bool,
    ) -> None:
        """Wrap a conv that is built.

        Args:
            conv: the conv.
            dimensions: what it was built from.
            basis: radial functions of an edge's length; None for a conv that reads none.
            returns_state: whether ``forward`` also returns the state.
        """
        super().__init__()
        self.conv, self.basis = conv, basis
        self.features, self.cutoff = dimensions.features, dimensions.cutoff
        self.returns_state = returns_state

    def forward(
        self,
        x: Tensor,
        edge_index: Tensor,
        pos: Tensor,
        edge_shift: Tensor | None = None,
        state: Any = None,
    ) -> Tensor | tuple[Tensor, Any]:
        """Pass messages once.

        Args:
            x: features of the nodes, [N, F].
            edge_index: sender and receiver of each edge, both directions of every pair, [2, E].
                Edges longer than the cutoff contribute nothing.
            pos: positions in angstrom, [N, 3].
            edge_shift: for periodic images: added to the position of the receiver, in angstrom,
                [E, 3]; None without a lattice.
            state: the state that the layer below returned; None in layer 0.

        Returns:
            New features, [N, F]; with ``returns_state`` also the new state. That of a conv with
            vectors is [N, C, F], its first three components x, y and z of vectors that rotate with
            the structure.

        Raises:
            ConfigError: ``x`` has another number of channels than the layer.
        """
        if x.dim() != 2 or x.shape[1] != self.features:
            raise ConfigError(
                f"x has the shape {tuple(x.shape)}, this layer takes [nodes, {self.features}]: "
                "choose these features for the layer, or embed the nodes first."
            )
        sender, receiver = edge_index
        vectors = pos.index_select(0, receiver) - pos.index_select(0, sender)
        if edge_shift is not None:
            vectors = vectors + edge_shift
        links = Links.of(sender, receiver, x.shape[0])
        edges = make_edges(links, vectors.to(x.dtype), basis=self.basis, cutoff=self.cutoff)
        change, state = self.conv(x, state, edges)
        return (x + change, state) if self.returns_state else x + change

    def extra_repr(self) -> str:
        """Return what the layer's text shows beside its parts."""
        return f"features={self.features}, cutoff={self.cutoff:g}"


def as_pyg(
    conv: str | type[nn.Module],
    *,
    features: int = 64,
    cutoff: float = 5.0,
    basis: Literal["bessel", "gaussian"] = "bessel",
    basis_size: int = 16,
    degree: float = 12.0,
    layer: int = 0,
    return_state: bool | None = None,
    **options: Any,
) -> PygConv:
    """Build a conv as a PyG-style layer, ``layer(x, edge_index, pos)``.

    Args:
        conv: a name such as ``painn``, a class, or ``my_pkg.my_module:MyConv``.
        features: channels per node, F.
        cutoff: longest edge that counts, in angstrom.
        basis: radial functions that expand an edge's length.
        basis_size: how many of them.
        degree: mean number of neighbours, for convs that scale by it.
        layer: number of the layer in a stack, from 0; layer 0 takes no state.
        return_state: whether it also returns its state, for the layer above; None means of convs
            with vectors alone. Convs that use angles have one, too.
        options: options of the conv.

    Raises:
        ConfigError: there is no such conv, or an option is unknown or wrong.
    """
    conv_class, builtin = _find_class(conv)
    name = builtin or (conv if isinstance(conv, str) else conv_class.__qualname__)
    sizes = {"features": features, "cutoff": cutoff, "basis": basis, "basis_size": basis_size}
    config = _check_sizes(sizes, options, builtin, name)
    spec: Any = CONV_SPECS[builtin] if builtin else conv_class
    state = bool(getattr(spec, "vectors", False)) if return_state is None else return_state
    dimensions = Dimensions(config.features, config.basis_size, config.cutoff, degree, layer, state)
    read = getattr(spec, "edge_features", True)
    expansion = BASES[config.basis](config.basis_size, config.cutoff) if read else None
    made = conv_class(dimensions, check_options(conv_class, options, name))
    return PygConv(made, dimensions, expansion, returns_state=state)


def _check_sizes(
    sizes: Mapping[str, JsonValue], options: Mapping[str, JsonValue], builtin: str | None, name: str
) -> ModelConfig:
    """Check what all convs have in common; of a built-in one also that its options fit it."""
    # the sizes of a class that is not built in are checked with any conv that is
    named = {"conv": builtin, "options": options} if builtin else {"conv": "schnet"}
    return parse_config({**sizes, **named}, ModelConfig, where=f"as_pyg of '{name}'")


def _find_class(conv: str | type[nn.Module]) -> tuple[type[nn.Module], str | None]:
    """Return the class of a conv, and its name if it is built in."""
    found_class = find_conv(conv) if isinstance(conv, str) else conv
    return found_class, next((name for name, each in CONVS.items() if each is found_class), None)
