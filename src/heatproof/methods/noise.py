"""Noise that is added to the input of a method, as SmoothGrad does: `ig|noise(n=20, std=0.15)`."""

from __future__ import annotations

import inspect
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from heatproof.models.model import Model

NoiseUnit = Literal["range", "image", "absolute"]


class Noise(BaseModel):
    """Runs a method on noisy copies of its input, before channels are reduced.

    Attributes:
        n: The number of copies.
        std: The standard deviation of the noise.
        kind: What the map is: the mean of the maps (``mean``), of their squares (``sq``), or their
            variance (``var``).
        unit: What ``std`` is a fraction of: the ``range`` from black to white, so that it means
            the same for every network, or the range of each ``image``, as in the code of Smilkov
            et al. 2017. ``absolute`` is in the units of the normalized image, as in Captum. At
            other layers than the input, ``range`` is that of each sample's activation.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    n: int = Field(default=20, ge=1)
    std: float = Field(default=0.15, ge=0)
    kind: Literal["mean", "sq", "var"] = "mean"
    unit: NoiseUnit = "range"

    @classmethod
    def parameters(cls) -> dict[str, inspect.Parameter]:
        """Return the fields as parameters of a function, for expressions."""
        return {
            name: inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=f.default,
                annotation=Annotated[f.annotation, f],
            )
            for name, f in cls.model_fields.items()
        }


def noise_scale(model: Model, x: Tensor, unit: NoiseUnit) -> Tensor | float:
    """Return what a standard deviation of 1 in a unit is in the units of a model's input.

    Args:
        model: The model, or the network from a layer on.
        x: Its input, ``(B, C, h, w)``.
        unit: See `Noise`.

    Returns:
        A number, or a tensor that broadcasts against x.
    """
    if unit == "absolute":
        return 1.0
    if unit == "range" and model.start_layer == "input":
        low, high = model.input_range
        return (high - low).to(x)
    flat = x.flatten(1)
    return (flat.amax(1) - flat.amin(1)).reshape(-1, *[1] * (x.ndim - 1))
