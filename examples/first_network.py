"""Your first partially equivariant network.

    python examples/first_network.py

Written by `make tutorials` from docs/first-network.md: change the page, which also explains the code.
"""

# mypy: ignore-errors
# ruff: noqa: D101, D103, E402, I001, RUF100
import sys


# %% The question

import torch
from vpgcnn.lab.data import DataConfig, load

torch.manual_seed(0)
digits = load(DataConfig(name="mnist67-180", source="embedded"))
print(f"classes {digits.classes}, {len(digits.train)} training images, {len(digits.test)} test images")

# %% The network

from torch import nn
from vpgcnn import SO2, Full, GroupBatchNorm, GroupConv2d, GroupPool, LiftConv2d, Siren, SpatialPool, Variational
from vpgcnn import Prediction, name_layers


class DigitNet(nn.Module):
    def __init__(self, level):
        super().__init__()
        group, kernel = SO2(8), Siren(omega=4.0)
        self.lift = LiftConv2d(1, 10, 7, group, kernel=kernel, padding="same")
        self.middle = GroupConv2d(10, 10, 5, group, kernel=kernel, padding="same")
        self.last = GroupConv2d(10, 20, 5, group, kernel=kernel, level=level)
        self.norms = nn.ModuleList(GroupBatchNorm(width) for width in (10, 10, 20))
        self.halve, self.pool = SpatialPool("max", 2), GroupPool("mean")
        self.head = nn.Linear(20, len(digits.classes))
        name_layers(self)

    def forward(self, images):
        x = self.halve(torch.relu(self.norms[0](self.lift(images))))
        x = self.halve(torch.relu(self.norms[1](self.middle(x))))
        x = torch.relu(self.norms[2](self.last(x)))
        return Prediction(self.head(self.pool(x).amax(dim=(-2, -1))), x.trace)


# %% The training

from vpgcnn import Elbo, parameter_groups

steps = int(sys.argv[1]) if sys.argv[1:] else 700  # about two minutes on one core


def train(level):
    torch.manual_seed(0)
    model = DigitNet(level)
    optimiser = torch.optim.AdamW(parameter_groups(model, lr=1e-2, weight_decay=1e-3))
    rates = torch.optim.lr_scheduler.OneCycleLR(optimiser, 1e-2, total_steps=steps, pct_start=0.1)
    for step in range(steps):
        batch = torch.randint(len(digits.train), (64,))
        elbo = Elbo.of(model(digits.train.images[batch] / 255), digits.train.labels[batch])
        elbo.total().backward()  # nll + 0.05 · unused
        optimiser.step()
        rates.step()
        optimiser.zero_grad()
        if step % 50 == 0:
            print(f"step {step}: nll {elbo.nll:.3f}, unused {elbo.unused:.3f}")
    return model.eval()


model = train(Variational(condition="output"))

# %% What it learned

images, labels = digits.test.images / 255, digits.test.labels
with torch.no_grad():
    prediction = model(images)
correct = prediction.logits.argmax(dim=1) == labels
print(f"accuracy on test digits: {correct.float().mean():.1%}")

theta = prediction.theta["last"][:, 0]  # one number for each image
for label, name in enumerate(digits.classes):
    print(f"{name}: θ = {theta[labels == label].mean():.2f}")

from vpgcnn.measure import confidence_curve

angles = (0, 45, 90, 135, 180)
for label, name in ((0, "6"), (1, "7")):
    some = images[labels == label][:20]
    curve = confidence_curve(lambda part: model(part).logits, some, label, angles).mean(dim=1)
    print(name, " ".join(f"{angle}°: {value:.2f}" for angle, value in zip(angles, curve, strict=True)))

from vpgcnn.lab.report.levels import plot_levels
from vpgcnn.measure import levels

some = torch.cat([(labels == label).nonzero()[:4, 0] for label in range(3)])
table = levels(model, images[some], [f"a {digits.classes[label]}" for label in labels[some]])
print(plot_levels(table).save("first_network-11.svg"))

# %% The same network without levels

full = train(Full())
with torch.no_grad():
    correct = full(images).logits.argmax(dim=1) == labels
print(f"fully equivariant: {correct.float().mean():.1%}")
