"""Networks that others wrote, with random weights, to try `convert` on: those of torchvision and timm.

Neither package is needed by vpgcnn. Where torchvision does not fit the installed torch, its two operators for boxes
are declared here without a body, so that it can be imported: classifiers do not use them.

Random weights answer nearly the same to every image, so that no mistake would show: `prepare` makes them depend on it,
and all differences are measured against those between images.

python tools/architectures.py                  convert 150 of them; writes results/scripts/architectures.json
python tools/architectures.py tv:resnet18 …    those alone, also if they were measured before
python tools/architectures.py mistakes         are mistakes that are put into mixing noticed?
"""

from __future__ import annotations

import copy
import json
import logging
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

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
LARGE = (
    "giant", "huge", "gigantic", "xxlarge", "xlarge", "large", "_h_", "_g_", "7b", "5b", "1b", "2b", "3b", "l_16",
    "l_32", "h_14", "300m", "306m", "412m", "so400m", "so150m", "samvit", "sam2", "128gf", "32gf", "101_64x4d", "_384",
    "_448", "_512", "enormous", "naflex", "test_", "e200", "e269",
)  # fmt: skip
"""Parts of the names of networks that are too large, or of parts of networks."""
SMALL = (
    "atto", "femto", "pico", "zepto", "xxs", "nano", "xxtiny", "xtiny", "extra_tiny", "_xs", "tiny", "_t", "mini",
    "_s0", "_m0", "_m1", "_b0", "small", "_s", "050", "002", "lite",
)  # fmt: skip
"""Parts of the names of small networks, the smallest first."""
MANY = 150
GOAL, EXACT = 1e-5, 1e-10
"""Differences that are rounding: relative to the largest logit in float32, to those between images in float64."""
SEEN = 0.01
"""Logits must differ that much between images, relative to the largest, and by mixing, relative to those."""
STEADY = 0.01
"""A network whose own logits are further apart for the same image, by rounding, is tried with larger images."""
ENOUGH = 100
"""Their least side."""
RESULTS = Path("results/scripts")
IMAGES = 4


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
    logging.getLogger("timm").setLevel(logging.ERROR)
    import timm
    import torchvision

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
        options: dict[str, Any] = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
        options |= {"image_size": 64} if name.startswith("vit_") else {}
        made = torchvision.models.get_model(name, weights=None, **options)
    return made.eval()


def prepare(net: nn.Module, images: Tensor) -> None:
    """Let random weights answer differently to different images, as trained ones do.

    Gains are drawn around 1 (among them those of layer scales and of norms that start at 0), biases and other zeros
    around 0. Then one pass from layer to layer sets the statistics of batch norms, and the scale and bias of
    convolutions and linear layers, from what they see of the images, so that nothing fades on the way.
    """
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            if not parameter.numel() or float(parameter.min()) != float(parameter.max()):
                continue
            if parameter.dim() == 0:
                nn.init.uniform_(parameter, 0.7, 1.3)
            elif name.endswith("bias") or parameter[..., 0].numel() > 4 * parameter.shape[-1]:
                nn.init.normal_(parameter, std=0.1)
            elif sum(size > 1 for size in parameter.shape) <= 1:
                nn.init.uniform_(parameter, 0.7, 1.3)
            else:
                nn.init.normal_(parameter, std=parameter[0].numel() ** -0.5)

    def normed(norm: Any, args: tuple[Tensor, ...]) -> None:
        x = args[0].transpose(0, 1).flatten(1)
        if norm.running_mean is not None and x.shape[1] > 1:
            var = x.var(dim=1)
            norm.running_mean.copy_(x.mean(dim=1))
            norm.running_var.copy_(var.clamp_min(0.01 * float(var.mean()) + 1e-12))

    def scaled(layer: Any, args: tuple[Any, ...], out: object) -> Tensor | None:
        if not isinstance(out, Tensor) or layer in seen or out.numel() < 2:
            return None
        seen.add(layer)
        axis = 1 if isinstance(layer, nn.Conv2d) and out.dim() == 4 else out.dim() - 1
        rest = tuple(each for each in range(out.dim()) if each != axis)
        center = out.mean(dim=rest, keepdim=True) if layer.bias is not None else out.new_zeros(())
        size = float((out - center).std())
        if not 1e-12 < size < 1e12:
            return None
        wanted = (out - center) / size
        before = {name: parameter.clone() for name, parameter in layer.named_parameters(recurse=False)}
        for scale in ("weight", *(name for name in before if name not in ("weight", "bias"))):
            getattr(layer, scale).div_(size)  # layers that standardise their weight have a gain instead
            if layer.bias is not None:
                layer.bias.sub_(center.flatten()).div_(size)
            if torch.allclose(wanted, layer.forward(*args), rtol=0.0, atol=0.01):
                return wanted
            for name, value in before.items():
                getattr(layer, name).copy_(value)
        return None

    net.train().eval()  # some networks keep what they computed from parameters until they are trained
    seen: set[nn.Module] = set()
    hooks = []
    for part in net.modules():
        if isinstance(part, _BatchNorm):
            hooks.append(part.register_forward_pre_hook(normed))
        elif isinstance(part, nn.Conv2d | nn.Linear):
            hooks.append(part.register_forward_hook(scaled))
    try:
        with torch.no_grad():
            net(images)
    finally:
        for hook in hooks:
            hook.remove()
    net.train().eval()


