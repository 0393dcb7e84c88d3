"""ag_gemm on a laptop's CPU, with NumPy alone: imbrex run -n 4 python3 FILE."""
import numpy

import imbrex

m, n, k = 100, 48, 64  # m need not be divisible by the ranks
with imbrex.Group(device="cpu") as group:
    first = group.rank * m // group.size
    x = numpy.random.default_rng(0).standard_normal((m, k), "f")
    w = numpy.random.default_rng(1 + group.rank).standard_normal((n, k), "f")
    c = numpy.empty((m, n), "f")
    plan = group.ag_gemm(m, n, k, dtype="f32")
    plan.run(x[first:first + group.rows(m)], w, c)
    group.sync()
    numpy.testing.assert_allclose(c, x @ w.T, rtol=1e-4, atol=1e-4)
    print("rank %d of %d: %s" % (group.rank, group.size, plan.describe()))
