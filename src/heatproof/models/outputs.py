"""Notice networks whose outputs are probabilities: everything here takes outputs for logits."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

Kind = Literal["", "softmax", "sigmoid"]
ROW_SUM_TOLERANCE = {torch.float64: 1e-5, torch.float32: 1e-5}  # half precision has 1e-2
LAYERS = {"softmax": (nn.Softmax, nn.Softmax2d), "sigmoid": (nn.Sigmoid,)}
MEANING = {
    "softmax": "every value is in [0, 1] and each row sums to 1",
    "sigmoid": "every value is in [0, 1], and the last operation is a sigmoid",
}
_MOVES = ("View", "Reshape", "Squeeze", "Clone", "Copy", "Slice", "Select", "Alias", "Transpose")


def probabilities(module: nn.Module, images: Tensor, outputs: Tensor) -> Kind:
    """Return what makes the outputs of a network probabilities; empty if they are not.

    Values in [0, 1] are not enough, as logits of few classes can all be there. Rows that sum to 1
    are those of a softmax. A sigmoid is recognised by the last operation that autograd records.

    Args:
        module: The network, in evaluation mode.
        images: Images in its input space, ``(B, C, H, W)``.
        outputs: Its outputs for them, ``(B, K)`` or ``(B,)``.
    """
    outputs = outputs.reshape(len(outputs), -1)
    if not outputs.numel() or outputs.min() < 0 or outputs.max() > 1:
        return ""
    sums = outputs.double().sum(1)
    varied = (outputs != outputs[:, :1]).any()  # equal weights can give 1 / K for every class
    sums_to_one = (sums - 1).abs().max() <= ROW_SUM_TOLERANCE.get(outputs.dtype, 1e-2)
    if outputs.shape[1] > 1 and varied and sums_to_one:
        return "softmax"
    return "sigmoid" if "Sigmoid" in _last_operation(module, images) else ""


def _last_operation(module: nn.Module, images: Tensor) -> str:
    """Return autograd's name of what computed the outputs; empty if it recorded nothing."""
    with torch.enable_grad():
        node = module(images.detach().clone().requires_grad_()).grad_fn
    while node is not None and any(move in node.name() for move in _MOVES):
        node = node.next_functions[0][0]
    return node.name() if node is not None else ""


def advice(name: str, module: nn.Module, kind: Kind, outputs: int) -> str:
    """Say what is wrong with outputs that are probabilities, and which line cures it.

    Args:
        name: The model's name.
        module: The network.
        kind: What ``probabilities`` returned.
        outputs: The number of outputs per image.
    """
    layers = [path for path, m in module.named_modules() if isinstance(m, LAYERS[kind])]
    cure = f"return what goes into the {kind} instead"
    if layers and layers[-1]:
        steps = (f"[{step}]" if step.isdigit() else f".{step}" for step in layers[-1].split("."))
        cure = f"replace it before you make the model: net{''.join(steps)} = torch.nn.Identity()"
    multi_label = ""
    if kind == "sigmoid" and outputs > 1:
        multi_label = 'make the model with head="sigmoid", and '
    remove = f"{multi_label}remove the {kind}: {cure}"
    return (
        f"the outputs of {name} look like probabilities: {MEANING[kind]}. They are taken for "
        f"logits, so gradients vanish where the network is confident, and scores are those of "
        f"another {kind} on top. {remove[0].upper()}{remove[1:]}"
    )
