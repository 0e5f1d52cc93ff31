"""Policy for when to compile, as eager rounds go by, and whether to stay with it: what compiling costs is certain, what
it saves is an estimate until compiled rounds have been seen."""

import math

RECENT = 3  # rounds by which those ahead are judged
PAST = 0.95  # share that seconds which could have been saved have of those that still can be
PROBATION = 3  # compiled rounds that are compared, but for the first one, which compiles


class CompilePolicy:
    """Compile policy: compile as soon as that saves more than it costs, by the last eager rounds: the first ones may be
    the cheapest, as where devices stop early. Go back where compiled rounds turn out slower.

    What would have been saved already counts nearly like what lies ahead, so that rounds which grow towards the end
    cannot put it off for ever. For estimates that hold, a run takes no more than twice the time of one that knew its
    rounds beforehand, but for the longest of them. Rounds of equal length are decided upon in the first one.
    """

    def __init__(self) -> None:
        self.spent = 0.0  # seconds of eager rounds
        self.step_s = math.inf  # of the fastest eager round, for one local step of one device
        self._recent: list[float] = []
        self._compiled: list[float] | None = None  # the same of compiled rounds, while they are compared

    @property
    def open(self) -> bool:
        """Return whether compiled rounds are still being compared."""
        return self._compiled is not None

    def pays(self, seconds: float, steps: float, rounds_left: float, saved: float, cost_s: float) -> bool:
        """Count an eager round; returns whether to compile now.

        Args:
            seconds: that it took.
            steps: local steps in it, of all devices.
            rounds_left: how many are ahead.
            saved: share of an eager round's time that compiling is thought to save.
            cost_s: seconds that it is thought to take.
        """
        self.spent += seconds
        self.step_s = min(self.step_s, seconds / max(steps, 1e-9))
        self._recent = [*self._recent, seconds][-RECENT:]
        ahead = sum(self._recent) / len(self._recent) * rounds_left
        if ahead <= 0 or saved * (ahead + PAST * self.spent) <= cost_s:
            return False
        self._compiled = []
        return True

    def lost(self, seconds: float, steps: float) -> bool:
        """Count a compiled round of so many seconds and local steps; returns whether these are slower than eager
        ones."""
        if self._compiled is None:
            return False
        self._compiled.append(seconds / max(steps, 1e-9))
        slower = min(self._compiled[1:], default=math.inf) >= self.step_s
        if (len(self._compiled) > 1 and not slower) or len(self._compiled) > PROBATION:
            self._compiled = None
            return slower
        return False
