"""Plain vision transformers of libraries, converted to ours (``models/vit.py``).

They have the same weights under our names. No library is imported: a module's class says where it
comes from.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor, nn

from heatproof.errors import NotApplicable
from heatproof.models.guards import eval_mode
from heatproof.models.hooks import record_calls
from heatproof.models.vit import Tokens, vit

OUTPUT_TOLERANCE = 1e-5  # relative to the largest value


class Library(NamedTuple):
    """Structure and weight names of a library's vision transformers.

    Attributes:
        classes: The classes of its vision transformers.
        mark: A name that only its weights have.
        names: Pairs of a pattern and our name, applied in this order; blocks still count from 0.
        shape: Returns the arguments of our ``vit``, with the width of the hidden layer.
        other: Returns what cannot be seen from the weights, and whether the network has it.
    """

    classes: tuple[str, ...]
    mark: str
    names: tuple[tuple[str, str], ...]
    shape: Callable[[Any], dict[str, Any]]
    other: Callable[[Any], dict[str, bool]]


def _timm_shape(net: Any) -> dict[str, Any]:
    return {
        "size": net.patch_embed.img_size[0],
        "patch": net.patch_embed.patch_size[0],
        "heads": net.blocks[0].attn.num_heads,
        "hidden": net.blocks[0].mlp.fc1.out_features,
        "depth": len(net.blocks),
    }


def _timm_other(net: Any) -> dict[str, bool]:
    pooling = getattr(net, "global_pool", "token")
    patches = net.patch_embed
    return {
        f'pooling by "{pooling}" instead of the class token': pooling != "token",
        "images of any size": getattr(net, "dynamic_img_size", False),
        "images or patches that are not square": len({*patches.img_size}) > 1
        or len({*patches.patch_size}) > 1,
    }


def _torchvision_shape(net: Any) -> dict[str, Any]:
    layers = net.encoder.layers
    return {
        "size": net.image_size,
        "patch": net.patch_size,
        "heads": layers[0].num_heads,
        "hidden": net.mlp_dim,
        "depth": len(layers),
    }


def _transformers_shape(net: Any) -> dict[str, Any]:
    config = net.config
    return {
        "size": config.image_size,
        "patch": config.patch_size,
        "heads": config.num_attention_heads,
        "hidden": config.intermediate_size,
        "depth": config.num_hidden_layers,
    }


LIBRARIES = {
    "timm": Library(
        ("VisionTransformer",),
        "patch_embed.proj.weight",
        (
            (r"^blocks\.(\d+)\.", r"block\1."),
            (r"^patch_embed\.proj\.", "tokens.proj."),
            (r"^(cls_token|pos_embed)$", r"tokens.\1"),
        ),
        _timm_shape,
        _timm_other,
    ),
    "torchvision": Library(
        ("VisionTransformer",),
        "conv_proj.weight",
        (
            (r"^encoder\.layers\.encoder_layer_(\d+)\.", r"block\1."),
            (r"^(block\d+)\.ln_([12])\.", r"\1.norm\2."),
            (r"^(block\d+)\.self_attention\.in_proj_(weight|bias)$", r"\1.attn.qkv.\2"),
            (r"^(block\d+)\.self_attention\.out_proj\.", r"\1.attn.proj."),
            (r"^(block\d+)\.mlp\.(0|linear_1)\.", r"\1.mlp.fc1."),
            (r"^(block\d+)\.mlp\.(3|linear_2)\.", r"\1.mlp.fc2."),
            (r"^conv_proj\.(weight|bias)$", r"tokens.proj.\1"),
            (r"^class_token$", "tokens.cls_token"),
            (r"^encoder\.pos_embedding$", "tokens.pos_embed"),
            (r"^encoder\.ln\.", "norm."),
            (r"^heads\.head\.", "head."),
        ),
        _torchvision_shape,
        lambda net: {},
    ),
    "transformers": Library(  # with the names of its versions 4 and 5
        (
            "ViTForImageClassification",
            "DeiTForImageClassification",
            "DeiTForImageClassificationWithTeacher",
        ),
        "vit.embeddings.cls_token",
        (
            (r"^(vit|deit)\.", ""),
            (r"^(encoder\.layer|layers)\.(\d+)\.", r"block\2."),
            (r"^(block\d+)\.layernorm_before\.", r"\1.norm1."),
            (r"^(block\d+)\.layernorm_after\.", r"\1.norm2."),
            (
                r"^(block\d+)\.attention\.(?:attention\.)?([qkv])(?:uery|ey|alue|_proj)\.",
                r"\1.attn.\2.",
            ),
            (r"^(block\d+)\.attention\.(o_proj|output\.dense)\.", r"\1.attn.proj."),
            (r"^(block\d+)\.(intermediate\.dense|mlp\.fc1)\.", r"\1.mlp.fc1."),
            (r"^(block\d+)\.(output\.dense|mlp\.fc2)\.", r"\1.mlp.fc2."),
            (r"^embeddings\.patch_embeddings\.projection\.", "tokens.proj."),
            (r"^embeddings\.cls_token$", "tokens.cls_token"),
            (r"^embeddings\.position_embeddings$", "tokens.pos_embed"),
            (r"^layernorm\.", "norm."),
            (r"^classifier\.", "head."),
        ),
        _transformers_shape,
        lambda net: {},
    ),
}
UNSUPPORTED_WEIGHTS = {
    r"\.ls[12]\.": "LayerScale",
    r"\.[qk]_norm\.": "norms of queries and keys",
    r"^reg_token": "register tokens",
    r"^dist_token|^head_dist|distillation_token": "a distillation token",
    r"^norm_pre\.": "a norm before the blocks",
    r"^fc_norm\.": "a norm after the pooling",
    r"^attn_pool\.": "pooling by attention",
    r"^patch_embed\.(?!proj)|^(conv_proj|patch_embed\.proj)\.\w+\.": "a stem of several layers",
    r"^heads\.pre_logits": "a hidden layer in its head",
    r"\.rel_pos|\.rope": "relative positions",
}
REQUIRED_WEIGHTS = {
    r"\.qkv\.bias$": "no bias of queries, keys and values",
    r"^tokens\.cls_token$": "no class token",
    r"^tokens\.pos_embed$": "no positions",
    r"^norm\.": "no norm after the blocks",
    r"^head\.": "no linear head",
}


def as_canonical(module: nn.Module) -> tuple[nn.Module, str]:
    """Convert a module to ours if it is a plain vision transformer of a library.

    Returns:
        The converted module and an empty string; or the module unchanged and the reason, which is
        empty if the module is not a vision transformer of a library.
    """
    if _library(module) is None:
        return module, ""
    try:
        return canonical(module), ""
    except NotApplicable as reason:
        return module, str(reason)


def canonical(module: nn.Module) -> nn.Sequential:
    """Build our vision transformer with the weights of a library's.

    They are in the same memory, except queries, keys and values that a library keeps apart.

    Raises:
        NotApplicable: If the module is not a plain vision transformer, or the two differ.
    """
    library = _library(module)
    if library is None:
        raise NotApplicable(
            f"{type(module).__name__} is not a VisionTransformer of timm or torchvision, nor a "
            "ViTForImageClassification of transformers"
        )
    title = f"{type(module).__module__.partition('.')[0]}'s {type(module).__name__}"
    state = module.state_dict()
    try:
        unsupported = [*_unsupported(module, library, state)]
        if unsupported:
            raise NotApplicable(f"{title} has {', '.join(unsupported)}")
        net = _built(module, library, _renamed(state, library))
        deviation = _deviation(module, net, library.shape(module)["size"])
    except NotApplicable:
        raise
    except (AttributeError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise NotApplicable(
            f"{title} is not built like a plain one: {' '.join(str(error).split())[:300]}"
        ) from None
    if not deviation <= OUTPUT_TOLERANCE:
        raise NotApplicable(
            f"{title} is not a plain one: converted to ours, "
            f"its values differ by {deviation:.1g} of the largest"
        )
    return net


def _unsupported(module: nn.Module, library: Library, state: Mapping[str, Tensor]) -> Iterator[str]:
    """Name everything in which a network is not a plain vision transformer."""
    ours = _renamed(state, library)
    for pattern, feature in UNSUPPORTED_WEIGHTS.items():
        if any(re.search(pattern, key) for key in state):
            yield feature
    for pattern, lack in REQUIRED_WEIGHTS.items():
        if not any(re.search(pattern, key) for key in ours):
            yield lack
    yield from (feature for feature, present in library.other(module).items() if present)
    yield from sorted({f"{m} instead of GELU" for m in module.modules() if _is_other_activation(m)})


def _is_other_activation(module: nn.Module) -> bool:
    if isinstance(module, nn.GELU):
        return module.approximate != "none"
    if isinstance(module, nn.MultiheadAttention) or type(module).__name__ == "GELUActivation":
        return False  # transformers' name of the same function
    return "activation" in type(module).__module__


def renamed(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of a library's vision transformer under our names; others as they are."""
    library = next((library for library in LIBRARIES.values() if library.mark in state), None)
    return _renamed(state, library) if library else dict(state)


