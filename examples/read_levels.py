"""Read a level plot.

    python examples/read_levels.py

Written by `make tutorials` from docs/read-levels.md: change the page, which also explains the code.
"""

# mypy: ignore-errors
# ruff: noqa: D101, D103, E402, I001, RUF100
import sys


# %% A network

from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp
import torch
from vpgcnn.apps.commands.use import load_run
from vpgcnn.lab.data import load
from vpgcnn.lab.training.loop import train
from vpgcnn.lab.training.recipes import demo_recipe

epochs = int(sys.argv[1]) if sys.argv[1:] else 40
run = Path(mkdtemp()) / "run"
train(replace(demo_recipe(), epochs=epochs), run)
model, card, data = load_run(run)
test = load(data).test
images, labels = test.images / 255, test.labels

# %% The table

from vpgcnn.measure import levels

some = torch.cat([(labels == label).nonzero()[:5, 0] for label in range(3)])
names = [card.classes[label] for label in labels[some]]
table = levels(model, images[some], names)
print(table)
print(table.rows()[0]["window"])  # plain data for JSON; windows are in degrees

from vpgcnn.lab.report.levels import plot_levels

print(plot_levels(table).save("read_levels-5.svg"))

# %% Weights

weights = table.weights["last"]
print("degrees  " + " ".join(f"{angle:6}" for angle in (0, 45, 90, 135, 180, -135, -90, -45)))
for place in (0, 5):
    print(f"a {names[place]}      " + " ".join(f"{weight:6.3f}" for weight in weights[place]))

# %% Does θ depend on the image?

from vpgcnn.measure import auroc, awareness, read_levels

theta = read_levels(model, images).theta["last"][:, 0]
found = awareness(theta, labels)
for key in ("mean", "std", "within", "between_classes"):
    print(f"{key}: {found[key]:.3f}")
sevens = labels == card.classes.index("7")
print(f"AUROC, 7s against the others: {auroc(theta[sevens], theta[~sevens]):.3f}")

# %% What are the levels worth?

from vpgcnn.measure import whole_group, with_mean_levels


@torch.no_grad()
def accuracy():
    return float((model(images).logits.argmax(dim=1) == labels).float().mean())


print(f"a level for each image: {accuracy():.1%}")
with with_mean_levels(model, images):
    print(f"the mean level for all: {accuracy():.1%}")
with whole_group(model):
    print(f"the whole group:        {accuracy():.1%}")

# %% Where does the answer change?

from vpgcnn.lab.report.chart import Chart, Curve, Panel
from vpgcnn.lab.report.picture import Picture
from vpgcnn.measure import confidence_curve

angles = range(-180, 181, 30)
panels = []
for digit in ("6", "7"):
    label = card.classes.index(digit)
    curve = confidence_curve(lambda part: model(part).logits, images[labels == label][:30], label, angles)
    panels.append(Panel(f"A {digit}, rotated", angles, [Curve("a level for each image", curve.mean(dim=1).tolist())]))
print(Picture(Chart(panels)).save("read_levels-13.svg"))
