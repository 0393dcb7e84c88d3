"""A transformer's MLP over ranks, trained: torchrun --nproc-per-node 4 FILE."""
import torch
import torch.distributed as dist

import imbrex.torch as it

dist.init_process_group()
rank, size = dist.get_rank(), dist.get_world_size()
device = "cuda:%d" % rank if torch.cuda.is_available() else "cpu"
if device != "cpu":
    torch.cuda.set_device(device)

torch.manual_seed(rank)
layer = it.ParallelMLP(hidden=64, intermediate=48 * size, device=device)
x = torch.randn(32, 64, device=device)  # this rank's tokens
target = torch.sin(x)
optimizer = torch.optim.AdamW(layer.parameters(), lr=3e-3)
losses = []
for step in range(60):
    optimizer.zero_grad()
    loss = (layer(x) - target).square().mean()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print("rank %d of %d: the loss fell from %.3f to %.3f" % (rank, size, losses[0], losses[-1]))
assert losses[-1] < losses[0] / 2
dist.destroy_process_group()