def stir(net: nn.Module, strength: float = 1.0) -> None:
    """Give the kernels that look at other views values as training would."""
    from vpgcnn.conversion import MixedConv2d

    for part in net.modules():
        if isinstance(part, MixedConv2d):
            for cross in part.cross:
                nn.init.normal_(cross.weight, std=strength * max(cross.weight[0].numel(), 1) ** -0.5)  # type: ignore[arg-type, index]


def usual(model: nn.Module, least: int = 0) -> Tensor:
    """Images of coloured shapes and a little noise, as small as the network takes; an even number of pixels.

    Args:
        model: A network.
        least: The smallest side.
    """
    config = getattr(model, "default_cfg", None) or {}
    size = config.get("input_size", (3, 224, 224)) if isinstance(config, dict) else config.input_size
    for side in (64, 96, size[-1]):
        try:
            with torch.no_grad():
                model(shapes(side))
        except Exception:  # whatever a network raises for images that are too small
            continue
        if side >= least:
            return shapes(side)
    return shapes(300)


def rounding(net: nn.Module, images: Tensor) -> float:
    """How far the network's own logits move if every image is in the batch four times; relative to the largest."""
    with torch.no_grad():
        alone, together = output(net(images)), output(net(images.repeat_interleave(4, dim=0)))
    return apart(alone, together[::4], alone).logits


def shapes(side: int) -> Tensor:
    """Images `(B, 3, side, side)` in [0, 1]: smooth coloured patches of several sizes, and noise."""
    count = IMAGES if side < 200 else 2
    generator = torch.Generator().manual_seed(0)
    images = torch.zeros(count, 3, side, side)
    for cells in (2, 5, 13):
        patches = torch.randn(count, 3, cells, cells, generator=generator)
        images += F.interpolate(patches, (side, side), mode="bicubic", align_corners=False)
    images += 0.2 * torch.randn(images.shape, generator=generator)
    return images.sigmoid()


class Measured(NamedTuple):
    """Differences of logits, largest first.

    Args:
        logits: Relative to the largest logit.
        images: Relative to how much logits differ between images (root mean square).
    """

    logits: float
    images: float


def apart(one: Tensor, two: Tensor, like: Tensor) -> Measured:
    """How far two answers are apart, measured against a third."""
    largest = float((one - two).abs().max())
    spread = float((like - like.mean(dim=0)).square().mean().sqrt())
    return Measured(largest / max(float(like.abs().max()), 1e-30), largest / max(spread, 1e-30))


