"""Progress of a study: a live view in a terminal or a notebook, or plain lines where the output is neither."""

import math
import time
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from flstudy.reporting.notebook import NotebookDisplay, in_notebook
from flstudy.reporting.tables import NOTHING, Cells
from flstudy.study import Status, Trial, best_trials
from flstudy.study.trial import BROKEN, by_algorithm

if TYPE_CHECKING:
    from flstudy.config import Config

_FIRST_LINE_S, _LINE_EVERY_S = 3.0, 20.0  # until the first plain line of running trials, and between later ones
_ROWS = 12  # running trials that the live view shows one by one
COUNTED = (Status.RUNNING, Status.FINISHED, Status.PRUNED, Status.DIVERGED, Status.FAILED)


class StudyProgress:
    """Progress of a study: counts rounds done of all planned, and names the best trial so far of each algorithm.

    Args:
        console: where it is shown.
        name: of the study.
        config: the study's.
        algorithms: number of algorithms that are compared.
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
        self.objective = study.objective
        self.rounds_per_trial, self.budget = config.rounds, study.budget
        self.search_trials = study.trials if trials is None else trials
        self.confirmations = algorithms * study.confirm.top if study.confirm.seeds else 0
        self._seeds = {"search": len(config.seeds), "confirm": study.confirm.seeds}  # of a trial, by its stage
        self.trials: dict[int, Trial] = {}
        self.lead = ""  # sentence on which method leads
        self._started = self._line_at = time.monotonic()
        self._line_every_s = _FIRST_LINE_S
        self._spent_s = spent_s
        self._going: tuple[float, float] | None = None  # when the first round was over, and the fraction then
        self._starts: dict[int, tuple[float, int]] = {}  # by trial: when its first round was over, and its rounds then
        self._pace: dict[int, tuple[float, int]] = {}  # by trial: seconds and rounds since then
        self._notebook = NotebookDisplay() if in_notebook() and not quiet else None
        self._live = Live(
            console=console, refresh_per_second=2, get_renderable=self._render, transient=True, redirect_stderr=False
        )

    def __enter__(self) -> Self:
        if self._notebook is not None:
            self._notebook.show(self._render(), now=True)
        elif self.console.is_terminal and not self.quiet:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._notebook is not None:
            self._notebook.show(self._render(), now=True)
        elif self.console.is_terminal and not self.quiet:
            self._live.stop()

    def resume(self, trial: Trial) -> None:
        """Take in a trial that was over before a resumed study stopped."""
        self.trials[trial.number] = trial

    def update(self, trial: Trial) -> None:
        """Take in a trial that started, reported or ended."""
        self.trials[trial.number] = trial
        self._measure(trial)
        if self._notebook is not None:
            self._notebook.show(self._render())
        if self.console.is_terminal or self._notebook is not None:
            if trial.is_broken:  # stays on the screen, beside the live view
                self.say(self._line(trial))
        elif trial.status is not Status.RUNNING:
            self.say(self._line(trial))
            self._line_at, self._line_every_s = time.monotonic(), _LINE_EVERY_S
        elif time.monotonic() - self._line_at > self._line_every_s and self.trial_s is not None:
            self._line_at, self._line_every_s = time.monotonic(), _LINE_EVERY_S
            self.say(self.summary())

    def _measure(self, trial: Trial) -> None:
        """Note how fast a trial goes. Its first round is left out: starting and compiling are part of it."""
        if not trial.rounds:
            return
        began, rounds = self._starts.setdefault(trial.number, (time.monotonic(), trial.rounds))
        self._pace[trial.number] = (time.monotonic() - began, trial.rounds - rounds)
        if self._going is None:
            self._going = (time.monotonic(), self.fraction)

    @property
    def best(self) -> dict[str, Trial]:
        """The best trial so far of each algorithm that has one."""
        winners = best_trials(self.trials.values(), self.objective, self.rounds_per_trial)
        return {winner.trial.algorithm: winner.trial for winner in winners}

    @property
    def planned(self) -> int | None:
        """Number of trials, confirmations included; None where only a budget ends the study."""
        return None if self.search_trials is None else self.search_trials + self.confirmations

    @property
    def fraction(self) -> float:
        """Share that is done of the trials' rounds on all their seeds, where rounds that an ended trial left out count
        as done, or of the budget, whichever is further."""
        trials, whole = list(self.trials.values()), self.rounds_per_trial
        shares = [0.0]
        if self.search_trials is not None:
            runs = self.search_trials * self._seeds["search"] + self.confirmations * self._seeds["confirm"]
            done = sum(self._seeds[t.stage] * (whole * t.times_proposed if t.is_over else t.rounds) for t in trials)
            shares.append(done / max(runs * whole, 1))
        if self.budget.rounds is not None:
            shares.append(sum(t.rounds for t in trials if not t.is_confirmation) / self.budget.rounds)
        if self.budget.hours is not None:
            shares.append((self._spent_s + time.monotonic() - self._started) / (3600 * self.budget.hours))
        return min(1.0, max(shares))

    @property
    def left_s(self) -> float | None:
        """Seconds to go, if the rest goes as fast as this start so far."""
        if self._going is None:
            return None
        (since, before), fraction = self._going, self.fraction
        return (time.monotonic() - since) * (1 - fraction) / (fraction - before) if fraction > before else None

    @property
    def trial_s(self) -> float | None:
        """Seconds that a trial of all rounds takes, by the rounds that this start has done."""
        rounds = sum(done for _, done in self._pace.values())
        seconds = sum(spent for spent, _ in self._pace.values())
        return seconds / rounds * self.rounds_per_trial if rounds else None

    def summary(self) -> str:
        """Return one line on the whole study."""
        ended = sum(trial.times_proposed for trial in self.trials.values() if trial.is_over)
        planned = f"/{self.planned}" if self.planned is not None else ""
        what = "rounds" if self.planned is not None else "the budget"
        return f"{self.name}: {ended}{planned} trials, {self.fraction:.0%} of {what}{self._eta()}"

    def say(self, line: str) -> None:
        """Print a line that stays."""
        if not self.quiet:
            self.console.print(line, highlight=False, markup=False, soft_wrap=True)

    def _eta(self) -> str:
        if self.left_s is None or self.fraction >= 1:
            return ""
        per_trial = "" if self.trial_s is None else f" ({_clock(self.trial_s)} a trial)"
        return f", about {_clock(self.left_s)} left{per_trial}"

    def _line(self, trial: Trial) -> str:
        measured = trial.status in (Status.FINISHED, Status.PRUNED) and trial.feasible
        value = (
            f" {self.objective.metric} {trial.objective:.4g}" if measured and not math.isnan(trial.objective) else ""
        )
        reason = f" ({trial.reason})" if trial.error else ""
        reason += "" if trial.feasible else " (outside study.constraints)"
        of = "" if trial.confirms is None else f", which confirms {trial.confirms},"
        ended = f"trial {trial.number}{of} {trial.status}: {trial.algorithm}{value} after {trial.rounds} rounds{reason}"
        return f"{ended} | {self.summary()}"

    # ---- the live view -----------------------------------------------------------------------------------------------

    def _render(self) -> RenderableType:
        trials, bar = list(self.trials.values()), ProgressBar(total=1.0, completed=self.fraction, width=40)
        running = [trial for trial in trials if trial.status is Status.RUNNING]
        rows: list[RenderableType] = [Text(self.summary()), bar, self._algorithms(trials)]
        rows += [Text(self.lead)] if self.lead else []
        if running:
            rows.append(self._running(running))
        elif not trials:
            rows.append(Text("starting workers"))
        broken = [trial for trial in trials if trial.status in BROKEN]
        if broken:
            last = ", ".join(f"{trial.number} {trial.algorithm} {trial.status}" for trial in broken[-5:])
            rows.append(Text(f"troubled: {len(broken)}, the last: {last}", overflow="ellipsis", no_wrap=True))
        return Group(*rows)

    def _algorithms(self, trials: Sequence[Trial]) -> Cells:
        groups = dict(sorted(by_algorithm(trials).items()))
        leaders = [self.best.get(algorithm) for algorithm in groups]
        counts = {
            status: [sum(trial.status is status for trial in of_algorithm) for of_algorithm in groups.values()]
            for status in COUNTED
        }
        columns = {
            "algorithm": list(groups),
            f"best {self.objective.metric}": [NOTHING if best is None else f"{best.objective:.4g}" for best in leaders],
            "of trial": [NOTHING if best is None else str(best.number) for best in leaders],
        } | {str(status): [str(count) for count in numbers] for status, numbers in counts.items() if any(numbers)}
        return Cells.from_columns("", columns)

    def _running(self, running: Sequence[Trial]) -> Table:
        table = Table(box=None, pad_edge=False)
        table.add_column("running trial", no_wrap=True)
        table.add_column("round", justify="right", no_wrap=True)
        table.add_column("", max_width=20)  # the bar, which gives way in a narrow terminal
        for name in (self.objective.metric, "left"):
            table.add_column(name, justify="right", no_wrap=True)
        for trial in running[:_ROWS]:
            value = NOTHING if math.isnan(trial.objective) else f"{trial.objective:.4g}"
            bar = ProgressBar(total=self.rounds_per_trial, completed=trial.rounds)
            of = "" if trial.confirms is None else f" (confirms {trial.confirms})"
            name = f"{trial.number} {trial.algorithm}{of}"
            table.add_row(name, f"{trial.rounds}/{self.rounds_per_trial}", bar, value, self._left(trial))
        if len(running) > _ROWS:
            table.add_row(f"and {len(running) - _ROWS} more", "", "", "", "")
        return table

    def _left(self, trial: Trial) -> str:
        began, rounds = self._starts.get(trial.number, (time.monotonic(), trial.rounds))
        done = trial.rounds - rounds
        if done <= 0:
            return NOTHING
        return _clock((time.monotonic() - began) / done * (self.rounds_per_trial - trial.rounds))


def _clock(seconds: float) -> str:
    """Return the text of a time: minutes and seconds, or hours and minutes."""
    whole = round(seconds)
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 60}:{whole % 60:02d}"
