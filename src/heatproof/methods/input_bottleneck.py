"""InputIBA (Zhang et al. 2021): an information bottleneck on the pixels.

Which pixels can be replaced by noise without changing the prediction? What a bottleneck at a hidden
layer found is the prior of one at the image:

1. ``iba`` at the layer `middle` finds the noisy features that keep the prediction.
2. A mask of the image, with noise outside it, is fitted so that the network turns it into features
   of that distribution. The fit is a Wasserstein GAN with clipped weights: a critic tells the two
   apart, and the mask, the mean and the deviation of the noise are the generator.
3. A bottleneck at the image is optimised, in which information counts beyond what that mask keeps.

The map is the mask of the third step, averaged over the channels. Learning rates, the weight of the
information, copies, images and steps are those of the authors' configuration for a VGG-16 on
ImageNet. Unlike there, the generator takes a step after every fifth of the 140 steps of the critic,
28 in all instead of 40; the features in the first bottleneck pass by its mask, as in the paper,
where the code takes their information; the critic sees fresh samples of them, standardized, with
the noise of the features themselves, and is a smaller network; the noise at the image has the
statistics of reference images; and the map is as smooth as the mask that was optimised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import log, prod
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from heatproof.errors import NotApplicable
from heatproof.methods.base import method, reason_not_applicable
from heatproof.methods.bottleneck import (
    Count,
    FeatureNoise,
    Settings,
    note_unconverged,
    optimised,
    statistics,
    why_no_probability,
)
from heatproof.methods.notes import MapNotes
from heatproof.methods.optimisation_state import Checkpoint
from heatproof.models.model import Model
from heatproof.tensor.filters import resize
from heatproof.tensor.noise import Rng

LAYER = "middle"
FEATURE_STEPS = 10
CRITIC_RATE = 5e-5
CRITIC_WEIGHT_CLIP = 0.01
CRITIC_TURNS = 5  # to one of the generator
IMAGES_PER_TURN = 32
GENERATOR_RATES = {"mask": 0.003, "mean": 0.1, "std": 0.05}
CRITIC_CHANNELS = 64
LEAST_CRITIC_SIDE = 4  # of features


def _prepare(model: Model, images: Iterator[Tensor]) -> dict[str, Tensor]:
    """Compute the statistics of the features, and those of every channel of the images."""
    sums: list[Tensor] = []

    def seen() -> Iterator[Tensor]:
        for x in images:
            values = x.double().transpose(0, 1).flatten(1)
            ones = torch.ones_like(values[:, 0])
            sums.append(torch.stack([values.sum(1), (values**2).sum(1), len(values[0]) * ones]))
            yield x

    features = statistics(model.tail(LAYER), seen())
    total, squares, count = torch.stack(sums).sum(0)
    mean = total / count
    std = (squares / count - mean**2).clamp(min=0).sqrt()
    return features | {"image mean": mean.float(), "image std": std.float()}


@reason_not_applicable
def _not_applicable(model: Model) -> None:
    """Check that the features are large enough for the critic."""
    if reason := why_no_probability(model):
        raise NotApplicable(reason)
    shape = model.shape(LAYER)
    if len(shape) != 3 or min(shape[1:]) < LEAST_CRITIC_SIDE:
        raise NotApplicable(
            f"its features at {LAYER} are {'×'.join(map(str, shape))}, and the critic needs "
            f"channels of {LEAST_CRITIC_SIDE}×{LEAST_CRITIC_SIDE} or more"
        )


def _cost(arguments: Mapping[str, Any]) -> tuple[int, int]:
    copies = arguments["copies"]
    of_generator = IMAGES_PER_TURN * arguments["turns"]
    of_bottlenecks = copies * (FEATURE_STEPS + arguments["steps"])
    return CRITIC_TURNS * of_generator, of_generator + of_bottlenecks


@method(
    "input-iba",
    family="perturbation",
    paper="Zhang et al. 2021",
    signed=False,
    needs=("reference",),
    cost=_cost,
    applies=_not_applicable,
    prepare=_prepare,
    layers="input",
    stochastic=True,
)
def input_iba(
    model: Model,
    x: Tensor,
    target: Tensor,
    *,
    rng: Rng,
    prepared: Mapping[str, Tensor],
    notes: MapNotes,
    checkpoint: Checkpoint,
    beta: Annotated[float, Field(gt=0)] = 20.0,
    steps: Count = 60,
    copies: Count = 10,
    lr: Annotated[float, Field(gt=0)] = 1.0,
    turns: Count = 28,
) -> Tensor:
    """How much of every pixel must pass, beyond what predictive features at `middle` need.

    Args:
        model: The model to explain.
        x: Images, ``(B, C, H, W)``.
        target: Class indices of shape ``(B,)``.
        rng: The samples' noise.
        prepared: Statistics of reference images and of their features.
        notes: Where maps are noted whose objective still fell at the end, as for ``iba``.
        checkpoint: Keeps the masks that are fitted, and the state of the optimisation.
        beta: The weight of the information against the cross entropy, in both bottlenecks.
        steps: Steps of Adam at the image.
        copies: Noisy copies per step, in both bottlenecks.
        lr: The learning rate of both bottlenecks.
        turns: Steps of the generator; the critic takes five for each.
    """
    tail = model.tail(LAYER)
    features = model.activation(x, LAYER)
    noise = FeatureNoise.of(prepared, features)
    settings = Settings(beta, FEATURE_STEPS, copies, lr)
    name = "input-iba features"
    found = optimised(tail, features, target, rng, noise, settings, name, checkpoint)
    starts = resize(found.capacity.sum(1) / log(2), *x.shape[2:])
    image_noise = _image_noise(prepared, x)

    def begin(row: int) -> MaskFit:
        of_sample = Rng(rng.seed, rng.ids[row : row + 1], rng.device)
        passing = features[row], found.keep[row], noise
        return MaskFit(model, x[row], starts[row], image_noise, passing, of_sample)

    prior = fitted_masks(begin, x, turns, checkpoint)
    settings = Settings(beta, steps, copies, lr)
    found = optimised(
        model,
        x,
        target,
        rng,
        image_noise,
        settings,
        "input-iba",
        checkpoint,
        prior=prior,
    )
    note_unconverged(notes, found.objectives)
    return found.keep.mean(1)


def _image_noise(prepared: Mapping[str, Tensor], x: Tensor) -> FeatureNoise:
    mean, std = (prepared[f"image {name}"].to(x).view(1, -1, 1, 1) for name in ("mean", "std"))
    return FeatureNoise(mean, std.clamp(min=torch.finfo(x.dtype).tiny), torch.ones_like(mean))


def fitted_masks(
    begin: Callable[[int], MaskFit], x: Tensor, turns: int, checkpoint: Checkpoint
) -> Tensor:
    """Fit the mask of every image, one after the other.

    Args:
        begin: Begins the fit of a row of ``x``.
        x: Images, ``(B, C, H, W)``.
        turns: Steps of the generator.
        checkpoint: Keeps the masks that are fitted and the state of the next one.

    Returns:
        Masks of the shape of ``x``, in (0, 1).
    """
    masks = torch.zeros_like(x)
    saved = checkpoint.load("input-iba masks")
    first = 0
    if saved is not None:
        first = int(saved["row"])
        masks.copy_(saved["masks"])
    for row in range(first, len(x)):
        fit = begin(row)
        if saved is not None and row == first:
            fit.restore(saved)
        while fit.turn < turns:
            fit.step()
            state = {"row": torch.tensor(row), "masks": masks.clone()}
            checkpoint.save("input-iba masks", state | fit.state())
        masks[row] = fit.mask.detach().sigmoid()
    return masks


class MaskFit:
    """Fits a mask of an image whose features are distributed like those in a bottleneck.

    Attributes:
        mask: Before the sigmoid, ``(C, H, W)``.
        turn: How many steps the generator has taken.
    """

    def __init__(
        self,
        model: Model,
        image: Tensor,
        start: Tensor,
        image_noise: FeatureNoise,
        passing: tuple[Tensor, Tensor, FeatureNoise],
        rng: Rng,
    ):
        """Begin a fit.

        Args:
            model: The model.
            image: The image, ``(C, H, W)``.
            start: What the mask begins with, before the sigmoid, ``(H, W)``.
            image_noise: What replaces pixels, at the beginning.
            passing: The features of the image, ``(C, h, w)``, how much of each passes, their noise.
            rng: The noise of this one sample.
        """
        self.model = model
        self.image = image
        self.image_noise = image_noise
        self.features, self.keep, self.noise = passing
        self.rng = rng
        self.mask = start.expand_as(image).clone().requires_grad_()
        # the noise of the generator, in units of that of the image
        self.mean = torch.zeros_like(image_noise.mean).requires_grad_()
        self.std = torch.ones_like(image_noise.std).requires_grad_()
        self.critic = critic_weights(tuple(self.features.shape), rng, image)
        rates = zip((self.mask, self.mean, self.std), GENERATOR_RATES.values(), strict=True)
        self.optimisers = {
            "generator": torch.optim.RMSprop([{"params": [p], "lr": rate} for p, rate in rates]),
            "critic": torch.optim.RMSprop(self.critic, lr=CRITIC_RATE),
        }
        self.turn = 0

    def step(self) -> None:
        """Let the critic take its steps, then the generator."""
        for i in range(CRITIC_TURNS):
            self._step_critic(f"{self.turn} {i}")
        with torch.enable_grad():
            images = self._generated(f"turn {self.turn}")
        slope = critic_slope(self.model, images.detach(), self.critic, self._standardized)
        generator = self.optimisers["generator"]
        generator.zero_grad()
        images.backward(slope)  # type: ignore[no-untyped-call]
        generator.step()
        self.turn += 1

    def _step_critic(self, purpose: str) -> None:
        drawn = self.noise.mean + self.noise.std * self._drawn(f"real {purpose}", self.features)
        real = self._standardized(self.keep * self.features + (1 - self.keep) * drawn)
        with torch.no_grad():
            images = self._generated(f"fake {purpose}")
        fake = self._standardized(self.model.activation(images, LAYER))
        with torch.enable_grad():
            gap = criticized(self.critic, fake).mean() - criticized(self.critic, real).mean()
        optimiser = self.optimisers["critic"]
        optimiser.zero_grad()
        gap.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        with torch.no_grad():
            for weight in self.critic:
                weight.clamp_(-CRITIC_WEIGHT_CLIP, CRITIC_WEIGHT_CLIP)

    def _generated(self, purpose: str) -> Tensor:  # (IMAGES, C, H, W)
        noise = self.mean + self.std * self._drawn(purpose, self.image)
        noise = self.image_noise.mean + self.image_noise.std * noise
        keep = self.mask.sigmoid()
        return keep * self.image + (1 - keep) * noise

    def _drawn(self, purpose: str, like: Tensor) -> Tensor:  # (IMAGES, …)
        return self.rng.normal(f"input-iba {purpose}", (IMAGES_PER_TURN, *like.shape))[0].to(like)

    def _standardized(self, z: Tensor) -> Tensor:
        return (z - self.noise.mean) / self.noise.std * self.noise.active

    def state(self) -> dict[str, Tensor]:
        """Return copies of what the next step needs."""
        found = {"turn": torch.tensor(self.turn)}
        for name, optimiser in self.optimisers.items():
            for i, leaf in enumerate(_leaves(optimiser)):
                found[f"{name} {i}"] = leaf.detach().clone()
                found[f"{name} {i} square"] = optimiser.state[leaf]["square_avg"].clone()
        return found

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Continue from a state."""
        self.turn = int(state["turn"])
        for name, optimiser in self.optimisers.items():
            for i, leaf in enumerate(_leaves(optimiser)):
                with torch.no_grad():
                    leaf.copy_(state[f"{name} {i}"])
                square = state[f"{name} {i} square"].clone().to(leaf)
                optimiser.state[leaf] = {"step": torch.tensor(0.0), "square_avg": square}


