"""How a study gets on, on the terminal: a live view, or plain lines where the output is no terminal."""

import time
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from flstudy.tuning.folder import TrialSummary

_LINE_EVERY_S = 20.0  # between plain lines of trials that are still running


class Progress:
    """Counts rounds done of all planned and keeps the best value so far per algorithm."""

    def __init__(self, console: Console, *, name: str, trials: int, rounds: int, metric: str, mode: str) -> None:
        self.console, self.name, self.metric, self.mode = console, name, metric, mode
        self.planned_trials, self.rounds_per_trial = trials, rounds
        self.trials: dict[int, TrialSummary] = {}
        self.best: dict[str, TrialSummary] = {}
        self._started = self._line_at = time.monotonic()
        self._live = Live(
            console=console, refresh_per_second=2, get_renderable=self._render, transient=True, redirect_stderr=False
        )

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.console.is_terminal:
            self._live.stop()

    def resume(self, trial: TrialSummary) -> None:
        """A trial that ended before a resumed study stopped."""
        self.trials[trial.trial] = trial
        self._choose_best(trial.algorithm)

    def update(self, trial: TrialSummary) -> None:
        """A trial started, reported or ended."""
        self.trials[trial.trial] = trial
        if trial.counts or (trial.status == "running" and trial.objective is not None):
            best = self.best.get(trial.algorithm)
            if best is None or best is trial or self._better(trial, best):
                self.best[trial.algorithm] = trial
        elif self.best.get(trial.algorithm) is trial:  # it led, then diverged
            self._choose_best(trial.algorithm)
        if self.console.is_terminal:
            if trial.status in ("failed", "diverged"):  # stays on the screen, above the live view
                self._print(self._line(trial))
        elif trial.status != "running":
            self._print(self._line(trial))
            self._line_at = time.monotonic()
        elif time.monotonic() - self._line_at > _LINE_EVERY_S:
            self._line_at = time.monotonic()
            self._print(self.summary())

    @property
    def fraction(self) -> float:
        """Rounds done of all planned; those that an ended trial left out need not be done any more."""
        planned = self.planned_trials * self.rounds_per_trial
        done = sum(t.rounds if t.status == "running" else self.rounds_per_trial for t in self.trials.values())
        return min(1.0, done / max(planned, 1))

    @property
    def left_s(self) -> float | None:
        fraction = self.fraction
        return (time.monotonic() - self._started) * (1 - fraction) / fraction if fraction > 0 else None

    def summary(self) -> str:
        ended = sum(trial.status != "running" for trial in self.trials.values())
        return f"{self.name}: {ended}/{self.planned_trials} trials, {self.fraction:.0%} of rounds{self._eta()}"

    def _eta(self) -> str:
        if self.left_s is None or self.fraction >= 1:
            return ""
        left = round(self.left_s)
        return f", about {left // 60}:{left % 60:02d} left"

    def _better(self, trial: TrialSummary, other: TrialSummary) -> bool:
        assert trial.objective is not None
        assert other.objective is not None
        return trial.objective > other.objective if self.mode == "max" else trial.objective < other.objective

    def _choose_best(self, algorithm: str) -> None:
        del self.best[algorithm]
        for trial in self.trials.values():
            if trial.algorithm == algorithm and trial.counts:
                best = self.best.get(algorithm)
                if best is None or self._better(trial, best):
                    self.best[algorithm] = trial

    def _line(self, trial: TrialSummary) -> str:
        value = f" {self.metric} {trial.objective:.4g}" if trial.counts else ""
        reason = f" ({trial.error.strip().splitlines()[-1]})" if trial.error else ""
        ended = f"trial {trial.trial} {trial.status}: {trial.algorithm}{value} after {trial.rounds} rounds{reason}"
        return f"{ended} | {self.summary()}"

    def _print(self, line: str) -> None:
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)

    def _render(self) -> RenderableType:
        head = Table.grid(padding=(0, 1))
        head.add_row(Text(self.summary()), ProgressBar(total=1.0, completed=self.fraction, width=40))
        best = Table(box=None, pad_edge=False)
        best.add_column("algorithm")
        best.add_column(f"best {self.metric}", justify="right")
        best.add_column("trial", justify="right")
        for algorithm, trial in sorted(self.best.items()):
            best.add_row(algorithm, f"{trial.objective:.4g}", str(trial.trial))
        running = [t for t in self.trials.values() if t.status == "running"]
        text = ", ".join(f"{t.trial} {t.algorithm} {t.rounds}/{self.rounds_per_trial}" for t in running)
        rows: list[RenderableType] = [head, best, Text(f"running: {text or 'starting workers'}")]
        troubled = [t for t in self.trials.values() if t.status in ("failed", "diverged")]
        if troubled:
            rows.append(Text("troubled: " + ", ".join(f"{t.trial} {t.algorithm} {t.status}" for t in troubled)))
        return Group(*rows)
