"""How groups of python/imbrex end: by close, by exceptions, dropped, with Python, in a forked
child, by Ctrl-C.  What ends with its process is a program here, its ranks under imbrex run."""
import gc
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import unittest
from unittest import mock

from python_ranks import BUILD, PACKAGE, Meeting, alone, imbrex, on_ranks, random

TOOL = os.environ.get("IMBREX_TOOL") or os.path.join(BUILD, "imbrex")

# Runs that are not done when they are left behind; how long a test may take says who waited.
BEGIN = """
import gc, os, signal, sys, threading, time
import numpy, imbrex
def group(**options):
    return imbrex.Group(device="cpu", **{"timeout_ms": 60000, **options})
def run(group, n=1500, times=3):
    plan = group.ag_gemm(n, n, n, dtype="f32")
    for _ in range(times):
        plan.run(numpy.ones((group.rows(n), n), "f"), numpy.ones((n, n), "f"),
                 numpy.zeros((n, n), "f"))
    return plan
"""


class Programs(unittest.TestCase):
    def setUp(self):
        if not os.path.exists(TOOL):
            self.skipTest("needs the tool, IMBREX_TOOL")
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = os.path.join(folder.name, "program.py")

    def write(self, program):
        with open(self.path, "w", encoding="utf-8") as file:
            file.write(BEGIN + textwrap.dedent(program))
        return {**os.environ, "PYTHONPATH": PACKAGE}

    def on(self, ranks, program, *codes):
        """What the program says on so many ranks, which must end long before the timeout, by one of
        the codes."""
        begun = time.monotonic()
        done = subprocess.run([TOOL, "run", "-n", str(ranks), "--", sys.executable, self.path],
                              env=self.write(program), stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=120)
        self.assertIn(done.returncode, codes or (0,), done.stdout)
        self.assertLess(time.monotonic() - begun, 40, done.stdout)
        self.assertNotIn("signal", done.stdout)
        return done.stdout

    def test_an_exception_between_run_and_sync(self):
        for where in ("g = group()", "with group() as g:"):
            said = self.on(2, """
                def work():
                    %s
                        run(g)
                        raise ArithmeticError("a mistake of the user's")
                work()
                """ % (where if where.endswith(":") else where + "\n                    if g:"), 1)
            with self.subTest(where):
                self.assertIn("ArithmeticError: a mistake of the user's", said)
                self.assertIn("in work", said)

    def test_an_exception_of_one_rank(self):
        """The others hear of it at once, whoever prints first."""
        for where in ("g = group()", "with group() as g:"):
            said = self.on(2, """
                %s
                    if g.rank == 1:
                        run(g, times=0)
                        raise KeyError("x")
                    try:
                        run(g)
                        g.sync()
                    except imbrex.Error as error:
                        print("heard", error, error.status, flush=True)
                        time.sleep(1)  # the launcher ends who is left
                """ % (where if where.endswith(":") else where + "\n                if g:"), 1)
            with self.subTest(where):
                self.assertRegex(said, "heard imbrex_.*: rank 1 called imbrex_group_abort: (left|"
                                       "ended) by KeyError: 'x' IMBREX_PEER")
                self.assertIn("Traceback", said)

    def test_sys_exit_between_run_and_sync(self):
        for where in ("g = group()", "with group() as g:"):
            for code in 0, 3:
                with self.subTest(where=where, code=code):
                    self.on(2, """
                        def work():
                            %s
                                run(g)
                                sys.exit(%d)
                        work()
                        """ % (where if where.endswith(":")
                               else where + "\n                            if g:", code),
                            *((code, 1) if code and where.endswith(":") else (code,)))

    def test_the_end_between_run_and_sync(self):
        self.on(2, """
            g = group()
            plan = run(g)
            del plan
            """)
        self.on(2, """
            run(group())
            """)
        self.on(1, """
            import atexit
            g = group()
            atexit.register(g.sync)  # comes before the group's own end
            run(g)
            """)

    def test_the_end_while_a_thread_waits(self):
        """Daemons are not waited for: they are in their call until the process is gone."""
        for where in "sync", "making a plan":
            said = self.on(2, """
                g = group()
                def wait(where):
                    print("waits in", where, flush=True)
                    if where == "sync": run(g); g.sync()
                    else: g.all_gather(8, 8)
                if g.rank == 1:
                    if %r == "sync": run(g, times=0)
                    time.sleep(60)
                threading.Thread(target=wait, args=(%r,), daemon=True).start()
                time.sleep(1)
                sys.exit(5)
                """ % (where, where), 5)
            self.assertIn("waits in " + where, said)

    def test_a_forked_child(self):
        """It leaves alone what is its parent's, however it ends."""
        said = self.on(2, """
            def its_own():
                with group(rank=0, size=1, allgather=lambda blob: [blob]) as own:
                    x, y = numpy.ones((8, 8), "f"), numpy.zeros((8, 8), "f")
                    own.all_gather(8, 8, dtype="f32").run(x, c=y)
                    own.sync()
                    assert (x == y).all()
            for end in (lambda: None, sys.exit, lambda: 1 / 0, gc.collect, its_own):
                with group() as g:
                    plan = run(g, 64)
                    g.sync()
                    run(g, 64)
                    child = os.fork()
                    if not child:
                        try:
                            with g:
                                for use in (g.sync, plan.describe, lambda: run(g, 64)):
                                    try: use()
                                    except imbrex.Error as error: assert "forked" in str(error)
                                plan.close(); end()
                        except ZeroDivisionError: pass
                        g.abort("a child's"); g.close(); del plan, g
                        sys.exit(9)
                    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) in (0, 9)
                    g.sync()
                    run(g, 64)
                    g.sync()
            print("well")
            """)
        self.assertEqual(said.count("well"), 2)

    def interrupted(self, program, number=signal.SIGINT):
        """One process waits for a rank that never comes, and is sent a signal."""
        child = subprocess.Popen([sys.executable, self.path], env=self.write(program),
                                 stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.addCleanup(child.kill)
        self.assertEqual(child.stdout.readline(), "waits\n")
        time.sleep(0.5)
        begun = time.monotonic()
        child.send_signal(number)
        said, _ = child.communicate(timeout=100)
        self.assertLess(time.monotonic() - begun, 30, said)  # of 60
        return child.returncode, said

    LONELY = """
        blobs, gate = [None] * 2, threading.Barrier(2)
        def swap(rank, blob):
            blobs[rank] = blob; gate.wait(); both = list(blobs); gate.wait(); return both
        def other():
            g = group(rank=1, size=2, allgather=lambda blob: swap(1, blob))
            g.ag_gemm(300, 300, 300, dtype="f32")
            try: g.sync()
            except imbrex.Error: pass
            while True: time.sleep(1)
        threading.Thread(target=other, daemon=True).start()
        def wait(use):
            with group(rank=0, size=2, allgather=lambda blob: swap(0, blob)) as g:
                run(g, 300)
                print("waits", flush=True)
                use(g)
        """

    def test_ctrl_c_in_sync(self):
        code, said = self.interrupted(self.LONELY + """
        wait(lambda g: g.sync())
        """)
        self.assertEqual(code, -signal.SIGINT, said)
        self.assertIn("KeyboardInterrupt", said)
        self.assertIn("rank 0 (this rank) called imbrex_group_abort: KeyboardInterrupt in sync",
                      said)

    def test_ctrl_c_in_close(self):
        code, said = self.interrupted(self.LONELY + """
        wait(lambda g: None)
        """)
        self.assertEqual(code, -signal.SIGINT, said)
        self.assertIn("KeyboardInterrupt", said)

    def test_ctrl_c_as_a_group_is_dropped(self):
        """It ends the wait, and comes out behind it: a finalizer's exceptions are lost."""
        code, said = self.interrupted(self.LONELY + """
        def drop():
            g = group(rank=0, size=2, allgather=lambda blob: swap(0, blob))
            run(g, 300)
            print("waits", flush=True)
        drop()
        print("went on", flush=True)
        time.sleep(5)
        print("to its end")
        """)
        self.assertEqual(code, -signal.SIGINT, said)
        self.assertNotIn("to its end", said)
        self.assertNotIn("Exception ignored", said)

    def test_ctrl_c_at_the_end(self):
        self.interrupted(self.LONELY + """
        g = group(rank=0, size=2, allgather=lambda blob: swap(0, blob))
        run(g, 300)
        print("waits", flush=True)
        """)

    def test_handlers_run_while_sync_waits(self):
        code, said = self.interrupted(self.LONELY + """
        def handler(*_):
            print("handled", flush=True)
            if hasattr(handler, "again"): raise OSError("enough")
            handler.again = True
            os.kill(os.getpid(), signal.SIGTERM)
        signal.signal(signal.SIGTERM, handler)
        wait(lambda g: g.sync())
        """, signal.SIGTERM)
        self.assertEqual(code, 1)
        self.assertEqual(said.count("handled\n"), 2)
        self.assertIn("OSError: enough", said)


def count(what):
    return len(os.listdir("/proc/self/" + what))


class Ends(unittest.TestCase):
    def test_a_group_that_is_dropped(self):
        def drop():
            group = alone()
            plan = group.all_gather(8, 8, dtype="f32")
            plan.run(random(1, 8, 8), c=random(2, 8, 8))
        drop()
        gc.collect()
        before = count("fd"), count("task")
        for _ in range(20):
            drop()
        gc.collect()
        self.assertEqual((count("fd"), count("task")), before)

    def test_groups_and_plans_in_any_order(self):
        x = random(1, 8, 8)
        for order in ("gpq", "gqp", "pgq", "pqg", "qgp", "qpg"):
            held = {"g": alone()}
            held["p"], held["q"] = (held["g"].all_gather(8, 8, dtype="f32") for _ in "pq")
            for name in order:
                for plan in held.keys() & {"p", "q"}:
                    held[plan].run(x, c=x.copy())  # a plan holds its group
                del held[name]
                gc.collect()

    def test_a_cycle(self):
        before = count("fd")
        for _ in range(20):
            group = alone()
            group.itself, group.plan = group, group.all_gather(8, 8, dtype="f32")
            group.plan.run(random(1, 8, 8), c=random(2, 8, 8))
        del group
        gc.collect()
        self.assertEqual(count("fd"), before)

    def test_a_plan_as_a_context(self):
        x, y = random(1, 8, 8), random(2, 8, 8)
        with alone() as group:
            with group.all_gather(8, 8, dtype="f32") as plan:
                plan.run(x, c=y)
                self.assertTrue(plan.is_open)
            self.assertFalse(plan.is_open)
            self.assertTrue((x == y).all())  # closing waits
            with self.assertRaisesRegex(imbrex.Error, "the plan is closed"):
                plan.run(x, c=y)
            with self.assertRaisesRegex(KeyError, "mine"), group.all_gather(8, 8) as plan:
                raise KeyError("mine")
            group.sync()  # a plan's context is not the group's
            with group.all_gather(8, 8, dtype="f32") as plan:
                group.close()
            with self.assertRaisesRegex(imbrex.Error, "the plan is closed"):
                plan.describe()

    def leave(self, exception, timeout_ms=30000):
        """Rank 1 leaves by it, rank 0 waits: what rank 0 hears, and after how long."""
        meeting, came = Meeting(2), []

        def work(rank):
            with imbrex.Group(rank, 2, lambda blob: meeting.swap(rank, blob), device="cpu",
                              timeout_ms=timeout_ms) as group:
                plan = group.all_gather(8, 8, dtype="f32")
                if rank == 1:
                    raise exception
                plan.run(random(1, 4, 8), c=random(2, 8, 8))
                group.sync()

        def leaver():
            try:
                work(1)
            except BaseException as failure:
                came.append(failure)
        thread = threading.Thread(target=leaver)
        thread.start()
        begun = time.monotonic()
        with self.assertRaises(imbrex.Error) as raised:
            work(0)
        thread.join()
        self.assertIs(came[0], exception)
        return str(raised.exception), raised.exception.status, time.monotonic() - begun

    def test_leaving_by_an_exception(self):
        class Rude(Exception):
            def __str__(self):
                raise ValueError("no words")
        for exception, words in ((KeyError("x"), "left by KeyError: 'x'"),
                                 (ValueError(), "left by ValueError"),
                                 (ValueError("two\n\tlines\0"), "left by ValueError: two lines"),
                                 (ValueError("\udc80 surrogate \u20ac"),
                                  "left by ValueError: ? surrogate \u20ac"),
                                 (Rude(), "left by Rude"),
                                 (KeyboardInterrupt(), "left by KeyboardInterrupt"),
                                 (SystemExit(3), "left by SystemExit: 3"),
                                 (SystemExit("why"), "left by SystemExit: why")):
            with self.subTest(words):
                said, status, _ = self.leave(exception)
                self.assertTrue(said.endswith(": rank 1 called imbrex_group_abort: " + words), said)
                self.assertEqual(status, "IMBREX_PEER")
        said, status, _ = self.leave(ValueError("long " * 1000))
        self.assertIn("left by ValueError: long long", said)

    def test_leaving_in_order(self):
        """It has done its part: nothing is broken off."""
        said, status, took = self.leave(SystemExit(0), 4000)
        self.assertIn("which has destroyed its group", said)
        self.assertEqual(status, "IMBREX_TIMEOUT")
        self.assertGreater(took, 3.9)
        for exception in SystemExit(), SystemExit(False), GeneratorExit(), KeyError():
            with mock.patch.object(imbrex.Group, "abort") as abort:
                with self.assertRaises(type(exception)), alone():
                    raise exception
            self.assertEqual(abort.called, isinstance(exception, KeyError))

    def test_abort_says_why(self):
        def work(group, rank):
            plan = group.all_gather(8, 8, dtype="f32")
            if rank == 1:
                group.abort("the weights are not here")
            with self.assertRaisesRegex(imbrex.Error, "rank 1.* called imbrex_group_abort: the "
                                                      "weights are not here$"):
                plan.run(random(1, group.rows(8), 8), c=random(2, 8, 8))
                group.sync()
        on_ranks(work)
        with alone() as group:
            self.assertRaisesRegex(TypeError, "why is 3: want a string", group.abort, 3)
            group.abort()
            self.assertRaisesRegex(imbrex.Error, "called imbrex_group_abort$", group.status)

    def test_ctrl_c_before_a_thread_waits(self):
        """The mark lives as long as the stream may write to it, and the others hear of it."""
        clock = mock.Mock(perf_counter=mock.Mock(side_effect=KeyboardInterrupt))
        with alone() as group:
            group.all_gather(8, 8, dtype="f32").run(random(1, 8, 8), c=random(2, 8, 8))
            with mock.patch.object(imbrex._streams, "time", clock):
                self.assertRaises(KeyboardInterrupt, group.sync)
            (_, held), = group._life.lanes._lanes[None].marks
            self.assertEqual(len(held), 2)
            self.assertRaisesRegex(imbrex.Error, "KeyboardInterrupt in sync", group.status)

    def test_a_handler_that_does_not_raise_does_not_end_a_sync(self):
        seen = []
        before = signal.signal(signal.SIGALRM, lambda *_: seen.append(1))
        self.addCleanup(signal.signal, signal.SIGALRM, before)
        x = random(1, 1200, 1200)
        with alone() as group:
            plan = group.ag_gemm(1200, 1200, 1200, dtype="f32")
            signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
            for _ in range(5):
                plan.run(x, x, x.copy())
                group.sync()
            signal.setitimer(signal.ITIMER_REAL, 0)
        self.assertGreater(len(seen), 5)


if __name__ == "__main__":
    unittest.main()
