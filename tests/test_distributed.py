"""Data parallelism: the KL travels with the data, so nothing is lost between processes."""

import socket

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from vpgcnn import GroupConv2d, GroupFeature, GroupLayerNorm, Hue, LiftConv2d, Variational

BATCH = 4


class Net(nn.Module):
    """Answers with a GroupFeature, which DDP has to find the tensors in."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.lift = LiftConv2d(3, 4, 3, Hue(3), level=Variational)
        self.norm = GroupLayerNorm(4)
        self.conv = GroupConv2d(4, 4, 3, Hue(3), level=Variational)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm1d):
                module.eval()  # statistics of a batch are those of one process, as always without SyncBatchNorm

    def forward(self, images: Tensor) -> GroupFeature:
        return self.conv(self.norm(self.lift(images)).map(torch.relu))


def loss_of(feature: GroupFeature) -> Tensor:
    return feature.mean().square().mean() + feature.divergence.mean()


def images() -> Tensor:
    return torch.rand(BATCH, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def worker(rank: int, port: int, path: str) -> None:
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    torch.set_num_threads(1)
    model = DistributedDataParallel(Net())
    loss_of(model(images()[rank * 2 : rank * 2 + 2])).backward()
    if rank == 0:
        torch.save({key: p.grad for key, p in model.module.named_parameters()}, path)
    dist.destroy_process_group()


@pytest.mark.skipif(not dist.is_available(), reason="torch was built without distributed")
def test_two_processes_have_the_gradient_of_one(tmp_path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    path = str(tmp_path / "grads.pt")
    mp.spawn(worker, args=(port, path), nprocs=2)
    model = Net()
    loss_of(model(images())).backward()
    together = torch.load(path, weights_only=True)
    for key, parameter in model.named_parameters():
        assert torch.allclose(together[key], parameter.grad, atol=1e-6), key
