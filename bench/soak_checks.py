"""What the soak (soak.py) holds against a server: answers, statuses, memory, counters. No server is needed to test it.

Every answer at temperature 0 and quality `exact` is compared with the one that the same prompt had first: its text, its
finish reason, its number of tokens and, where both have them, the log probabilities of its tokens to the last digit.
"""
import collections
import dataclasses
import statistics
import threading

REFUSED = {429: "rate_limit_exceeded", 503: "overloaded"}  # what a server may say to a request that is right
MOST_PROBLEMS = 40


@dataclasses.dataclass
class Answer:
    """One answer as its client saw it. choices: of each the text, the finish reason and, if asked for, log probabilities."""
    status: int = 200
    code: str = ""
    texts: tuple = ()
    finishes: tuple = ()
    logprobs: tuple = ()
    usage: dict = dataclasses.field(default_factory=dict)
    first_s: float = 0.0
    whole_s: float = 0.0
    cut: bool = False  # its client left before the end

    def tokens(self):
        return self.usage.get("completion_tokens")


class Judge:
    """Clients tell it what they see; any thread. problems: what is wrong, in words."""

    def __init__(self):
        self.lock = threading.Lock()
        self.first, self.problems, self.more = {}, [], 0
        self.statuses = collections.Counter()  # by kind and status
        self.times = collections.defaultdict(list)  # by kind and "first" or "whole"
        self.compared = collections.Counter()

    def problem(self, words):
        with self.lock:
            if len(self.problems) < MOST_PROBLEMS:
                self.problems.append(words)
            else:
                self.more += 1

    def saw(self, kind, answer):
        """The status of a request that is right. True: it was answered."""
        with self.lock:
            self.statuses[kind, answer.status] += 1
            if answer.status == 200 and not answer.cut:
                self.times[kind, "whole"].append(answer.whole_s)
                if answer.first_s:
                    self.times[kind, "first"].append(answer.first_s)
        if answer.status == 200:
            return not answer.cut
        if REFUSED.get(answer.status) != answer.code:
            self.problem(f"{kind}: status {answer.status} ({answer.code}) to a request that is right")
        return False

    def refused(self, kind, status, wanted):
        """The status of a request that is wrong, and those that it may have; None: the connection was closed."""
        with self.lock:
            self.statuses[kind, status or "closed"] += 1
        if status not in wanted and status not in REFUSED:
            self.problem(f"{kind}: status {status}, not one of {sorted(map(str, wanted))}")

    def known(self, key):
        with self.lock:
            return self.first.get(key)

    def exact(self, kind, key, answer, keep=True):
        """A whole answer at quality `exact` and temperature 0. keep: it is the first of its prompt, if there is none."""
        with self.lock:
            first = self.first.get(key)
            if first is None:
                if keep:
                    self.first[key] = answer
                return
            self.compared[kind] += 1
            if not first.logprobs:
                first.logprobs = answer.logprobs
        if difference := differs(first, answer):
            self.problem(f"{kind}: {difference}")

    def complete(self, kind, answer, wanted_tokens):
        """Of any quality: as many tokens as were asked for, where nothing else may end it."""
        choices = len(answer.texts)
        if answer.tokens() != wanted_tokens * choices or any(finish != "length" for finish in answer.finishes):
            self.problem(f"{kind}: {answer.tokens()} tokens, {answer.finishes}; {wanted_tokens} for each of {choices} choices were asked for")

    def beginning(self, kind, key, text):
        """Of a stream whose client left: it has come as far as this."""
        first = self.known(key)
        if first is None:
            return
        with self.lock:
            self.compared[kind] += 1
        if not first.texts[0].startswith(text):
            self.problem(f"{kind}: a stream began with {text!r}; the whole answer is {first.texts[0]!r}")


def differs(first, answer):
    """What of two answers to one prompt is not the same, in words; nothing: they are equal."""
    if first.texts != answer.texts:
        return f"the answer was {first.texts} and is {answer.texts}"
    if first.finishes != answer.finishes:
        return f"the answer {first.texts} ended with {first.finishes} and now with {answer.finishes}"
    if first.tokens() != answer.tokens():
        return f"the answer {first.texts} had {first.tokens()} tokens and has {answer.tokens()}"
    if first.logprobs and answer.logprobs and first.logprobs != answer.logprobs:
        return f"the answer {first.texts} has other log probabilities: {first.logprobs} and {answer.logprobs}"
    return ""


@dataclasses.dataclass
class Sample:
    at: float  # s since the load began
    rss: int
    fds: int
    threads: int


def growth(samples):
    """Bytes of RSS that are added in ten minutes: the slope of a straight line through the samples."""
    if len(samples) < 2 or samples[-1].at == samples[0].at:
        return 0.0
    return 600 * statistics.linear_regression([s.at for s in samples], [s.rss for s in samples]).slope


def memory_problems(samples, warm_s, limit, least_s):
    """samples under load; from warm_s on memory must be flat: at most `limit` bytes more in ten minutes, where there is
    at least least_s to judge by. Threads and open files at the end: no more than the most of the warm-up, and eight."""
    warm, late = [s for s in samples if s.at < warm_s], [s for s in samples if s.at >= warm_s]
    if not warm or not late:
        return ["memory was never looked at"]
    out = []
    if late[-1].at - late[0].at >= least_s and growth(late) > limit:
        out.append(f"memory grows by {growth(late) / 2**20:.1f} MiB in ten minutes; {limit / 2**20:.1f} are allowed")
    for what in ("fds", "threads"):
        most, last = max(getattr(s, what) for s in warm), statistics.median(getattr(s, what) for s in late[-5:])
        if last > most + 8:
            out.append(f"{what}: {last:.0f} at the end, {most} at most while it got warm")
    return out


def quiet_problems(gauges, opened):
    """When no client is left. opened: files that were open before the first client came."""
    out = [f"{name} is {gauges[name]:g} when nobody asks" for name in ("num_requests_running", "num_requests_waiting", "prefills_lingering")
           if gauges[name]]
    if gauges["fds"] > opened + 4:
        out.append(f"{gauges['fds']} files are open when nobody asks; before the load {opened}")
    return out


def counter_problems(gauges, redis_was_away):
    """The error counters of /metrics at the end."""
    out = []
    if gauges["disk_cache_errors_total"]:
        out.append(f"disk_cache_errors_total is {gauges['disk_cache_errors_total']:g}")
    if gauges["requests_with_error"]:
        out.append(f"{gauges['requests_with_error']:g} requests ended with an error")
    if gauges["responses_500"]:
        out.append(f"{gauges['responses_500']:g} answers had the status 500")
    if gauges["redis_cache_up"] != 1:
        out.append("Redis is not reached again at the end")
    if redis_was_away and not gauges["redis_cache_errors_total"]:
        out.append("Redis was away, and redis_cache_errors_total is 0")
    for name in ("redis_cache_written_bytes_total", "disk_cache_written_bytes_total"):
        if not gauges[name]:
            out.append(f"{name} is 0: the load did not reach it")
    return out


def load_problems(judge, kinds):
    """What would make a run say nothing."""
    out = [f"{kind}: none was answered" for kind in kinds if not judge.statuses[kind, 200]]
    if len({answer.texts for answer in judge.first.values()}) < len(judge.first) / 4:
        out.append("most answers are the same: a wrong one would not be seen")
    if not sum(judge.compared.values()):
        out.append("no answer was compared with another")
    return out