def _leaves(optimiser: torch.optim.Optimizer) -> list[Tensor]:
    return [leaf for group in optimiser.param_groups for leaf in group["params"]]


def critic_slope(
    model: Model,
    images: Tensor,
    critic: Sequence[Tensor],
    standardized: Callable[[Tensor], Tensor],
) -> Tensor:
    """Return the gradient of the generator's loss, minus the critic's mean, by the images."""
    layer = model.layer_index(LAYER)
    slopes = []
    no_target = torch.zeros(len(images), dtype=torch.long, device=images.device)
    with model.passes.frozen_eval():
        for leaf, _ in model.passes.grad_batches(images, no_target, "backward"):
            judged = criticized(critic, standardized(model.passes.run(leaf, layer)))
            slopes.append(torch.autograd.grad(-judged.sum() / len(images), leaf)[0])
    return torch.cat(slopes)[: len(images)]


def critic_weights(shape: Sequence[int], rng: Rng, like: Tensor) -> list[Tensor]:
    """Draw the weights of a critic: two convolutions of stride 2 and a linear layer.

    Args:
        shape: The shape ``(C, h, w)`` of the features.
        rng: The noise of one sample.
        like: A tensor of the weights' type and device.
    """
    channels, height, width = shape
    sizes = [
        (CRITIC_CHANNELS, channels, 4, 4),
        (CRITIC_CHANNELS, CRITIC_CHANNELS, 4, 4),
        (1, CRITIC_CHANNELS * (height // 4) * (width // 4)),
    ]
    return [
        (rng.normal(f"input-iba critic {i}", size)[0].to(like) / prod(size[1:]) ** 0.5)
        .clamp_(-CRITIC_WEIGHT_CLIP, CRITIC_WEIGHT_CLIP)
        .requires_grad_()
        for i, size in enumerate(sizes)
    ]


def criticized(weights: Sequence[Tensor], z: Tensor) -> Tensor:  # (N, C, h, w) -> (N,)
    """Return the critic's number for each of the features: large for those of the bottleneck."""
    first, second, last = weights
    z = F.leaky_relu(F.conv2d(z, first, stride=2, padding=1), 0.2)
    z = F.leaky_relu(F.conv2d(z, second, stride=2, padding=1), 0.2)
    return (z.flatten(1) @ last.T)[:, 0]
