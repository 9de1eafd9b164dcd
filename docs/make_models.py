"""Writes docs/models.md from the table of networks: `make models`."""

from __future__ import annotations

import sys
from pathlib import Path

from heatproof.models.papers import NETWORKS, OURS, Network

TEXT = """# Models and image folders

The table is made by `make models` from the code (`models/papers.py`).

## The networks of the papers

```bash
heatproof list models                                                             # all of them, and the embedded ones
heatproof explain photo.jpg -m bagnet33 --weights bagnet32-2ddd53ed.pth.tar --method bagnet
heatproof explain photo.jpg -m torchvision:resnet50 --weights download            # fetched once, then kept
```

```yaml
models:
  - {name: "torchvision:resnet50", weights: resnet50-0676ba61.pth}
  - {name: bcos-resnet50, weights: download, fine_tuned_weights: {16/zero: bcos_resnet50_imagenet1000_checkpoint_best.pth.tar}}
```

| name | layers `middle`, `final`, `cam` | images | mean | zero is | weights | papers |
| --- | --- | --- | --- | --- | --- | --- |
%s
- **Layers.** `input` is everywhere. `final` is the last layer before the last pooling, `cam` where the IDSDS paper puts CAMs: behind the
  last pooling of a VGG. `middle` is the grid paper's where it has the network (Conv3_x of ResNets, Conv5 of VGG-11, Conv9 of VGG-19), and
  the same place in the others of the family (`layer2`; conv4_1, the first with 512 channels). The paper names none for GoogLeNet;
  `inception4a` is our choice. Transformers are explained at their input. Every other layer can be named as well: `gradcam@layer3.1`.
- **Images**: shorter side to the first number, then the middle; resized bilinearly, also where timm's own is bicubic. All have ImageNet's
  1000 classes, named as torchvision names them.
- **Zero**, the baseline of most protocols, is 0 in input space: the mean colour, or mid-grey, or, for B-cos networks, which encode an
  image x as six channels [x, 1 − x], black: x = 0 and 1 − x = 1.
- **Other networks**: any `torchvision:NAME` and `timm:NAME` (extra `vision`), `file:my_model.py:build`, or any module through `hp.Model`.

## Weights

`weights:` is a local file (`.safetensors`, or `.pth`, `.pt`, `.tar`, `.bin`, `.ckpt` without pickled code), `download`, or `random`.
Without it the published file is looked for in `$HEATPROOF_CACHE/weights` (by default `~/.cache/heatproof/weights`) and where torch keeps
its own; if it is in neither, the message names it. Nothing is downloaded unless asked. A download whose name tells its hash is checked.

Checkpoints are read under the names they were published with: what lies around them (`state_dict`, `model`) and before their names
(`module.`, `model.`) is taken off, B-cos' `….linear.weight` and Fixup's `bias1a` have their places. What is missing, unexpected or of
another shape is listed, with what the file looks like: "it looks like bcos-resnet18".

The IDSDS paper's fine-tuned checkpoints (`…_checkpoint_best.pth.tar`) are for `fine_tuned_weights: {16/zero: FILE}`. Its ViT-B/16 is an older file
than the one that timm now gives for that name; both fit, and the paper's own has to be given as a file. The paper resizes to 256 px for
it, timm to 248.

## Image folders

| you have | you write |
| --- | --- |
| ImageNet's `val/<wnid>/*.JPEG`, all classes or some | `folder:/data/imagenet/val` |
| one subfolder a class, called as the model calls it (case, blanks and underscores do not matter) | `folder:/data/images` |
| subfolders called by class number, from 0 | `folder:/data/images` |
| subfolders of any names, as many as a model without class names has classes | `folder:/data/images`, in sorted order |
| images and a label file, CSV, TSV or `name label` lines, with or without column names | `folder:/data/images:labels.csv` |
| images alone: the model's prediction is the target | `folder:/data/images` |

Labels are class names, wnids (of models with 1000 classes) or numbers from 0. Every image needs a label and every label an image; what
does not match is listed. Listing opens no image. One that cannot be read is a row that says why, counted and never scored.
"""


def line(name: str, network: Network) -> str:
    layers = ", ".join(f"`{layer}`" for layer in network.layers.values()) or "–"
    file = (
        f"[{network.url.rpartition('/')[2]}]({network.url})"
        if name in OURS
        else f"{name.partition(':')[0]}'s"
    )
    mean = " ".join(f"{value:g}" for value in network.mean)
    return f"| `{name}` | {layers} | {network.resize}, {network.size} px | {mean} | {network.zero} | {file} | {network.papers} |\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(
        TEXT % "".join(line(*row) for row in NETWORKS.items()), encoding="utf-8"
    )
