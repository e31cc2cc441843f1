"""In a training step on a GPU the host never waits: it reads no number and copies none. Every family of levels."""

from __future__ import annotations

import pytest
import torch

from support import FAMILIES, HostReads, SmallNet, host_reads
from vpgcnn import SO2, GroupConv2d, GroupFeature, Hue, LiftConv2d, Rotations
from vpgcnn._ops.constants import constant


@pytest.mark.parametrize("width", [4, 64])
@pytest.mark.parametrize("name", FAMILIES)
def test_no_family_makes_the_host_wait(name: str, width: int) -> None:
    group, level = FAMILIES[name]
    net = SmallNet(group, level=level, width=width)
    assert set(host_reads(net, torch.rand(4, 3, 16, 16))) == set()


@pytest.mark.parametrize("group", [SO2(4), Rotations(4), Hue(3)], ids=repr)
def test_joins_and_given_elements(group: Rotations) -> None:
    lift, conv = LiftConv2d(3, 4, 3, group).to("meta"), GroupConv2d(4, 4, 1, group).to("meta")
    x = lift(torch.rand(2, 3, 8, 8, device="meta"))
    other = GroupFeature(x.values, x.elements.clone(), None, group)
    for _ in range(2):  # constants are made in the first round
        with HostReads() as reads:
            y = conv(x, elements=other) + conv(other, elements=x)
            (x + other).values.sum().backward(retain_graph=True)
    assert y.shape == (2, 4, group.count, 6, 6)
    assert reads.found == []


def test_reads_are_noticed() -> None:
    with HostReads() as reads:
        torch.rand(3).new_tensor([1.0]).item()
        bool(torch.rand(3).sum() > 0)
        torch.rand(3).to("meta")
    assert len(reads.found) == 4


def test_a_grid_may_be_written_to() -> None:
    Hue(3).grid().fill_(7)
    assert torch.allclose(Hue(3).grid()[1], torch.tensor(2.0944))


def test_constants_do_not_leave_inference_mode_or_a_trace() -> None:
    with torch.inference_mode():
        first = constant((1.5, 2.5), torch.float32, torch.device("cpu"))
    assert not first.is_inference()
    assert constant((1.5, 2.5), torch.float32, torch.device("cpu")) is first
    program = torch.export.export(_Adds(), (torch.rand(2),), strict=False)
    assert type(constant((3.5, 4.5), torch.float32, torch.device("cpu"))) is torch.Tensor
    assert torch.equal(program.module()(torch.zeros(2)), torch.tensor([3.5, 4.5]))


class _Adds(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + constant((3.5, 4.5), x.dtype, x.device)
