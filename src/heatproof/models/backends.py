"""Other ways to compute a forward pass without gradients: logits and embedding at once.

A backend takes whole images in batches of one shape. Each starts from the same graph of the network
(torch.export), which shares its weights, and is compared with the network when it is made.
"""

from __future__ import annotations

import importlib.metadata
import math
import sys
import textwrap
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from importlib.util import find_spec
from itertools import chain
from math import prod
from typing import Any, Literal, get_args
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram
from torch.nn.functional import interpolate
from torch.nn.utils.fusion import fuse_conv_bn_weights

from heatproof.errors import HeatproofError, unknown
from heatproof.models.cutting import Body
from heatproof.models.guards import assert_unchanged, eval_mode, float32_as
from heatproof.tensor.batching import pad
from heatproof.tensor.noise import generator

BackendName = Literal["auto", "eager", "fused", "compile", "openvino"]
PrecisionName = Literal["float32", "tf32", "bfloat16", "float16"]
AUTO = "auto"  # a run chooses the fastest (`heatproof.plan.backend_choice`); other passes are eager
EAGER = "eager"
NAMES: tuple[str, ...] = tuple(name for name in get_args(BackendName) if name != AUTO)
SINGLE = "float32"  # passes in the precision of the weights
PRECISIONS: tuple[str, ...] = get_args(PrecisionName)
# Lower precisions are backends, too: eager passes, shortened by autocast or TF32.
LOWER: tuple[str, ...] = tuple(name for name in PRECISIONS if name != SINGLE)
OUTPUT_TOLERANCE = 1e-3  # relative to the range of the logits, and of the embedding
IMAGES_COMPARED = 8

# Images (B, C, H, W) -> logits (B, K), embedding (B, D)
Forward = Callable[[Tensor], tuple[Tensor, Tensor]]
aten = torch.ops.aten


def used(backend: str) -> str:
    """Return what computes the passes of a model whose backend may not be chosen yet."""
    return EAGER if backend == AUTO else backend


def at_precision(backend: str, precision: str) -> str:
    """Return the name of the backend that computes in a precision.

    Args:
        backend: The backend so far, which may be a lower precision.
        precision: One of ``PRECISIONS``.

    Raises:
        HeatproofError: If there is no such precision, or not with that backend.
    """
    if precision not in PRECISIONS:
        raise unknown("precision", precision, PRECISIONS)
    if backend in LOWER:
        backend = AUTO
    if precision == SINGLE:
        return backend
    if backend not in (AUTO, EAGER):
        raise HeatproofError(
            f"the backend {backend} computes in single precision; leave it out, or the precision "
            f"{precision}"
        )
    return precision


def missing(backend: str) -> str:
    """Return what has to be installed for a backend; empty if nothing is missing."""
    if backend != "openvino" or find_spec("openvino") is not None:
        return ""
    return "pip install 'heatproof[openvino]'"


def library_version(backend: str) -> str:
    """Return the version of the library that a backend needs besides torch; empty if none."""
    if backend != "openvino" or missing(backend):
        return ""
    return importlib.metadata.version("openvino")


class Whole(nn.Module):
    """The network as a function from an image to its logits and its embedding."""

    def __init__(self, name: str, module: nn.Module, body: Body, embedding: int):
        super().__init__()
        self.name = name
        self.module = module
        self.body = body
        self.embedding = embedding
        # The stages are registered so that torch.export finds their weights.
        self.stages = nn.ModuleList(stage.module for stage in getattr(body, "stages", ()))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        logits, seen = self.body.run(x, 0, watch=(self.embedding,))
        return logits, seen[self.embedding].flatten(1)


def forward_by(
    backend: str,
    whole: Whole,
    batch: Tensor,
    input_range: tuple[Tensor, Tensor],
    approximate: bool = False,
) -> Forward:
    """Return the backend's forward function for batches of one shape.

    It is made once, and again if the weights have changed. A write through ``.data``, which torch
    does not count, goes unnoticed.

    Args:
        backend: One of ``NAMES``, except eager, or of ``LOWER``.
        whole: The network.
        batch: A batch of the shape and type to run.
        input_range: The lowest and the highest value of images, ``(C, 1, 1)`` each.
        approximate: Whether results may differ, as long as they are finite.

    Returns:
        A function from images ``(B, C, H, W)`` to logits ``(B, K)`` and embeddings ``(B, D)``.

    Raises:
        HeatproofError: If the backend cannot run the network, or its results differ.
    """
    cache = _cache.setdefault(whole.body, {})
    weights = [
        (t.data_ptr(), t._version) for t in chain(whole.module.parameters(), whole.module.buffers())
    ]
    key = (backend, batch.shape, batch.dtype, approximate)
    if key not in cache or cache[key][0] != weights:
        cache[key] = weights, _make(backend, whole, batch, input_range, approximate)
    return cache[key][1]


