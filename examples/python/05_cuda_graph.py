"""A product in a CUDA graph, replayed with other values: torchrun --nproc-per-node 2 FILE."""
import torch
import torch.distributed as dist

import imbrex.torch as it

dist.init_process_group("cpu:gloo,cuda:nccl")
rank, size = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(rank)
a = torch.zeros(16, 256, device="cuda", dtype=torch.bfloat16)
weight = torch.randn(512, 256, device="cuda", dtype=torch.bfloat16)

it.ag_mm(a, weight.t())  # makes the plan, which a capture cannot
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    c = it.ag_mm(a, weight.t())
for value in 1, 2, 3:
    a.fill_(value + rank)
    graph.replay()
    rows = torch.arange(size, device="cuda").repeat_interleave(16).add(value)
    want = rows[:, None] * weight.float().sum(1)
    torch.testing.assert_close(c.float(), want, rtol=2e-2, atol=1)
print("rank %d of %d: three replays" % (rank, size))
dist.destroy_process_group()
