"""The layers of a network by name: their order, their aliases, and the part they are in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from heatproof.errors import NotApplicable, join_limited, unknown
from heatproof.models.cam_layer import Landmarks
from heatproof.models.cutting import Body
from heatproof.models.tokens import Grid

LANDMARKS = ("middle", "final", "cam")


@dataclass(frozen=True)
class LayerTable:
    """The layers of a network, numbered in the order of the computation; layer 0 is the image.

    Attributes:
        names: The layers' names, by number.
        aliases: Further names, among them ``middle``, ``final``, ``cam`` and ``last-conv`` where
            they apply.
        embedding: The layer that is the input of the last layer with weights.
        head: The first layer whose next step belongs to the head.
        units: The ends of convolutions and blocks, up to ``final``.
        grids: How the activations of layers with tokens, or with channels last, form a grid.
        flat: The layers whose activations have no positions.
    """

    names: Sequence[str]
    aliases: Mapping[str, int]
    embedding: int
    head: int
    units: tuple[int, ...]
    grids: Mapping[int, Grid] = field(default_factory=dict)
    flat: frozenset[int] = frozenset()

    @classmethod
    def from_body(
        cls,
        body: Body,
        roles: Landmarks,
        grids: Mapping[int, Grid] | None = None,
        flat: frozenset[int] = frozenset(),
    ) -> LayerTable:
        """Build the table of a body, with the layers that have a special role."""
        landmarks = {
            "middle": roles.middle,
            "final": roles.final,
            "cam": roles.cam,
            "last-conv": roles.last_conv,
        }
        aliases = dict(body.aliases)
        aliases |= {name: index for name, index in landmarks.items() if index is not None}
        return cls(
            body.layers, aliases, roles.embedding, roles.head, roles.units, grids or {}, flat
        )

    def with_alias(self, alias: str, index: int) -> LayerTable:
        """Return the table with a further alias, which replaces one of the same name."""
        return replace(self, aliases={**self.aliases, alias: index})

    def restricted_to(self, body: Body) -> LayerTable:
        """Return the table for a body that has the same layers, or only the first of them."""
        aliases = {name: index for name, index in self.aliases.items() if index < len(body.layers)}
        return replace(self, names=body.layers, aliases=aliases)

    def index(self, layer: str, start: int, model: str) -> int:
        """Look a layer up by its name or alias.

        Args:
            layer: The name; ``input`` is the layer that the model starts at.
            start: The number of the layer that the model starts at.
            model: The model's name, for the message.

        Returns:
            The number of the layer.

        Raises:
            NotApplicable: If the name is a landmark and the network has no spatial layers.
            HeatproofError: If there is no such layer from ``start`` on.
        """
        if layer == "input":
            return start
        index = self.aliases.get(layer, -1)
        if index < 0 and layer in self.names:
            index = self.names.index(layer)
        if index >= start:
            return index
        if layer in LANDMARKS:
            raise NotApplicable(
                f"{model} has no spatial layer after its input; "
                "name some with hp.Model(…, layers=[…])"
            )
        raise unknown(
            "layer",
            layer,
            [*self.names[start:], *self.aliases],
            f"({model}; hp.Model(…, layers=[…]) cuts at paths of modules)",
        )

    def grid(self, index: int, model: str) -> Grid | None:
        """Return how a layer's activation forms a grid; None if it is ``(B, C, h, w)`` already.

        Args:
            index: The number of the layer.
            model: The model's name, for the message.

        Raises:
            NotApplicable: If the activation has no positions.
        """
        if index in self.flat:
            spatial = [name for i, name in enumerate(self.names) if i not in self.flat]
            raise NotApplicable(
                f"layer {self.names[index]} of {model} has no positions; those that have: "
                f"{join_limited(spatial, 20)}"
            )
        return self.grids.get(index)

    def landmarks(self) -> dict[str, str]:
        """Return the layers that ``middle``, ``final`` and ``cam`` stand for, where they exist."""
        return {name: self.names[self.aliases[name]] for name in LANDMARKS if name in self.aliases}

    def kind(self, index: int) -> str:
        """Return the part that the step to a layer belongs to: features, pool or head.

        Features reach up to ``cam``.
        """
        if index <= self.aliases.get("cam", 0):
            return "features"
        return "pool" if index <= self.head else "head"
