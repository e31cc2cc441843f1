"""A classifier that is not ours: a ResNet18 in plain PyTorch, trained on Flowers102 at 64 pixels for a few minutes.

python benchmarks/foreign.py runs/foreign          trains it
vpgcnn diagnose benchmarks/foreign.py:build …      looks at it (weights from runs/foreign, or $FOREIGN)
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

WIDTH, EPOCHS, BATCH, CLASSES = 24, 40, 64, 102


class Block(nn.Module):
    """Two convolutions and a shortcut, written as everyone writes them."""

    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outer)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outer)
        self.downsample: nn.Module | None = None
        if stride != 1 or inner != outer:
            self.downsample = nn.Sequential(nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer))

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out += x if self.downsample is None else self.downsample(x)
        return self.relu(out)


def resnet18(width: int = WIDTH, classes: int = CLASSES) -> nn.Module:
    """With random weights."""
    layers: list[nn.Module] = [nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
    layers.append(nn.MaxPool2d(3, 2, 1))
    inner = width
    for stage in range(4):
        outer = width * 2**stage
        layers += [Block(inner, outer, 2 if stage else 1), Block(outer, outer, 1)]
        inner = outer
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inner, classes))


def build() -> nn.Module:
    """With the weights that were trained."""
    model = resnet18()
    model.load_state_dict(load_file(Path(os.environ.get("FOREIGN", "runs/foreign")) / "weights.safetensors"))
    return model


def main(out: Path) -> None:
    """Train on the 1,020 training images: random parts of them, mirrored."""
    from vpgcnn.lab.data import DataConfig, load

    torch.manual_seed(0)
    data = load(DataConfig(name="flowers102", size=64))
    model = resnet18()
    optimiser = torch.optim.Adam(model.parameters(), 1e-3, weight_decay=1e-5)
    steps = EPOCHS * (len(data.train) // BATCH)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for epoch in range(EPOCHS):
        model.train()
        for index in torch.randperm(len(data.train)).split(BATCH)[: len(data.train) // BATCH]:
            images = data.train.images[index].float() / 255
            side = int(images.shape[-1] * (0.5 + 0.5 * float(torch.rand(()))))
            top, left = (int(torch.randint(images.shape[-1] - side + 1, ())) for _ in range(2))
            images = F.interpolate(images[..., top : top + side, left : left + side], (64, 64), mode="bilinear")
            images = images.flip(-1) if torch.rand(()) < 0.5 else images
            loss = F.cross_entropy(model(images), data.train.labels[index])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
        print(f"epoch {epoch + 1} of {EPOCHS}: loss {float(loss.detach()):.3f}", flush=True)
    model.eval()
    with torch.no_grad():
        parts = zip(data.test.images.split(256), data.test.labels.split(256), strict=True)
        right = sum(int((model(images.float() / 255).argmax(1) == labels).sum()) for images, labels in parts)
    print(f"test accuracy {right / len(data.test):.2%}")
    out.mkdir(parents=True, exist_ok=True)
    save_file(model.state_dict(), out / "weights.safetensors")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/foreign"))
