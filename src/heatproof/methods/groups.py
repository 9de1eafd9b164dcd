"""Groups of methods that a spec can name: `group:rao2024`, or `group:rao2024@final` at a layer.

A group that is named after a paper has the methods of the paper with its settings, also where they
are those of the libraries that its authors used: TorchCAM (Hesse et al.), Captum (Li et al.) and
Xplique (Picard et al.). `tests/methods/test_presets.py` compares every group with the settings that
its paper states, section by section.
"""

from __future__ import annotations

# Captum's SmoothGrad as Hesse et al. call it: in the units of the normalized image.
_HESSE = "n=4, std=1, unit=absolute"
_LI = "n=20, std=0.3, unit=absolute"

GROUPS: dict[str, tuple[str, ...]] = {
    "hesse2024": (
        "ixg",
        f"ixg-sg({_HESSE})",
        "ig",
        "ig-u",
        f"ig-sg({_HESSE})",
        "ixg|abs",
        f"ixg-sg({_HESSE})|abs",
        "ig|abs",
        "ig-u|abs",
        f"ig-sg({_HESSE})|abs",
        f"ig-sq({_HESSE})",
        "saliency",
        "rise(masks=1000, cells=8, p=0.1, score=softmax)",
        "rise-u(masks=1000, cells=8, p=0.1, score=softmax)",
        "gradcam",
        "gradcam++(compat=torchcam)",
        "sg-cam++(compat=torchcam)",
        "xgradcam",
        "layercam",
        "rollout",
        "chefer",
        "bcos",
        "bagnet",
    ),
    # The layer is part of every comparison of Rao et al.: `@input`, `@middle` and `@final`.
    # Windows of occlusion are 16 px at the input and 5 at other layers.
    "rao2024": (
        "saliency(reduce=sum_abs)",
        "guided-backprop",
        "ixg",
        "ig(steps=20)",
        "lrp-focus(start=logit)",
        "gradcam",
        "gradcam++",
        "ablationcam",
        "scorecam",
        "layercam",
        "occlusion",
        "rise(masks=1000, cells=6, p=0.1, score=softmax)",
    ),
    # Negative values are clamped, as in the paper. InputIBA is named in the authors' configuration,
    # not among the methods that the text evaluates.
    "li2024": (
        "gradcam@last-conv",
        "ig|relu",
        f"ig-sg({_LI})|relu",
        f"ig-sq({_LI})",
        f"ig-var({_LI})",
        "deepshap(compat=captum)|relu",
        "iba",
        "input-iba",
        "extremal",
    ),
    # As the notebooks ran them that made the published numbers. Curves depend on the order of the
    # pixels alone, so that a sum of channels stands for their mean. Xplique's noise is in units of
    # images in [-1, 1]: 0.15 is 7.5 % of their range. Its Grad-CAM++ and bicubic resizing of CAMs
    # have no counterpart here.
    "picard2024": (
        "saliency(reduce=max_abs)",
        "ixg|abs",
        "ig(steps=128, rule=trapezoid)|abs",
        "smoothgrad(n=128, std=0.075)",
        "squaregrad(n=128, std=0.1)",
        "vargrad(n=128, std=0.1)",
        "guided-backprop(reduce=abs_sum)",
        "deconvnet(reduce=abs_sum)",
        "gradcam",
        "gradcam++",
        "occlusion(size=7, stride=7, compat=xplique)|abs",
        "rise(masks=3000, cells=8, p=0.5, score=logit, compat=xplique)|abs",
        "sobol(designs=32, compat=xplique)|abs",
        "hsic(masks=1000, compat=xplique)|abs",
    ),
    # Xplique's defaults, as the text says.
    "picard2024-text": (
        "saliency(reduce=max_abs)",
        "ixg|abs",
        "ig(steps=50, rule=trapezoid)|abs",
        "smoothgrad(n=50, std=0.1)",
        "squaregrad(n=50, std=0.1)",
        "vargrad(n=50, std=0.1)",
        "guided-backprop(reduce=abs_sum)",
        "deconvnet(reduce=abs_sum)",
        "gradcam",
        "gradcam++",
        "occlusion(size=3, stride=3, compat=xplique)|abs",
        "rise(masks=4000, cells=7, p=0.5, score=logit, compat=xplique)|abs",
        "sobol(designs=32, compat=xplique)|abs",
        "hsic(masks=1000, compat=xplique)|abs",
    ),
    "controls": ("random", "constant", "edges", "center", "object"),
}
_PICARD = (  # Appendix B names six; the others have their usual names
    "Saliency",
    "Gradient-Input",
    "Integrated Gradients",
    "SmoothGrad",
    "SquareGrad",
    "VarGrad",
    "Guided Backprop",
    "DeconvNet",
    "GradCAM",
    "GradCAM++",
    "Occlusion",
    "RISE",
    "Sobol",
    "HSIC",
)
# What a paper calls the methods of its group, in the same order, with the marks of the figures of
# Hesse et al. Figures of a run of the group have these names.
PAPER_NAMES: dict[str, tuple[str, ...]] = {
    "hesse2024": (
        "● I×G",
        "● I×G-SG",
        "● IG",
        "● IG-U",
        "● IG-SG",
        "■ I×G abs.",
        "■ I×G-SG abs.",
        "■ IG abs.",
        "■ IG-U abs.",
        "■ IG-SG abs.",
        "■ IG-SG-SQ",
        "■ Saliency",
        "⬟ RISE",
        "⬟ RISE-U",
        "◆ Grad-CAM",
        "◆ Grad-CAM++",
        "◆ SG-CAM++",
        "◆ XGrad-CAM",
        "◆ Layer-CAM",
        "◆ Rollout",
        "◆ CheferLRP",
        "▲ B-cos",
        "▲ BagNet",
    ),
    "rao2024": (
        "Gradient",
        "Guided Backprop",
        "IxG",
        "IntGrad",
        "LRP",
        "Grad-CAM",
        "Grad-CAM++",
        "Ablation-CAM",
        "Score-CAM",
        "Layer-CAM",
        "Occlusion",
        "RISE",
    ),
    "li2024": (
        "GradCAM",
        "IG",
        "IG-SG",
        "IG-SQ",
        "IG-Var",
        "DeepSHAP",
        "IBA",
        "InputIBA",
        "ExPerturb",
    ),
    "picard2024": _PICARD,
    "picard2024-text": _PICARD,
}
