"""Networks that others wrote, with random weights, to try `convert` on: those of torchvision and timm.

Neither package is needed by vpgcnn. Where torchvision does not fit the installed torch, its two operators for boxes
are declared here without a body, so that it can be imported: classifiers do not use them.

python tools/architectures.py                  convert 150 of them; writes results/scripts/architectures.json
python tools/architectures.py resnet18 …       those alone
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

FEW = [
    "tv:alexnet",
    "tv:vgg11_bn",
    "tv:googlenet",
    "tv:inception_v3",
    "tv:squeezenet1_1",
    "tv:shufflenet_v2_x0_5",
    "tv:mobilenet_v2",
    "tv:mobilenet_v3_small",
    "tv:mnasnet0_5",
    "tv:efficientnet_b0",
    "tv:regnet_y_400mf",
    "tv:densenet121",
    "tv:resnet18",
    "tv:resnet50",
    "tv:vit_b_16",
    "tv:swin_t",
    "timm:tf_efficientnet_lite0",
    "timm:tf_mobilenetv3_small_minimal_100",
    "timm:resnetv2_50x1_bit",
    "timm:nf_regnet_b0",
    "timm:edgenext_xx_small",
    "timm:mobilevit_xxs",
    "timm:ghostnet_050",
    "timm:repvgg_a0",
    "timm:mixnet_s",
    "timm:convnext_atto",
    "timm:fbnetc_100",
    "timm:hardcorenas_a",
    "timm:lcnet_050",
    "timm:tinynet_e",
]
"""Thirty that take seconds each, with all that made trouble once."""
SKIPPED = ("giant", "huge", "gigantic", "xxlarge", "xlarge", "large", "_h_", "_g_", "7b", "l_16", "l_32", "h_14")
MANY = 150


def load() -> tuple[Any, Any]:
    """The packages torchvision and timm.

    Raises:
        ImportError: If one of them is not installed.
    """
    if "torchvision" not in sys.modules:
        try:
            torch.ops.torchvision.nms  # noqa: B018 (an attribute that is there or not)
        except AttributeError:
            operators = torch.library.Library("torchvision", "FRAGMENT")
            for name in ("nms", "qnms"):
                operators.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
            _KEPT.append(operators)
    import timm  # type: ignore[import-not-found, unused-ignore]
    import torchvision  # type: ignore[import-not-found, unused-ignore]

    return torchvision, timm


_KEPT: list[Any] = []


def build(name: str) -> nn.Module:
    """A network by its name, "tv:resnet18" or "timm:resnet18", in evaluation mode."""
    torchvision, timm = load()
    torch.manual_seed(0)
    where, name = name.split(":", 1)
    if where == "timm":
        made: nn.Module = timm.create_model(name, pretrained=False)
    else:
        options = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
        made = torchvision.models.get_model(name, weights=None, **options)
    for parameter in made.parameters():
        if not parameter.any():  # branches that start at 0 would hide what happens in them
            nn.init.normal_(parameter, std=0.02)
    return made.eval()


def stir(net: nn.Module) -> None:
    """Give the kernels that look at other views values as training would."""
    from vpgcnn.conversion import MixedConv2d

    for part in net.modules():
        if isinstance(part, MixedConv2d):
            for cross in part.cross:
                nn.init.normal_(cross.weight, std=0.1 / max(cross.weight[0].numel(), 1) ** 0.5)  # type: ignore[arg-type, index]


def tried(name: str, images: Callable[[nn.Module], Tensor]) -> dict[str, Any]:
    """Convert one network and measure what must hold.

    Args:
        name: As for `build`.
        images: The images that a network takes.

    Returns:
        "same": the largest difference of logits at the start, relative to the largest logit; "moved": that between an
        image and its hue shift with the whole group, mixing kernels that are not 0 included; "mixed"; "kl": at the
        start; "without": new parameters without a gradient while windows are open; "refused": the reason, if any.
    """
    from vpgcnn import Full, Hue, Variational, Window, convert
    from vpgcnn.errors import UserError
    from vpgcnn.levels import InvariantEncoder

    plain = build(name)
    shown = images(plain)
    try:
        net = convert(plain, Hue(3), example=shown).eval()
    except UserError as error:
        return {"name": name, "refused": str(error)}
    with torch.no_grad():
        expected = output(plain(shown))
        answer = net._run(shown, net._record(shown))  # all views, those of weight 0 too
        same = float((answer.logits - expected).abs().max() / expected.abs().max().clamp_min(1e-12))
        whole = convert(plain, Hue(3), level=Full(), example=shown).eval()
        stir(whole)
        one, two = whole(shown).logits, whole(shown.roll(1, 1)).logits
        moved = float((one - two).abs().max() / one.abs().max().clamp_min(1e-12))
    # Behind a closed window nothing is seen of other views, so gradients are asked for with windows that are open.
    half = Variational(Window(initial=0.6), explore=0.0)
    opened = convert(plain, Hue(3), level=half, example=shown).eval()
    stir(opened)
    for part in opened.modules():
        if isinstance(part, InvariantEncoder):
            nn.init.normal_(part.linear.weight, std=1e-4)  # more would close windows of large features
    new = {key: each for key, each in opened.named_parameters() if re.search(r"\.(cross|squeeze|level)\.", key)}
    for key, parameter in opened.named_parameters():
        parameter.requires_grad_(key in new)
    found = opened(shown)
    (found.logits.square().sum() + found.kl.sum()).backward()
    without = [key for key, each in new.items() if each.grad is None or not each.grad.any()]
    cost = net.cost
    return {
        "name": name,
        "same": same,
        "moved": moved,
        "mixed": f"{cost.mixed} of {cost.convolutions}",
        "cost": round(cost.ratio, 2),
        "kl": float(answer.kl.min()),
        "without": without,
    }


def output(answer: Any) -> Tensor:
    """The logits of a network's answer."""
    from vpgcnn.features import output_of

    found = output_of(answer)
    assert isinstance(found, Tensor)
    return found


