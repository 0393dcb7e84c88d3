"""A layer's two products with their communication beneath: torchrun --nproc-per-node 4 FILE."""
import torch
import torch.distributed as dist

import imbrex.torch as it

dist.init_process_group()
rank, size = dist.get_rank(), dist.get_world_size()
device = "cuda:%d" % rank if torch.cuda.is_available() else "cpu"
if device != "cpu":
    torch.cuda.set_device(device)

tokens, hidden, inner = 64, 128, 256 * size
torch.manual_seed(0)  # every rank makes the whole, and takes its part
x = torch.randn(tokens * size, hidden).to(device)
up = (torch.randn(inner, hidden) / 16).to(device)
down = (torch.randn(hidden, inner) / 16).to(device)
my_x, my_up, my_down = x.chunk(size)[rank], up.chunk(size)[rank], down.chunk(size, 1)[rank]

h = it.ag_mm(my_x, my_up.t())  # all ranks' tokens, this rank's columns
y = it.mm_rs(torch.relu(h), my_down.t())  # this rank's tokens

whole = torch.relu(x @ up.t()) @ down.t()
torch.testing.assert_close(y, whole.chunk(size)[rank], rtol=1e-3, atol=1e-3)
print("rank %d of %d on %s: %s, as one process computes it" % (rank, size, device, list(y.shape)))
dist.destroy_process_group()
