"""PER's rule: the strength of each factor's penalty is adjusted once, to which symmetry the network can keep."""

import pytest
import torch
from torch import nn

from vpgcnn import GroupConv2d, Hue, LiftConv2d, Product, Projected, Rotations, dual_step, penalty
from vpgcnn.kernels import ProjectedKernel

GROUP = Product(Rotations(4), Hue(3))


def network(kernel: Projected) -> nn.Sequential:
    return nn.Sequential(LiftConv2d(3, 2, 3, GROUP, kernel=kernel), GroupConv2d(2, 2, 3, GROUP, kernel=kernel)).double()


def set_distances(net: nn.Sequential, rotation: float, hue: float) -> None:
    """Move every kernel away from its equivariant start: along rotations, and along hues, by given amounts."""
    for layer in net:
        kernel = layer.kernel
        with torch.no_grad():
            base = kernel.projected()
            circles = torch.zeros(4, 3, *base.shape[1:], dtype=base.dtype)
            circles[0, :] += rotation
            circles[:, 0] += hue
            kernel.tables.copy_(base + circles.flatten(0, 1))


def strengths(net: nn.Sequential) -> list[list[float]]:
    return [layer.kernel.strengths.tolist() for layer in net]


@pytest.mark.parametrize("power", [1.0, 0.5])
def test_the_strengths_follow_the_smallest_distances_of_the_second_half(power: float) -> None:
    net = network(Projected((2.0, 3.0), adjust_at=10, power=power, watch=6))
    amounts = {4: (0.001, 0.001), 8: (0.1, 0.4), 9: (0.2, 0.3)}  # step 4 is too early to count
    for step in range(1, 13):
        set_distances(net, *amounts.get(step, (1.0, 1.0)))
        dual_step(net)
        if step < 10:
            assert strengths(net) == [[2.0, 3.0]] * 2
    first, second = [], []
    for amount in ((0.1, 0.4), (0.2, 0.3)):
        set_distances(net, *amount)
        found = sum(layer.kernel.distances().detach() for layer in net)
        first.append(float(found[0]))
        second.append(float(found[1]))
    low = min(first), min(second)
    expected = [2.0 / (low[0] / min(low)) ** power, 3.0 / (low[1] / min(low)) ** power]
    for each in strengths(net):
        assert each == pytest.approx(expected, rel=1e-6)
    assert expected[0] == 2.0
    assert expected[1] < 3.0
    before = strengths(net)
    for _ in range(20):
        dual_step(net)
    assert strengths(net) == before  # once


def test_the_penalty_is_with_the_adjusted_strengths_and_a_run_can_be_resumed() -> None:
    spec = Projected((2.0, 3.0), adjust_at=4, watch=4)
    net = network(spec)
    set_distances(net, 0.1, 0.4)
    for _ in range(3):
        dual_step(net)
    resumed = network(spec)
    resumed.load_state_dict(net.state_dict())
    for each in (net, resumed):
        dual_step(each)
    assert strengths(net) == strengths(resumed) != [[2.0, 3.0]] * 2
    by_hand = sum(
        float((layer.kernel.strengths / 2 * layer.kernel.distances()).sum().detach())
        for layer in net
        if isinstance(layer.kernel, ProjectedKernel)
    )
    assert float(penalty(net).detach()) == pytest.approx(by_hand)


def test_an_equivariant_network_keeps_its_strengths_and_nonsense_is_refused() -> None:
    net = network(Projected((2.0, 3.0), adjust_at=2, watch=2))
    for _ in range(3):
        dual_step(net)
    assert strengths(net) == [[2.0, 3.0]] * 2
    for wrong, match in (
        ({"strength": 1.0, "adjust_at": 5}, "several strengths"),
        ({"strength": (1.0, 1.0), "adjust_at": 0}, "adjust_at must be a whole number"),
        ({"power": -1.0}, "power must be a number"),
        ({"watch": 0}, "watch must be a whole number"),
    ):
        with pytest.raises(ValueError, match=match):
            Projected(**wrong)
