"""python/imbrex on a GPU, through PyTorch: temporaries on its streams and on the group's own, in a
CUDA graph, and tensors without elements."""
import sys
import threading
import unittest

try:
    import torch
except ImportError:
    print("skipped: needs PyTorch")
    sys.exit(77)
if not torch.cuda.is_available():
    print("skipped: needs a GPU")
    sys.exit(77)

from python_ranks import Meeting, imbrex

M, N, K = 256, 512, 128


def full(value, *shape):
    return torch.full(shape, float(value), dtype=torch.bfloat16, device="cuda:0")


class Gpu(unittest.TestCase):
    def setUp(self):
        self.group = imbrex.Group(0, 1, lambda blob: [blob], device="cuda:0")
        self.addCleanup(self.group.close)
        self.plan = self.group.ag_gemm(M, N, K)
        self.b, self.c = full(1, N, K), full(0, M, N)
        self.plan.run(full(1, M, K), self.b, self.c)
        self.group.sync()

    def check(self, value):
        self.assertTrue((self.c == value * K).all().item(), (value, self.c))

    def test_temporaries_on_a_stream_of_pytorch(self):
        side = torch.cuda.Stream()
        for stream in side, side.cuda_stream:
            for i in range(30):
                with torch.cuda.stream(side):
                    torch.cuda._sleep(5000000)  # the run comes late
                a = full(i % 7 + 1, M, K)
                side.wait_stream(torch.cuda.current_stream())
                self.plan.run(a, self.b, self.c, stream=stream)
                del a
                full(99, M, K)  # takes its memory, unless the allocator was told
                self.group.sync(stream)
                self.check(i % 7 + 1)

    def test_temporaries_on_the_groups_own_stream(self):
        large = self.group.ag_gemm(8192, 8192, 8192)
        x, y = full(1, 8192, 8192), full(0, 8192, 8192)
        for i in range(30):
            a = full(i % 7 + 1, M, K)
            torch.cuda.synchronize()
            large.run(x, x, y)  # the run comes late
            self.plan.run(a, self.b, self.c)
            del a
            full(99, M, K)
            self.group.sync()
            self.check(i % 7 + 1)

    def test_a_graph(self):
        a, graph = full(1, M, K), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            self.plan.run(a + 1, self.b, self.c, stream=torch.cuda.current_stream())
            full(99, M, K)
        for value in 1, 5, 2:
            a.fill_(value)
            graph.replay()
            full(99, M, K)
            torch.cuda.synchronize()
            self.check(value + 1)


class Empty(unittest.TestCase):
    def test_ranks_without_rows(self):
        meeting, failures = Meeting(2), []

        def work(rank):
            stream = torch.cuda.Stream()
            with imbrex.Group(rank, 2, lambda blob: meeting.swap(rank, blob),
                              device="cuda:0") as group, torch.cuda.stream(stream):
                gather, scatter = group.ag_gemm(1, N, K), group.gemm_rs(1, N, K)
                own = full(3, group.rows(1), K)
                self.assertEqual(own.data_ptr() == 0, rank == 0)
                c, mine = full(0, 1, N), full(0, group.rows(1), N)
                gather.run(own, full(1, N, K), c, stream=stream)
                scatter.run(full(1, 1, K), full(1, N, K), mine, stream=stream)
                group.sync(stream)
                self.assertTrue((c == 3 * K).all().item())
                self.assertTrue((mine == 2 * K).all().item())

        def run(rank):
            try:
                work(rank)
            except BaseException as failure:
                failures.append(failure)
                meeting.gate.abort()
        threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]


if __name__ == "__main__":
    unittest.main()