def usual(model: nn.Module) -> Tensor:
    """Two images as small as the network is likely to take."""
    config = getattr(model, "default_cfg", None) or {}
    size = config.get("input_size", (3, 224, 224))
    fixed = bool(config.get("fixed_input_size")) or type(model).__name__ in ("VisionTransformer", "MaxVit")
    side = 299 if type(model).__name__ == "Inception3" else size[-1] if fixed else min(size[-1], 96)
    return torch.rand(2, 3, side, side, generator=torch.Generator().manual_seed(0))


def many() -> list[str]:
    """`MANY` names: all of torchvision's classifiers of moderate size, and of timm one of each kind."""
    torchvision, timm = load()
    names = [f"tv:{name}" for name in torchvision.models.list_models(torchvision.models)]
    kinds: dict[str, str] = {}
    for name in timm.list_models():
        kinds.setdefault(name.split("_")[0].rstrip("0123456789"), name)
    names += [f"timm:{name}" for name in kinds.values()]
    names = [*FEW, *(name for name in names if name not in FEW and not any(word in name for word in SKIPPED))]
    return names[:MANY]


def main(names: Iterable[str]) -> None:
    """Try every name, write what was found after each."""
    target = Path("results/scripts/architectures.json")
    rows: list[dict[str, Any]] = json.loads(target.read_text()) if target.exists() else []
    done = {row["name"] for row in rows}
    for name in names:
        if name in done:
            continue
        start = time.process_time()
        try:
            row = tried(name, usual)
        except Exception as error:
            row = {"name": name, "error": f"{type(error).__name__}: {error}".split("\n")[0]}
        row["seconds"] = round(time.process_time() - start, 1)
        rows.append(row)
        print(row, flush=True)
        target.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:] or many())
