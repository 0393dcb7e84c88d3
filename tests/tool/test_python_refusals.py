"""What a check of python/imbrex refuses on one rank, whose program goes on: others hear of it."""
import os
import threading
import unittest

from python_ranks import Meeting, imbrex, random

PATIENCE = int(os.environ.get("IMBREX_TEST_PATIENCE", 1))


class Refusals(unittest.TestCase):
    def on_two(self, work, timeout_ms=30000):
        """work(group) on two ranks; what rank 0 raised."""
        meeting, raised = Meeting(2), [None, None]

        def run(rank):
            try:
                with imbrex.Group(rank, 2, lambda blob: meeting.swap(rank, blob), device="cpu",
                                  timeout_ms=timeout_ms * PATIENCE) as group:
                    try:
                        work(group)
                    except imbrex.Error as error:
                        if rank != 0:
                            raise
                        raised[0] = error
                    gate.wait()  # a rank that leaves is another story
            except BaseException as failure:
                raised[1] = failure
                gate.abort()
                meeting.gate.abort()
        gate = threading.Barrier(2, timeout=60)
        threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if raised[1] is not None:
            raise raised[1]
        return raised[0]

    def test_a_run(self):
        a, c = random(1, 4, 8), random(2, 8, 8)
        for mistake, sentence in (
                (lambda plan: plan.run(a[:3], c=c), r"ValueError: a is \[3, 8\]: want"),
                (lambda plan: plan.run(a.astype("f8"), c=c), "ValueError: a is of float64: want"),
                (lambda plan: plan.run(a, a, c), "ValueError: all_gather takes no b"),
                (lambda plan: plan.run(a, c="c"), "TypeError: c is str: want an address"),
                (lambda plan: plan.run(a, c=c, m=8.0), "TypeError: m is 8.0: want an integer"),
                (lambda plan: plan.run(a, c=c, stream="s"), "TypeError: stream is 's': want"),
                (lambda plan: (plan.close(), plan.run(a, c=c)), "Error: the plan is closed")):
            def work(group):
                plan = group.all_gather(8, 8, dtype="f32")
                if group.rank == 1:
                    self.assertRaises((ValueError, TypeError, imbrex.Error), mistake, plan)
                else:
                    plan.run(a, c=c)
                    group.sync()
            with self.subTest(sentence):
                error = self.on_two(work, timeout_ms=700)
                self.assertEqual(error.status, "IMBREX_TIMEOUT")
                self.assertRegex(str(error), "rank 1 in all_gather .*: a call was refused there, "
                                             "and not made again: imbrex_plan_run: " + sentence)

    def test_a_run_that_is_made_again(self):
        """What was refused counts no more."""
        a, c = random(1, 4, 8), random(2, 8, 8)

        def work(group):
            plan = group.all_gather(8, 8, dtype="f32")
            if group.rank == 1:
                self.assertRaises(ValueError, plan.run, a.T, c=c)
            plan.run(a, c=c.copy())
            group.sync()
            if group.rank == 0:
                plan.run(a, c=c)
                group.sync()
        error = self.on_two(work, timeout_ms=700)
        self.assertIn("which waits for nobody: is it stopped, busy or", str(error))

    def test_a_barrier(self):
        def work(group):
            if group.rank == 1:
                self.assertRaises(OverflowError, group.barrier, -1)
            else:
                group.barrier()
                group.sync()
        self.assertRegex(str(self.on_two(work, timeout_ms=700)),
                         "not made again: imbrex_barrier: OverflowError: stream is -1")

    def test_what_is_collective(self):
        """The others' calls end at once, and all goes on."""
        for wrong, right, sentence in (
                (lambda group: group.all_gather(8, 8, dtype="f64"),
                 lambda group: group.all_gather(8, 8), "ValueError: dtype is 'f64': want one of"),
                (lambda group: group.ag_gemm(8, 8), lambda group: group.ag_gemm(8, 8, 8),
                 "TypeError: Group.ag_gemm.. missing a required argument: 'k'"),
                (lambda group: group.tune("all_gather", 8, 8, sms="2"),
                 lambda group: group.tune("all_gather", 8, 8), "TypeError: sms is '2': want"),
                (lambda group: group.tune(3, 8, 8), lambda group: group.tune("all_gather", 8, 8),
                 "TypeError: op is 3: want a string"),
                (lambda group: group.split(1 << 32), lambda group: group.split(0),
                 "OverflowError: color is 4294967296")):
            def work(group):
                if group.rank == 1:
                    self.assertRaises((ValueError, TypeError, OverflowError), wrong, group)
                else:
                    with self.assertRaisesRegex(imbrex.Error, "rank 1 failed: " + sentence) as said:
                        right(group)
                    self.assertEqual(said.exception.status, "IMBREX_PEER")
                plan = group.all_gather(8, 8, dtype="f32")
                plan.run(random(1, 4, 8), c=random(2, 8, 8))
                group.sync()
            with self.subTest(sentence):
                self.assertIsNone(self.on_two(work))

    def test_ctrl_c_while_the_others_are_told(self):
        meeting, pressed = Meeting(2), []

        def swap(rank, blob):
            if pressed and rank == 0:
                meeting.gate.abort()
                raise KeyboardInterrupt
            return meeting.swap(rank, blob)

        def other():
            with imbrex.Group(1, 2, lambda blob: swap(1, blob), device="cpu") as group:
                self.assertRaises(imbrex.Error, group.all_gather, 8, 8)
        thread = threading.Thread(target=other)
        thread.start()
        with imbrex.Group(0, 2, lambda blob: swap(0, blob), device="cpu") as group:
            pressed.append(True)
            with self.assertRaises(KeyboardInterrupt) as raised:
                group.all_gather(8, 8, dtype="f64")
            self.assertIn("dtype is 'f64'", str(raised.exception.__context__))
            self.assertRaises(ValueError, group.rows, -1)
        thread.join()


if __name__ == "__main__":
    unittest.main()