def moving(net: Any, images: Tensor, group: Any) -> tuple[Measured, Measured]:
    """What a converted network with the whole group and mixing kernels that are not 0 does.

    Returns:
        How far its logits are from those of images that were moved by the group, and how far from those without mixing.
    """
    from vpgcnn.conversion import MixedConv2d
    from vpgcnn.measure import whole_group

    with torch.no_grad(), whole_group(net):
        for strength in (1.0, 0.1):  # as strong as the network bears
            stir(net, strength)
            answer = net(images).logits
            if bool(answer.isfinite().all()):
                break
        u = group.grid(dtype=torch.float64)[1]  # all other elements are this one, repeated
        moved = apart(net(group.transform(images, u)).logits, answer, answer)
        for part in net.modules():
            if isinstance(part, MixedConv2d):
                for cross in part.cross:
                    nn.init.zeros_(cross.weight)  # type: ignore[arg-type]
        return moved, apart(net(images).logits, answer, answer)


def tried(name: str, images: Callable[[nn.Module, int], Tensor]) -> dict[str, Any]:
    """Convert one network to hue shifts and to quarter turns, and measure what must hold.

    Args:
        name: As for `build`.
        images: The images that a network takes, at least as large as is said.

    Returns:
        "spread": how much logits differ between images, relative to the largest logit; then for each group "same": the
        largest difference of logits at the start; "moved": that between an image and all its moves, with the whole
        group and mixing kernels that are not 0; "mixing": what these kernels change; "mixed", "cost". Differences are
        pairs as `Measured`; with "float64" where those of float32 are above `GOAL` of the differences between images.
        For hue shifts also "kl": at the start; "without": new parameters without a gradient while windows are open.
        "refused": the reason, if a network was.
    """
    for least in (0, ENOUGH):
        plain = build(name)
        shown = images(plain, least)
        prepare(plain, shown)
        if rounding(plain, shown) <= STEADY:
            break
    return {"name": name, "side": shown.shape[-1], **measured(plain, shown)}


def measured(plain: nn.Module, shown: Tensor) -> dict[str, Any]:
    """See `tried`."""
    from vpgcnn import Hue, Rotations
    from vpgcnn.errors import UserError

    with torch.no_grad():
        expected = output(plain(shown))
    spread = float((expected - expected.mean(dim=0)).square().mean().sqrt() / expected.abs().max().clamp_min(1e-30))
    row: dict[str, Any] = {"spread": round(spread, 4)}
    for key, group in (("hue", Hue(3)), ("turns", Rotations(4))):
        try:
            row[key] = with_group(plain, shown, expected, group)
        except UserError as error:
            row[key] = {"refused": str(error)}
            continue
        if max(row[key]["same"].logits, row[key]["same"].images / 10, row[key]["moved"].images) > GOAL:
            double = shown.double()
            with torch.no_grad():
                twin = copy.deepcopy(plain).double()
                found = with_group(twin, double, output(twin(double)), group)
            row[key]["float64"] = {what: found[what] for what in ("same", "moved")}
    if "refused" not in row["hue"]:
        row["without"] = without_gradient(plain, shown[:2])
    return row


def with_group(plain: nn.Module, shown: Tensor, expected: Tensor, group: Any) -> dict[str, Any]:
    """What holds for one group."""
    from vpgcnn import Full, Hue, convert

    hue = isinstance(group, Hue)
    net = convert(plain, group, level=None if hue else Full(), example=shown).eval()
    with torch.no_grad():
        identity = None
        if not hue:  # the answer for the image as it is
            identity = shown.new_zeros(len(shown), group.count)
            identity[:, 0] = 1
        start = net._run(shown, net._record(shown, identity))  # all views, those of weight 0 too
    same = apart(start.logits, expected, expected)
    moved, mixing = moving(net, shown, group)
    row: dict[str, Any] = {"same": same, "moved": moved, "mixing": mixing}
    row |= {"mixed": f"{net.cost.mixed} of {net.cost.convolutions}", "cost": round(net.cost.ratio, 2)}
    return row | ({"kl": float(start.kl.min())} if hue else {})


