"""How a study gets on, on the terminal: a live view, or plain lines where the output is no terminal."""

import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from flstudy.tuning.folder import TrialSummary

if TYPE_CHECKING:
    from flstudy.config import Config

_LINE_EVERY_S = 20.0  # between plain lines of trials that are still running
_ROWS = 12  # running trials that the live view shows one by one
TROUBLED = ("failed", "diverged")


class Progress:
    """Counts rounds done of all planned and keeps the best value so far per algorithm.

    Args:
        console: where it is shown.
        name: of the study.
        config: the study's.
        algorithms: how many are compared.
        trials: of the search, at most; None takes ``study.trials``.
        spent_s: seconds that the study has been at work before a resume.
        quiet: print nothing.
    """

    def __init__(
        self,
        console: Console,
        *,
        name: str,
        config: "Config",
        algorithms: int = 1,
        trials: int | None = None,
        spent_s: float = 0.0,
        quiet: bool = False,
    ) -> None:
        self.console, self.name, self.quiet = console, name, quiet
        study = config.study
        self.metric, self.mode = study.objective.metric, study.objective.mode
        self.rounds_per_trial, self.budget = config.rounds, study.budget
        self.search_trials = study.trials if trials is None else trials
        self.confirmations = algorithms * study.confirm.top if study.confirm.seeds else 0
        self.trials: dict[int, TrialSummary] = {}
        self.best: dict[str, TrialSummary] = {}
        self._started = self._line_at = time.monotonic()
        self._spent_s, self._done_before = spent_s, 0.0
        self._starts: dict[int, tuple[float, int]] = {}  # by trial: when it was first seen, and its rounds then
        self._live = Live(
            console=console, refresh_per_second=2, get_renderable=self._render, transient=True, redirect_stderr=False
        )

    def __enter__(self) -> Self:
        self._done_before = self.fraction
        if self.console.is_terminal and not self.quiet:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.console.is_terminal and not self.quiet:
            self._live.stop()

    def resume(self, trial: TrialSummary) -> None:
        """A trial that ended before a resumed study stopped."""
        self.trials[trial.trial] = trial
        self._choose_best(trial.algorithm)

    def update(self, trial: TrialSummary) -> None:
        """A trial started, reported or ended."""
        self.trials[trial.trial] = trial
        self._starts.setdefault(trial.trial, (time.monotonic(), trial.rounds))
        if self._leads(trial) and (trial.counts or trial.status == "running"):
            best = self.best.get(trial.algorithm)
            if best is None or best is trial or self._better(trial, best):
                self.best[trial.algorithm] = trial
        elif self.best.get(trial.algorithm) is trial:  # it led, then diverged
            self._choose_best(trial.algorithm)
        if self.console.is_terminal:
            if trial.status in TROUBLED:  # stays on the screen, above the live view
                self.say(self._line(trial))
        elif trial.status != "running":
            self.say(self._line(trial))
            self._line_at = time.monotonic()
        elif time.monotonic() - self._line_at > _LINE_EVERY_S:
            self._line_at = time.monotonic()
            self.say(self.summary())

    @property
    def planned(self) -> int | None:
        """Trials, confirmations included; None where only a budget ends the study."""
        return None if self.search_trials is None else self.search_trials + self.confirmations

    @property
    def fraction(self) -> float:
        """How much is done: of the trials' rounds, where those that an ended trial left out need not be done any
        more, or of the budget, whichever is further."""
        trials, whole = list(self.trials.values()), self.rounds_per_trial
        shares = [0.0]
        if self.planned is not None:
            done = sum(t.rounds if t.status == "running" else whole for t in trials)
            shares.append(done / max(self.planned * whole, 1))
        if self.budget.rounds is not None:
            shares.append(sum(t.rounds for t in trials if t.stage == "search") / self.budget.rounds)
        if self.budget.hours is not None:
            shares.append((self._spent_s + time.monotonic() - self._started) / (3600 * self.budget.hours))
        return min(1.0, max(shares))

    @property
    def left_s(self) -> float | None:
        """Seconds to go, if the rest goes as fast as what this start has done."""
        fraction = self.fraction
        done = fraction - self._done_before
        return (time.monotonic() - self._started) * (1 - fraction) / done if done > 0 else None

    def summary(self) -> str:
        """One line."""
        ended = sum(trial.status != "running" for trial in self.trials.values())
        planned = f"/{self.planned}" if self.planned is not None else ""
        what = "rounds" if self.planned is not None else "the budget"
        return f"{self.name}: {ended}{planned} trials, {self.fraction:.0%} of {what}{self._eta()}"

    def say(self, line: str) -> None:
        """A line that stays."""
        if not self.quiet:
            self.console.print(line, highlight=False, markup=False, soft_wrap=True)

    def _eta(self) -> str:
        if self.left_s is None or self.fraction >= 1:
            return ""
        return f", about {_clock(self.left_s)} left"

    @staticmethod
    def _leads(trial: TrialSummary) -> bool:
        return trial.stage == "search" and trial.objective is not None

    def _better(self, trial: TrialSummary, other: TrialSummary) -> bool:
        assert trial.objective is not None
        assert other.objective is not None
        return trial.objective > other.objective if self.mode == "max" else trial.objective < other.objective

    def _choose_best(self, algorithm: str) -> None:
        self.best.pop(algorithm, None)
        for trial in self.trials.values():
            if trial.algorithm == algorithm and trial.counts and self._leads(trial):
                best = self.best.get(algorithm)
                if best is None or self._better(trial, best):
                    self.best[algorithm] = trial

    def _line(self, trial: TrialSummary) -> str:
        value = f" {self.metric} {trial.objective:.4g}" if trial.counts else ""
        reason = f" ({trial.error.strip().splitlines()[-1]})" if trial.error else ""
        reason += "" if trial.feasible else " (outside study.constraints)"
        of = "" if trial.of is None else f", which confirms {trial.of},"
        ended = f"trial {trial.trial}{of} {trial.status}: {trial.algorithm}{value} after {trial.rounds} rounds{reason}"
        return f"{ended} | {self.summary()}"

    # ---- the live view -----------------------------------------------------------------------------------------------

    def _render(self) -> RenderableType:
        head = Table.grid(padding=(0, 1))
        head.add_row(Text(self.summary()), ProgressBar(total=1.0, completed=self.fraction, width=40))
        rows: list[RenderableType] = [head, self._algorithms(self._by_algorithm())]
        running = [t for t in self.trials.values() if t.status == "running"]
        rows.append(self._running(running) if running else Text("starting workers"))
        troubled = [t for t in self.trials.values() if t.status in TROUBLED]
        if troubled:
            last = ", ".join(f"{t.trial} {t.algorithm} {t.status}" for t in troubled[-5:])
            rows.append(Text(f"troubled: {len(troubled)}, the last: {last}", overflow="ellipsis", no_wrap=True))
        return Group(*rows)

    def _by_algorithm(self) -> Mapping[str, Sequence[TrialSummary]]:
        found: dict[str, list[TrialSummary]] = {}
        for trial in self.trials.values():
            found.setdefault(trial.algorithm, []).append(trial)
        return dict(sorted(found.items()))

    def _algorithms(self, groups: Mapping[str, Sequence[TrialSummary]]) -> Table:
        table = Table(box=None, pad_edge=False)
        table.add_column("algorithm")
        for name in (f"best {self.metric}", "of trial", "running", "finished", "pruned", "diverged", "failed"):
            table.add_column(name, justify="right")
        for algorithm, trials in groups.items():
            best = self.best.get(algorithm)
            counts = [
                sum(t.status == s for t in trials) for s in ("running", "finished", "pruned", "diverged", "failed")
            ]
            value = ("–", "–") if best is None else (f"{best.objective:.4g}", str(best.trial))
            table.add_row(algorithm, *value, *(str(count) for count in counts))
        return table

    def _running(self, running: Sequence[TrialSummary]) -> Table:
        table = Table(box=None, pad_edge=False)
        for name, justify in (("running trial", "left"), ("round", "right"), ("", "left"), (self.metric, "right")):
            table.add_column(name, justify=justify)  # type: ignore[arg-type]
        table.add_column("left", justify="right")
        for trial in running[:_ROWS]:
            value = "–" if trial.objective is None else f"{trial.objective:.4g}"
            bar = ProgressBar(total=self.rounds_per_trial, completed=trial.rounds, width=20)
            name = f"{trial.trial} {trial.algorithm}" + ("" if trial.of is None else f" (confirms {trial.of})")
            table.add_row(name, f"{trial.rounds}/{self.rounds_per_trial}", bar, value, self._left(trial))
        if len(running) > _ROWS:
            table.add_row(f"and {len(running) - _ROWS} more", "", "", "", "")
        return table

    def _left(self, trial: TrialSummary) -> str:
        began, rounds = self._starts.get(trial.trial, (time.monotonic(), trial.rounds))
        done = trial.rounds - rounds
        if done <= 0:
            return "–"
        return _clock((time.monotonic() - began) / done * (self.rounds_per_trial - trial.rounds))


def _clock(seconds: float) -> str:
    """Minutes and seconds, or hours and minutes."""
    whole = round(seconds)
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 60}:{whole % 60:02d}"
