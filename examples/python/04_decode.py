"""A token's attention over a context that lies on all ranks: imbrex run -n 4 python3 FILE."""
import numpy

import imbrex

batch, heads, kv_heads, dim, page, pages = 2, 8, 2, 64, 16, 3
with imbrex.Group(device="cpu") as group:
    rank, size = group.rank, group.size

    def cache(seed, of):
        make = numpy.random.default_rng([seed, of])
        return make.standard_normal((batch * pages, page, kv_heads, dim), "f")
    q = numpy.random.default_rng(0).standard_normal((batch, heads, dim), "f")
    table = numpy.arange(batch * pages, dtype="i4").reshape(batch, pages)
    lengths = [numpy.array([40 - of, 3 * of], "i4") for of in range(size)]  # tokens of each rank
    first, last = rank * heads // size, (rank + 1) * heads // size  # this rank gets these heads
    o = numpy.empty((batch, last - first, dim), "f")

    plan = group.flash_decode(batch, page * pages, heads, kv_heads, dim, dim, page=page,
                              dtype="f32")
    plan.run(q=q, k=cache(1, rank), v=cache(2, rank), pages=table, lengths=lengths[rank], o=o)
    group.sync()

    for s in range(batch):
        k, v = (numpy.concatenate([cache(seed, of)[table[s]].reshape(-1, kv_heads, dim)
                                   [:lengths[of][s]] for of in range(size)]) for seed in (1, 2))
        for h in range(first, last):
            if len(k):
                p = numpy.exp(k[:, h // 4] @ q[s, h] / 8)
                numpy.testing.assert_allclose(o[s, h - first], p @ v[:, h // 4] / p.sum(),
                                              rtol=1e-4, atol=1e-4)
    print("rank %d of %d has heads %d to %d: %s" % (rank, size, first, last, plan.describe()))