def without_gradient(plain: nn.Module, shown: Tensor) -> list[str]:
    """New parameters that get no gradient. Behind a closed window nothing is seen of other views: windows are open."""
    from vpgcnn import Hue, Variational, Window, convert
    from vpgcnn.levels import InvariantEncoder

    net = convert(plain, Hue(3), level=Variational(Window(initial=0.6), explore=0.0), example=shown).eval()
    stir(net, 0.1)  # more would saturate some attentions
    new = {key: each for key, each in net.named_parameters() if re.search(r"\.(cross|squeeze|level)\.", key)}
    for key, parameter in net.named_parameters():
        parameter.requires_grad_(key in new)
    missing: list[str] = []
    for size in (1e-4, 1e-8):  # large features close windows, and closed ones have no gradient
        for part in net.modules():
            if isinstance(part, InvariantEncoder):
                nn.init.normal_(part.linear.weight, std=size)
        net.zero_grad()
        found = net(shown)
        (found.logits.square().sum() + found.kl.sum()).backward()
        missing = [key for key, each in new.items() if each.grad is None or not each.grad.any()]
        if not missing:
            break
    return missing


def output(answer: Any) -> Tensor:
    """The logits of a network's answer."""
    from vpgcnn.features import output_of

    found = output_of(answer)
    assert isinstance(found, Tensor)
    return found


def many() -> list[str]:
    """`MANY` names, kinds before sizes: `FEW`, then a small network of every kind, then more of torchvision's."""
    torchvision, timm = load()
    names = list(FEW)
    for module in timm.list_modules():
        names += _smallest([f"timm:{name}" for name in timm.list_models(module=module)], names)
    theirs = [f"tv:{name}" for name in torchvision.models.list_models(torchvision.models)]
    for kind in dict.fromkeys(_kind(name) for name in theirs):
        names += _smallest([name for name in theirs if _kind(name) == kind], names)
    every = [f"timm:{name}" for name in timm.list_models()]
    for kind in dict.fromkeys(_kind(name) for name in every):
        names += _smallest([name for name in every if _kind(name) == kind], names)
    return names[:MANY]


def _kind(name: str) -> str:
    """The letters that a name begins with."""
    return re.split(r"[^a-z]", name.split(":")[1])[0]


def _smallest(names: list[str], taken: list[str]) -> list[str]:
    """One of these names, that of a small network, unless one of them was taken."""
    small = [name for name in names if not any(word in f"{name}_" for word in LARGE)]
    ranks = {name: next((n for n, word in enumerate(SMALL) if word in name), len(SMALL)) for name in small}
    numbers = {name: int((re.findall(r"[0-9]+", name.split(":")[1]) or ["0"])[0]) for name in small}
    return [] if set(names) & set(taken) else sorted(small, key=lambda name: (ranks[name], numbers[name], name))[:1]


def faults(row: dict[str, Any]) -> list[str]:
    """What is wrong with what `tried` found, in words; nothing for a network that is right or was refused."""
    found = [f"fails: {row['error']}"] if "error" in row else []
    for key in ("hue", "turns"):
        part = row.get(key, {"refused": ""})
        if "refused" in part:
            continue
        found += [f"{key}: {what} {max(part[what]):.0e}" for what in ("same", "moved") if not right(part, what)]
        if not part["mixed"].startswith("0 ") and part["mixing"][1] < SEEN:
            found.append(f"{key}: mixing kernels change {part['mixing'][1]:.0e}")
        if part.get("kl", 1.0) <= 0:
            found.append(f"{key}: no KL")
    if row.get("spread", 1.0) < SEEN:
        found.append(f"logits depend on the image by {row['spread']:.0e} only")
    return found + ([f"no gradient: {row['without'][0]}"] if row.get("without") else [])


