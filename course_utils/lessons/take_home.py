"""A whole DDP training script, without this course: torchrun --standalone --nproc-per-node=2 take_home.py."""

import os

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main() -> None:
    """Train this rank's share, evaluate, and save on rank 0."""
    local, device = int(os.environ["LOCAL_RANK"]), torch.device("cpu")
    if torch.accelerator.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]):
        torch.accelerator.set_device_index(local)
        device = torch.device(torch.accelerator.current_accelerator().type, local)
    backend = dist.get_default_backend_for_device(device)
    dist.init_process_group(backend, device_id=None if device.type == "cpu" else device)
    x, y = map(torch.from_numpy, load_digits(return_X_y=True))
    dataset = TensorDataset(x.float() / 16, y)
    loader = DataLoader(dataset, 64, sampler=(sampler := DistributedSampler(dataset)))
    model = DDP(torch.nn.Linear(64, 10).to(device))
    optimizer, first = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), 0
    if os.path.exists("last.pt"):
        saved = torch.load("last.pt", map_location=device)
        model.module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["epoch"] + 1
    for epoch in range(first, first + 3):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = torch.nn.functional.cross_entropy(model(x.to(device)), y.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: loss {loss.item():.2f} on {dist.get_world_size()} ranks")
            kept = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
            torch.save(kept, "last.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
