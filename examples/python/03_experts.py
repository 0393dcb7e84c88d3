"""A layer of Mixtral's kind over ranks: torchrun --nproc-per-node 4 FILE."""
import torch
import torch.distributed as dist

import imbrex.torch as it

dist.init_process_group()
rank, size = dist.get_rank(), dist.get_world_size()
device = "cuda:%d" % rank if torch.cuda.is_available() else "cpu"
if device != "cpu":
    torch.cuda.set_device(device)

hidden, inner, experts, tokens = 64, 32 * size, 8, 16 * size
torch.manual_seed(0)  # every rank makes the whole, and takes its part
checkpoint = {"gate.weight": torch.randn(experts, hidden)}
for e in range(experts):
    checkpoint["experts.%d.w1.weight" % e] = torch.randn(inner, hidden) / 8
    checkpoint["experts.%d.w2.weight" % e] = torch.randn(hidden, inner) / 8
    checkpoint["experts.%d.w3.weight" % e] = torch.randn(inner, hidden) / 8
x = torch.randn(tokens, hidden).to(device)

layer = it.ParallelMoE(hidden, inner, experts, top_k=2, device=device).load(checkpoint)
y = layer(x.chunk(size)[rank])  # this rank's tokens

w = {name: tensor.to(device) for name, tensor in checkpoint.items()}
weights, ids = (x @ w["gate.weight"].t()).softmax(-1).topk(2)
want = torch.zeros_like(x)
for e in range(experts):
    token, place = (ids == e).nonzero(as_tuple=True)
    w1, w2, w3 = (w["experts.%d.w%d.weight" % (e, i)] for i in (1, 2, 3))
    h = torch.nn.functional.silu(x[token] @ w1.t()) * (x[token] @ w3.t())
    want.index_add_(0, token, (h @ w2.t()) * (weights / weights.sum(1, True))[token, place, None])
torch.testing.assert_close(y, want.chunk(size)[rank], rtol=1e-3, atol=1e-3)
print("rank %d of %d on %s: %d experts for %d tokens, as one process computes it"
      % (rank, size, device, experts, len(y)))
dist.destroy_process_group()