def _renamed(state: Mapping[str, Tensor], library: Library) -> dict[str, Tensor]:
    ours = {_our_name(key, library.names): value for key, value in state.items()}
    for key in [key for key in ours if re.search(r"\.attn\.q\.", key)]:
        parts = [key.replace(".attn.q.", f".attn.{part}.") for part in "qkv"]
        if all(part in ours for part in parts):
            merged = torch.cat([ours.pop(part) for part in parts])
            ours[key.replace(".attn.q.", ".attn.qkv.")] = merged
    return ours


def _our_name(key: str, names: Iterable[tuple[str, str]]) -> str:
    for pattern, ours in names:
        key = re.sub(pattern, ours, key)
    return re.sub(r"^block(\d+)", lambda match: f"block{int(match[1]) + 1}", key)


def _library(module: nn.Module) -> Library | None:
    for kind in type(module).__mro__:
        package = kind.__module__.partition(".")[0]
        if package in LIBRARIES and kind.__name__ in LIBRARIES[package].classes:
            return LIBRARIES[package]
    return None


def _built(module: nn.Module, library: Library, state: Mapping[str, Tensor]) -> nn.Sequential:
    shape = library.shape(module)
    classes, dim = state["head.weight"].shape
    with torch.device("meta"):
        net = vit(classes, dim=dim, ratio=shape.pop("hidden") / dim, **shape)
        channels = state["tokens.proj.weight"].shape[1]
        if channels != 3:
            tokens = cast(Tokens, net.tokens)
            tokens.proj = nn.Conv2d(channels, dim, shape["patch"], shape["patch"])
    net.load_state_dict(state, assign=True)
    for ours, theirs in zip(_all(nn.LayerNorm, net), _all(nn.LayerNorm, module), strict=True):
        ours.eps = theirs.eps
    return net.train(module.training)


def _deviation(theirs: nn.Module, ours: nn.Module, size: int) -> float:
    """Compare two networks on noise: the largest difference as a fraction of the largest value.

    The head's input is compared besides the logits, because an untrained head may be zero.
    """
    heads = [_all(nn.Linear, net)[-1] for net in (theirs, ours)]
    weight = heads[0].weight
    channels = _all(nn.Conv2d, ours)[0].in_channels
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(2, channels, size, size, generator=generator).to(weight)
    with (
        torch.no_grad(),
        eval_mode(theirs),
        eval_mode(ours),
        record_calls(heads, keep=lambda call: (*call.inputs, call.output)) as seen,
    ):
        theirs(noise)
        ours(noise)
    pairs = zip(*(seen[head] for head in heads), strict=True)
    return max(
        float((a - b).abs().max() / a.abs().max().clamp(min=torch.finfo(a.dtype).tiny))
        for a, b in pairs
    )


M = TypeVar("M", bound=nn.Module)


def _all(kind: type[M], net: nn.Module) -> list[M]:
    return [m for m in net.modules() if isinstance(m, kind)]
