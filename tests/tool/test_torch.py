"""imbrex.torch over processes: operators, gradients, torch.compile, layers, against one process of
PyTorch.  On the CPU, and on GPUs where there are as many as ranks."""
import importlib.util
import os
import socket
import subprocess
import sys
import unittest

SOURCE = os.environ.get("IMBREX_SOURCE_DIR") or os.path.abspath(
    os.path.join(os.path.dirname(__file__), "..", ".."))
BUILD = os.environ.get("IMBREX_BUILD_DIR") or os.path.join(SOURCE, "build", "release")
HERE = os.path.dirname(os.path.abspath(__file__))
PROGRAMS = [os.path.join(HERE, "torch_%s.py" % name)
            for name in ("ranks", "serving", "training", "hooks", "layers")]
EXAMPLES = os.path.join(SOURCE, "examples", "python")


def checks(program):
    with open(program) as file:
        return [line[4:].partition("(")[0] for line in file if line.startswith("def check_")]


def run(size, device, program, *arguments, **variables):
    """How each of so many ranks ended, and what it printed."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = {"IMBREX_LIBRARY": os.path.join(BUILD, "libimbrex.so"), **os.environ,
                   "PYTHONPATH": os.path.join(SOURCE, "python"), "WORLD_SIZE": str(size),
                   "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
                   "IMBREX_TEST_DEVICE": device, "OMP_NUM_THREADS": "1", **variables}
    ranks = [subprocess.Popen([sys.executable, program, *arguments], text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              env=dict(environment, RANK=str(rank), LOCAL_RANK=str(rank)))
             for rank in range(size)]
    try:
        said = [rank.communicate(timeout=300)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    return [(rank.returncode, words) for rank, words in zip(ranks, said)]


class Torch(unittest.TestCase):
    def expect(self, size, device):
        for program in PROGRAMS:
            for status, words in run(size, device, program):
                self.assertEqual(status, 0, words)
                self.assertEqual([word for word in words.split() if word.startswith("check_")],
                                 checks(program), words)

    def test_cpu(self):
        for size in 1, 3:
            with self.subTest(size=size):
                self.expect(size, "cpu")

    def test_ends(self):
        """One rank's exception ends the others at once, and they say why."""
        ends = os.path.join(HERE, "torch_ends.py")
        for how, words in (("refused", r"ended by ValueError: a is \[4, 8\]"),
                           ("raised", "ended by KeyError: 'no such weight'"),
                           ("interrupted", "KeyboardInterrupt")):
            with self.subTest(how=how):
                *others, (status, said) = run(3, "cpu", ends, how)
                self.assertNotEqual(status, 0, said)
                for status, said in others:
                    self.assertEqual(status, 3, said)
                    self.assertRegex(said, "ended at once: .*" + words)
        for status, said in run(3, "cpu", ends, "again"):
            self.assertEqual(status, 0, said)

    def test_limit(self):
        """Where ranks do not do the same imbrex's limit ends their waits, also as they make a plan,
        and a sentence says who waited for whom."""
        ends, limit = os.path.join(HERE, "torch_ends.py"), {"IMBREX_TIMEOUT_MS": "3000"}
        for how in "alone", "differs":
            with self.subTest(how=how):
                *others, (status, said) = run(3, "cpu", ends, how, **limit)
                self.assertEqual(status, 3, said)
                self.assertRegex(said, "ended at once: .*rank [0-2]")
                for status, said in others:
                    self.assertEqual(status, 0 if how == "alone" else 3, said)
        for status, said in run(3, "cpu", ends, "first"):
            self.assertEqual(status, 0, said)
            self.assertRegex(said, r"told: (.*rank 2 failed: (ValueError: )?)?a is \[4, 8\]")

    def test_interrupts(self):
        (status, said), = run(1, "cpu", os.path.join(HERE, "torch_ends.py"), "interrupts")
        self.assertEqual(status, 0, said)
        self.assertRegex(said, "calls, interrupted")

    def test_examples(self):
        """On GPUs where there are two, else on the CPU."""
        import torch
        gpus = torch.cuda.device_count() >= 2
        for name in ("01_overlap_a_layer", "02_train_an_mlp", "03_experts", "04_decode") \
                + ("05_cuda_graph",) * gpus:
            with self.subTest(name=name):
                for rank, (status, words) in enumerate(
                        run(2, "cuda" if gpus else "cpu", os.path.join(EXAMPLES, name + ".py"))):
                    self.assertEqual(status, 0, words)
                    self.assertIn("rank %d of 2" % rank, words)

    def test_host_time(self):
        """bench/peers/host_time.py has a figure for each way to call an operator."""
        program = os.path.join(SOURCE, "bench", "peers", "host_time.py")
        (status, said), (other, _) = run(2, "cpu", program, "--device=cpu", "--backend=eager",
                                         "--rounds=1", "--calls=2", "--rows=4", "--width=8")
        self.assertEqual((status, other), (0, 0), said)
        self.assertRegex(said, r"mm_rs( +-?[\d.]+ \(-?[\d.]+\)){5}")

    def test_cuda(self):
        import torch
        if not torch.cuda.is_available():
            self.skipTest("no GPU here")
        for size in {1, min(4, torch.cuda.device_count())}:
            with self.subTest(size=size):
                self.expect(size, "cuda")


if __name__ == "__main__":
    if importlib.util.find_spec("torch") is None:
        print("skipped: needs PyTorch")
        sys.exit(77)
    unittest.main()