def right(part: dict[str, Any], what: str) -> bool:
    """Whether "same" or "moved" is rounding: in float32, or in float64 where it amplifies rounding."""
    if "float64" in part:
        return bool(part["float64"][what][1] <= EXACT)
    return bool(part[what][0] <= GOAL and part[what][1] <= 10 * GOAL)


MISTAKES = ("none", "pointwise", "low-rank")
"""Kinds of mixing in which views see the wrong others."""
SUSPECTS = ("tv:mobilenet_v2", "tv:resnet18")


@contextmanager
def mistake(kind: str) -> Iterator[None]:
    """Convert with a mistake, for the length of a `with` block: which view each view sees is transposed.

    Args:
        kind: The kind of mixing with the mistake, or "none".
    """
    from vpgcnn.conversion import MixedConv2d

    init = MixedConv2d.__init__

    def wrong(self: MixedConv2d, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        if self.mixing.kind == kind:
            for name in ("shown", "gathered"):
                setattr(self, name, getattr(self, name).view(self.group.count, -1).t().flatten())
            self.beside = self.beside.t().flatten().roll(1).view_as(self.beside)

    MixedConv2d.__init__ = wrong  # type: ignore[method-assign]
    try:
        yield
    finally:
        MixedConv2d.__init__ = init  # type: ignore[method-assign]


def noticed(name: str, kind: str, group: Any) -> Measured:
    """How far a network with a mistake is from invariance; with the mixing that has it."""
    from vpgcnn import Full, convert

    plain = build(name)
    shown = usual(plain)
    prepare(plain, shown)
    with mistake(kind):
        mix: Any = "pointwise" if kind == "pointwise" else "auto"
        return moving(convert(plain, group, level=Full(), mix=mix, example=shown).eval(), shown, group)[0]


def try_mistakes() -> None:
    """Put each mistake into each of `SUSPECTS`."""
    from vpgcnn import Hue, Rotations

    rows = []
    for name in SUSPECTS:
        for group in (Hue(3), Rotations(4)):
            for kind in MISTAKES:
                found = noticed(name, kind, group)
                rows.append({"name": name, "group": str(group), "mistake": kind, "moved": found})
                print(rows[-1], flush=True)
    written("architectures-mistakes", rows)


def written(name: str, rows: list[dict[str, Any]]) -> None:
    """Write a result as a whole."""
    target = RESULTS / f"{name}.json"
    temporary = target.with_suffix(".tmp")
    temporary.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    temporary.replace(target)


def main(names: Iterable[str], again: bool = False) -> None:
    """Try every name, write what was found after each.

    Args:
        names: Of networks.
        again: Whether to measure those that were measured already; their rows are replaced.
    """
    target = RESULTS / "architectures.json"
    rows: list[dict[str, Any]] = json.loads(target.read_text(encoding="utf-8")) if target.exists() else []
    rows = [row for row in rows if "error" not in row]
    done = {row["name"] for row in rows}
    for name in names:
        if name in done and not again:
            continue
        start = time.process_time()
        try:
            row = tried(name, usual)
        except Exception as error:
            row = {"name": name, "error": f"{type(error).__name__}: {error}".split("\n")[0]}
        row["seconds"] = round(time.process_time() - start, 1)
        rows = [row if each["name"] == name else each for each in rows] + ([] if name in done else [row])
        print(row, flush=True)
        written("architectures", rows)
    wrong = {row["name"]: faults(row) for row in rows if faults(row)}
    if wrong:
        sys.exit("\n".join(f"{name}: {', '.join(each)}" for name, each in wrong.items()))


if __name__ == "__main__":
    if sys.argv[1:] == ["mistakes"]:
        try_mistakes()
    else:
        main(sys.argv[1:] or many(), again=bool(sys.argv[1:]))
