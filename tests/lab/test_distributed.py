"""Data parallelism: the KL travels with the data, and statistics are those of all images: nothing is lost."""

from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from processes import forkserver
from vpgcnn import GroupBatchNorm, GroupConv2d, GroupFeature, Hue, LiftConv2d, Variational
from vpgcnn.nn.norm import synchronise

BATCH = 4


class Net(nn.Module):
    """Answers with a GroupFeature, which DDP has to find the tensors in."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.lift = LiftConv2d(3, 4, 3, Hue(3), level=Variational())
        self.norm = GroupBatchNorm(4)
        self.conv = GroupConv2d(4, 4, 3, Hue(3), level=Variational())
        synchronise(self.double())

    def forward(self, images: Tensor) -> GroupFeature:
        return self.conv(self.norm(self.lift(images)).map(torch.relu))


def loss_of(feature: GroupFeature) -> Tensor:
    return feature.mean().square().mean() + feature.kl.mean()


def images() -> Tensor:
    return torch.rand(BATCH, 3, 8, 8, generator=torch.Generator().manual_seed(1)).double()


def worker(rank: int, folder: str) -> None:
    """One of two processes. They meet in a file, so that no port can be taken in the meantime."""
    meeting = f"file://{folder}/meeting"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2, timeout=timedelta(minutes=2))
    torch.set_num_threads(1)
    model = DistributedDataParallel(Net())
    loss_of(model(images()[rank * 2 : rank * 2 + 2])).backward()
    if rank == 0:
        buffers = {f"buffer {key}": value for key, value in model.module.named_buffers()}
        torch.save({key: p.grad for key, p in model.module.named_parameters()} | buffers, f"{folder}/grads.pt")
    dist.barrier()  # none leaves while the other still needs it
    dist.destroy_process_group()


@pytest.mark.skipif(not dist.is_available(), reason="torch was built without distributed")
def test_two_processes_have_the_gradient_of_one(tmp_path: Path) -> None:
    forkserver()
    mp.start_processes(worker, args=(str(tmp_path),), nprocs=2, start_method="forkserver")
    model = Net()
    loss_of(model(images())).backward()
    together = torch.load(tmp_path / "grads.pt", weights_only=True)
    for key, parameter in model.named_parameters():
        assert torch.allclose(together[key], parameter.grad, atol=1e-9), key
    for key, value in model.named_buffers():
        assert torch.allclose(together[f"buffer {key}"], value, atol=1e-9), key


def test_without_synchronisation_statistics_are_of_one_process() -> None:
    """The test above can fail: one half of the batch alone has other gradients."""
    whole, half = Net(), Net()
    loss_of(whole(images())).backward()
    loss_of(half(images()[:2])).backward()
    pairs = zip(whole.parameters(), half.parameters(), strict=True)
    assert not all(torch.allclose(one.grad, two.grad, atol=1e-9) for one, two in pairs)