_cache: WeakKeyDictionary[Body, dict[Any, tuple[Any, Forward]]] = WeakKeyDictionary()


def _make(
    backend: str,
    whole: Whole,
    batch: Tensor,
    input_range: tuple[Tensor, Tensor],
    approximate: bool,
) -> Forward:
    if backend in LOWER:
        cannot, hint = f"{whole.name} cannot run in {backend}", f"The precision {SINGLE} runs it"
    else:
        cannot = f"{whole.name} cannot run on the backend {backend}"
        hint = "The backend eager runs it"
    with (
        assert_unchanged(whole.module),
        eval_mode(whole.module),
        torch.no_grad(),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        images = _noise(batch[:IMAGES_COMPARED], input_range)
        layout = torch.channels_last if _is_channels_last(batch) else torch.contiguous_format
        padded = pad(images, len(batch)).contiguous(memory_format=layout)
        try:
            forward = (
                _shortened(backend, whole, batch)
                if backend in LOWER
                else _MAKERS[backend](_exported(whole, batch))
            )
            outputs = [out[: len(images)] for out in forward(padded)]
        except HeatproofError as error:
            raise HeatproofError(f"{cannot}: {error}. {hint}") from error
        except Exception as error:
            raise HeatproofError(f"{cannot}: {_reason(error)}. {hint}") from error
        names = ("logits", "embeddings")
        for name, ours, theirs in zip(names, outputs, whole(images), strict=True):
            width = (theirs.max() - theirs.min()).clamp(min=1e-30)
            difference = float((ours - theirs).abs().max() / width)
            if not difference <= (sys.float_info.max if approximate else OUTPUT_TOLERANCE):
                raise HeatproofError(
                    f"{cannot}: for noise, its {name} differ from the network's by "
                    f"{difference:.0e} of their range; at most "
                    f"{OUTPUT_TOLERANCE:.0e} is allowed. {hint}{_acceptance(backend, difference)}"
                )
    return forward


def _is_channels_last(batch: Tensor) -> bool:
    return batch.is_contiguous(memory_format=torch.channels_last)


def _acceptance(backend: str, difference: float) -> str:
    """Say how a difference is accepted, where it can be."""
    if backend not in LOWER or not math.isfinite(difference):
        return ""
    return "; approximate: true accepts the difference, and results state it"


def _exported(whole: Whole, batch: Tensor) -> ExportedProgram:
    try:
        return torch.export.export(whole, (batch,))
    except Exception as error:  # a network can do anything that the export cannot follow
        raise HeatproofError(
            f"torch.export cannot follow the network ({_reason(error)})"
        ) from error


def _shortened(precision: str, whole: Whole, batch: Tensor) -> Forward:
    """Return the network itself, whose operations are shortened."""
    device = batch.device.type
    if batch.dtype != torch.float32:
        kind = str(batch.dtype).removeprefix("torch.")
        raise HeatproofError(f"its weights are {kind}, and only float32 is shortened")
    if precision == "tf32" and device != "cuda":
        raise HeatproofError(f"TF32 is a mode of NVIDIA graphics cards, and it is on {device}")

    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        with eval_mode(whole.module), ExitStack() as stack:
            if precision == "tf32":
                stack.enter_context(float32_as(tf32=True))
            else:
                stack.enter_context(torch.autocast(device, getattr(torch, precision)))
            logits, embedding = whole(x)
        return logits.to(x), embedding.to(x)

    return forward


def _noise(like: Tensor, input_range: tuple[Tensor, Tensor]) -> Tensor:
    """Return images in the range, always the same; every other one is smooth."""
    low, high = input_range
    fine = torch.from_numpy(generator(0, "backends").random(like.shape)).to(like)
    smooth = interpolate(fine[..., ::8, ::8], like.shape[-2:], mode="bilinear", align_corners=False)
    even = torch.arange(len(like), device=like.device).reshape(-1, 1, 1, 1) % 2 == 0
    return low + (high - low) * torch.where(even, fine, smooth)


def _reason(error: Exception) -> str:
    if "InvalidCxxCompiler" in str(error):
        return (
            "torch.compile finds no C++ compiler; "
            "install g++, or name one in the environment variable CXX"
        )
    return textwrap.shorten(f"{type(error).__name__}: {error}", 400, placeholder=" …")


def _graph(program: ExportedProgram) -> tuple[fx.Graph, dict[str, Any]]:
    """Return the operations as a graph whose only input is the image, and its tensors by name."""
    graph = fx.Graph()
    graph.output(graph.graph_copy(program.graph, {}))
    signature = program.graph_signature
    stored = {**program.state_dict, **program.constants}
    names = {
        **signature.inputs_to_parameters,
        **signature.inputs_to_buffers,
        **signature.inputs_to_lifted_tensor_constants,
    }
    tensors = {
        str(n.target): getattr(program.graph_module, str(n.target))
        for n in graph.nodes
        if n.op == "get_attr"
    }
    for node in graph.find_nodes(op="placeholder"):
        if node.target in names:
            tensors[node.target] = stored[names[node.target]]
            with graph.inserting_before(node):
                node.replace_all_uses_with(graph.get_attr(node.target))
            graph.erase_node(node)
    return graph, tensors


def _fused(program: ExportedProgram) -> Forward:
    """Fold batch norms into the convolutions before them, and lay weights out as channels_last."""
    graph, tensors = _graph(program)
    for norm in graph.find_nodes(op="call_function", target=aten.batch_norm.default):
        conv, scale, shift, mean, variance, training, _, eps, _ = norm.args
        if (
            conv.target not in (aten.conv2d.default, aten.conv2d.padding)
            or len(conv.users) > 1
            or training
        ):
            continue
        x, weight, bias, *others = (*conv.args, None) if len(conv.args) == 2 else conv.args
        w, b, m, v, gamma, beta = (
            node and tensors.get(node.target)
            for node in (weight, bias, mean, variance, scale, shift)
        )
        if w is None or m is None or v is None:
            continue  # the weight is computed, or the norm uses the statistics of the batch
        names = f"{norm.name}_weight", f"{norm.name}_bias"
        tensors |= zip(names, fuse_conv_bn_weights(w, b, m, v, eps, gamma, beta), strict=True)
        with graph.inserting_before(conv):
            conv.args = (x, *map(graph.get_attr, names), *others)
        norm.replace_all_uses_with(conv)
        graph.erase_node(norm)
    graph.eliminate_dead_code()
    return fx.GraphModule({name: _channels_last(t) for name, t in tensors.items()}, graph)


def _channels_last(value: Any) -> Any:
    if isinstance(value, Tensor) and value.ndim == 4:
        return value.contiguous(memory_format=torch.channels_last)
    return value


def _compiled(program: ExportedProgram) -> Forward:
    """Compile with torch.compile, with the weights as constants."""
    graph, tensors = _graph(program)
    compiled: Forward = torch.compile(
        fx.GraphModule(tensors, graph), fullgraph=True, dynamic=False, options={"freezing": True}
    )
    return compiled


def _openvino(program: ExportedProgram) -> Forward:
    """Compile with OpenVINO, in single precision, for as many threads as torch has."""
    # OpenVINO reports its use over the internet where it finds this package.
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    try:
        import openvino
    except ModuleNotFoundError as error:
        raise HeatproofError(
            f"openvino cannot be imported ({error}). Install it: pip install 'heatproof[openvino]'"
        ) from None
    tensors = [*program.state_dict.values(), *program.constants.values()]
    if any(isinstance(t, Tensor) and t.device.type != "cpu" for t in tensors):
        raise HeatproofError(
            "openvino runs on the CPU, but the network is on another device; "
            "load it with device=cpu"
        )
    for pool in program.graph.find_nodes(op="call_function", target=aten.avg_pool2d.default):
        _without_divisor(program.graph, pool)
    options = {
        "INFERENCE_PRECISION_HINT": "f32",
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "NUM_STREAMS": 1,
        "PERFORMANCE_HINT": "LATENCY",
    }
    compiled = openvino.Core().compile_model(openvino.convert_model(program), "CPU", options)

    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        logits, embedding = compiled([x.contiguous().numpy()], share_inputs=True).values()
        return torch.from_numpy(logits).to(x), torch.from_numpy(embedding).to(x)

    return forward


def _without_divisor(graph: fx.Graph, pool: fx.Node) -> None:
    """Scale the mean instead of pooling with a divisor, which OpenVINO does not have."""
    args: Any = pool.args
    *others, ceil, _, divisor = args if len(args) == 7 else (True, None, None)
    if ceil or divisor is None:
        return
    with graph.inserting_after(pool):
        scaled = graph.call_function(aten.mul.Tensor, (pool, prod(others[1]) / divisor))
    scaled.meta = dict(pool.meta)
    pool.replace_all_uses_with(scaled, delete_user_cb=lambda user: user is not scaled)
    pool.args = (*others, False, True)


_MAKERS: dict[str, Callable[[ExportedProgram], Forward]] = {
    "fused": _fused,
    "compile": _compiled,
    "openvino": _openvino,
}
