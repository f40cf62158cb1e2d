"""A measurement."""

import math
import statistics
import time


class Figure:
    """One measured thing with its raw counterpart and its bar."""

    def __init__(self, name, unit, bar, rule, at=0.5, digits=1):
        self.digits = digits
        self.name, self.unit, self.rule = name, unit, rule
        self.at = at  # which of the sorted samples counts; the middle one as a rule
        self.bar = bar  # raw median → what ours may be; none where growth is what counts
        self.ours, self.raw = [], []

    def row(self):
        ours, raw = self.pick(self.ours), self.pick(self.raw) if self.raw else None
        limit = None if self.bar is None else self.bar(raw)
        return {"name": self.name, "unit": self.unit, "ours": round(ours, self.digits),
                "raw": None if raw is None else round(raw, self.digits), "bar": None if limit is None else round(limit, self.digits),
                "rule": self.rule,
                "met": None if limit is None else ours <= limit, "samples": {"ours": self.ours, "raw": self.raw}}

    def pick(self, samples):
        if self.at == 0.5:
            return statistics.median(samples)
        return sorted(samples)[math.ceil(self.at * len(samples)) - 1]  # the nearest rank


def ms(work):
    begun = time.perf_counter()
    work()
    return round((time.perf_counter() - begun) * 1000, 2)
