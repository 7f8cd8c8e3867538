"""Clients that ask a server side by side while a test does something to what is under it; every answer is compared."""
import random
import threading
import time

from test_disk_cache import KNOWN, ask


class Clients:
    """Each asks the known prompts again and again, in orders of its own, until the block ends.

    What was wrong is told by wait() and by the end of the block. `disk` and `remote` are the tokens that came from there.
    """

    def __init__(self, server, answers, count=3):
        self.server, self.answers, self.ends = server, answers, False
        self.wrong, self.answered, self.disk, self.remote = [], 0, 0, 0
        self.lock = threading.Lock()
        self.threads = [threading.Thread(target=self.run, args=(seed,)) for seed in range(count)]

    def run(self, seed):
        dice, order = random.Random(seed), list(range(len(KNOWN)))
        try:
            while not self.ends and not self.wrong:
                dice.shuffle(order)
                for i in order:
                    text, usage = ask(self.server, KNOWN[i])
                    with self.lock:
                        self.answered += 1
                        self.disk += usage["disk"]
                        self.remote += usage["remote"]
                        if text != self.answers[i]:
                            self.wrong.append((i, text, usage))
        except BaseException as error:  # noqa: BLE001: it is told below
            self.wrong.append(error)

    def wait(self):
        """Until each client had time for a question that began after this call."""
        goal = self.answered + 2 * len(self.threads)
        while self.answered < goal and not self.wrong:
            time.sleep(0.002)
        assert not self.wrong, self.wrong

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, kind, *_):
        self.ends = True
        for thread in self.threads:
            thread.join()
        assert kind or not self.wrong, self.wrong
