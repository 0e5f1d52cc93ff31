"""Master-FL (Ganguly & Aggarwal 2024, Alg. 3, after MASTER, Wei & Luo 2021): an algorithm on many time scales at once,
which begins anew where its losses say that the world has changed.

Blocks of 1, 2, 4, … rounds follow each other; in each, instances of the algorithm are scheduled (`instances`), each a
server of its own that begins afresh, pauses and goes on. With F_t the round's loss in [0, 1], F̃_t what the running
instance says can be reached, t_n the block's first round, U_t = max F̃ over [t_n, t] and

    ρ̂(t) = κ 6 (log₂ T + 1) ln(T/δ) ρ(t)                                        κ = rho_hat_scale, 1 in the paper

a drift is detected, and the block ends, where

    Test 1   U_t ≥ 2^-k Σ_{τ=s…t} F_τ + 9 ρ̂(2^k)              for the running instance, of order k, from s to t
    Test 2   mean over [t_n, t] of F - F̃ ≥ 3 ρ̂(t - t_n + 1)

An instance of order k learns with η_ℓ 2^(-k/2); η_ℓ = 1 is the paper's.

Laws: with the paper's constants the tests cannot fire before T is far beyond any run: then 3 ρ̂(T) > 1, and only the
ends of blocks restart.
Differs: Alg. 3 prints Test 1 without 2^-k. F̃ is in Appendix E of the supplementary material, not at hand; here
F̃_t = max(0, mean of F over the instance's own t' rounds - ρ(t')), which keeps eq. (13) within 2 ρ(t) where losses do
not rise. F is measured on the model that devices receive, not after the round. After a detection the paper goes on with
a longer block (``on_detect: increment``), MASTER with order 0 (``reset``). MASTER tests all instances that end, Alg. 3
the running one (``tests``). A block has at most the first power of two ≥ T rounds.
"""

import math
import warnings
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple, Self

import torch
from torch import Tensor

from flstudy import pytree
from flstudy.controllers.controller import Detector, Moment
from flstudy.controllers.instances import BlockSchedule, Rate, running_instance
from flstudy.hyper import hyper
from flstudy.population import Event
from flstudy.user_error import UserError

TESTS = ("no test", "test 1", "test 2", "tests 1 and 2")
SUMS = ("instance_total", "ran", "total", "gap", "best", "loss", "reachable")  # of Master, renewed in every round


class Master(NamedTuple):
    """State of Master-FL: K orders of instances, of each at most one alive, so that K servers are kept."""

    block: Tensor  # [] number of the present block, from 0; -1 before the first
    order: Tensor  # [] m
    began: Tensor  # [] its first round
    coming: Tensor  # [] order of the block that begins with the next round; -1: this one goes on
    failed: Tensor  # [] tests that failed in the last round: 1, 2, or 3 for both; 0 none
    restarted: Tensor  # [] why the last round began a block: 1 the last one had ended, 2 a detection; 0: it did not
    active: Tensor  # [] order of the instance that the server is
    start: Tensor  # [n] or [M, n] like x: where the block's instances begin
    paused: Any  # the server of each order, leaves [K, ...]
    instance_total: Tensor  # [K] sum of F over the rounds in which each order's instance ran
    ran: Tensor  # [K] how many those are
    since: Tensor  # [K] `total` where it began
    total: Tensor  # [] sum of F over the block
    gap: Tensor  # [] sum of F - F̃ over the block
    best: Tensor  # [] U
    loss: Tensor  # [] F
    reachable: Tensor  # [] F̃


@dataclass(frozen=True, kw_only=True)
class MasterFL(Detector):
    """Master-FL (Ganguly & Aggarwal 2024): runs an algorithm on many time scales, detects drifts and begins anew.

    The devices' rows stay with them, whichever instance runs; so does what a server holds for them (SCAFFOLD's c). A
    block lets the algorithm say what becomes of them (`Algorithm.client_restarted`).
    """

    citations: ClassVar[tuple[str, ...]] = ("ganguly2024", "wei2021")
    measures: ClassVar[tuple[str, ...]] = tuple(
        f"controller/{name}" for name in ("block_order", "instance_order", "loss", "reachable", "best")
    )
    watches: ClassVar[bool] = True

    rounds: int | None = hyper(None, "[2, 1e6]")
    """T, horizon on which ρ̂ and the longest block depend; null: the run's rounds."""
    on_detect: Literal["increment", "reset"] = "increment"
    """The block after a detection: of the next order (Alg. 3), or of order 0 (MASTER)."""
    instance_init: Literal["last", "longest", "current", "first", "random"] = "last"
    """Model with which an instance begins; the paper says "from scratch" (sec. IV). One for a whole block: the model
    with which the last block ended (last), that of its longest instance (longest), or the run's first (first). One for
    each instance: the server's at that moment (current), or one that building the task anew draws (random). Experience:
    current learns fastest where rates are small."""
    tests: Literal["active", "all"] = "active"
    """Instances that Test 1 looks at where they end: the one that runs (Alg. 3), or all."""
    lr: Literal["instance", "algorithm"] = "instance"
    """An instance of order k scales the devices' learning rate by 2^(-k/2), for methods whose server sends it (FedOmd);
    or the algorithm keeps its own."""
    rho_hat_scale: float = hyper(1.0, "(0, 1e12]")
    """κ. Experience on digits: from 5e-3 up next to nothing is detected; 3e-3 and less detect."""
    c1: float = hyper(1.0, "[1e-12, 1e12]")
    """c₁ of ρ(t) = min(c₁/√t + c₂/t, 1); Definition 3 asks for ρ ≥ 1/√t."""
    c2: float = hyper(0.0, "[0, 1e12]")
    """c₂ of ρ(t)."""
    delta: float = hyper(0.05, "(0, 1)")
    """δ, probability of a wrong detection."""
    loss_max: float = hyper(1.0, "(0, 1e12]")
    """Losses count for the tests as min(loss / loss_max, 1); ln(classes) is that of a blind guess."""

    def planned(self, rounds: int | None) -> Self:
        """Return the controller with a horizon T.

        Raises:
            UserError: the run has no end.
        """
        if self.rounds is not None:
            return self
        if rounds is None:
            raise UserError("MasterFL: rounds must be given, since the run has no end: set it, or max_epochs")
        return replace(self, rounds=rounds)

    @property
    def draws(self) -> bool:
        return self.instance_init == "random"

    @property
    def horizon(self) -> int:
        """Horizon T."""
        assert self.rounds is not None, "planned was not called"
        return self.rounds

    @property
    def largest(self) -> int:
        """Order of the longest block."""
        return math.ceil(math.log2(self.horizon))

    @property
    def rho(self) -> Rate:
        """Rate ρ."""
        return Rate(c1=self.c1, c2=self.c2)

    def rho_hat(self, t: int) -> float:
        """Return ρ̂(t), Definition 3."""
        wide = 6 * (math.log2(self.horizon) + 1) * math.log(self.horizon / self.delta)
        return self.rho_hat_scale * wide * self.rho(t)

    def check(self, sessions: int) -> None:
        """Warn where no losses in [0, 1] can fail a test: F - F̃ and U are at most 1, ρ̂ is least at T."""
        least = 3 * self.rho_hat(self.horizon)
        if least > 1:
            warnings.warn(
                f"MasterFL: within {self.horizon} rounds no test can fail, since 3 ρ̂({self.horizon}) = {least:.3g} > "
                f"1: only the ends of blocks restart; to detect drifts set rho_hat_scale (now {self.rho_hat_scale:g}) "
                f"below {self.rho_hat_scale / least:.2g}",
                stacklevel=1,  # said once by a process, whoever asks
            )

    def init(self, server: Any) -> Master:
        """Return the state before the first block.

        Raises:
            UserError: ``lr: instance`` meets an algorithm whose server sends no learning rate.
        """
        if self.lr == "instance" and not hasattr(server, "pace"):
            raise UserError(
                "MasterFL: lr instance needs an algorithm whose server sends a learning rate: take FedOmd, which with "
                "mirror euclidean is FedAvg, or set lr: algorithm"
            )
        orders = self.largest + 1
        number, nothing = torch.zeros((), dtype=torch.int64, device=server.x.device), server.x.new_zeros(())
        per_order = nothing.expand(orders).clone()
        paused = pytree.tree_map(lambda leaf: leaf.new_zeros((orders, *leaf.shape)), server)
        return Master(
            *(number - 1, number, number, number, number, number, number),
            *(server.x.clone(), paused, per_order, per_order, per_order, *[nothing] * 5),
        )

    # ---- before a round ----------------------------------------------------------------------------------------------

    def before_round(self, state: Master, server: Any, moment: Moment) -> tuple[Master, Any, Event | None]:
        """Return the server of the instance that runs (Alg. 2)."""
        still = state._replace(restarted=torch.zeros_like(state.restarted))
        state, event = self.next_block(state, server, moment) if state.coming >= 0 else (still, None)
        offset = moment.number - int(state.began)
        live = self.present(state, moment).covering(offset)
        fresh = torch.zeros_like(state.instance_total, dtype=torch.bool)
        fresh[[instance.order for instance in live if instance.first == offset]] = True
        state = state._replace(
            instance_total=torch.where(fresh, 0, state.instance_total),
            ran=torch.where(fresh, 0, state.ran),
            since=torch.where(fresh, state.total, state.since),
        )
        chosen, active = running_instance(live, offset), int(state.active)
        if chosen.order != active and active >= 0:

            def paused(stored: Tensor, now: Tensor) -> Tensor:
                return torch.cat([stored[:active], now[None], stored[active + 1 :]])

            state = state._replace(paused=pytree.tree_map(paused, state.paused, server))
        if state.ran[chosen.order] == 0:
            server = self.first_server(state, server, chosen.order, chosen.first, moment)
        elif chosen.order != active:
            resumed = pytree.tree_map(lambda stored: stored[chosen.order], state.paused)
            server = moment.algorithm.resumed(resumed, server)
        return state._replace(active=torch.full_like(state.active, chosen.order)), server, event

    def present(self, state: Master, moment: Moment) -> BlockSchedule:
        """Return the schedule of the block that the round belongs to."""
        return BlockSchedule(moment.seed, int(state.block), int(state.order), self.rho)

    def next_block(self, state: Master, server: Any, moment: Moment) -> tuple[Master, Event | None]:
        """Begin a block: forget the last one's instances, but for the model with which the next ones begin."""
        first, cause = state.block < 0, int(state.failed)
        nothing = torch.zeros_like(state.total)
        begun = state._replace(
            block=state.block + 1,
            order=state.coming,
            began=torch.full_like(state.began, moment.number),
            coming=torch.full_like(state.coming, -1),
            restarted=torch.full_like(state.restarted, 0 if first else 2 if cause else 1),
            active=torch.full_like(state.active, -1),
            start=self.block_start(state, server),
            **dict.fromkeys(("total", "gap", "best"), nothing),
        )
        if first:
            return begun, None
        why = f"after {TESTS[cause]}" if cause else f"into a block of {2 ** int(begun.order)} rounds"
        return begun, Event(moment.number, f"restart {why}", "restart")

    def block_start(self, state: Master, server: Any) -> Tensor:
        """Return the model, [n] or [M, n], with which a block's instances begin, unless each begins with its own."""
        if state.block < 0 or self.instance_init == "first":
            return state.start
        longest = int(state.order)
        if self.instance_init == "longest" and longest != int(state.active):
            return state.paused.x[longest] if state.ran[longest] > 0 else state.start
        return server.x  # type: ignore[no-any-return]

    def first_server(self, state: Master, server: Any, order: int, offset: int, moment: Moment) -> Any:
        """Return the server with which an instance begins."""
        x = server.x if self.instance_init == "current" else state.start
        if self.instance_init == "random":
            x = moment.draw(f"instance {int(state.block)} {order} {offset}")
        server = moment.algorithm.server_restarted(server, x, moment.layout)
        return server._replace(pace=server.pace * 2 ** (-order / 2)) if self.lr == "instance" else server

    # ---- after a round -----------------------------------------------------------------------------------------------

    def after_round(
        self, state: Master, server: Any, losses: Tensor, moment: Moment
    ) -> tuple[Master, Any, Event | None]:
        """Run both tests (Alg. 3 lines 15-24) on the jobs' losses [J], and decide on a new block."""
        assert moment.weights is not None
        bounded = (losses / self.loss_max).nan_to_num(nan=1.0).clamp(0, 1)  # of a model that has diverged: the largest
        loss = (moment.weights * bounded).sum().to(state.total.dtype)
        active, done = int(state.active), moment.number - int(state.began) + 1
        here = torch.arange(len(state.ran), device=state.ran.device) == active
        instance_total, ran = state.instance_total + loss * here, state.ran + here
        reachable = (instance_total[active] / ran[active] - self.rho(int(ran[active]))).clamp(min=0)
        total, gap = state.total + loss, state.gap + loss - reachable
        best = torch.maximum(state.best, reachable)
        failed = 2 * int(gap / done >= 3 * self.rho_hat(done))
        for order, _, last in self.present(state, moment).covering(done - 1):
            mean = (total - state.since[order]) / 2**order
            looked_at = last == done - 1 and (order == active or self.tests == "all")
            failed |= int(looked_at and bool(best >= mean + 9 * self.rho_hat(2**order)))
        longer = min(int(state.order) + 1, self.largest)
        coming = -1 if done < 2 ** int(state.order) else longer
        if failed:
            coming = 0 if self.on_detect == "reset" else longer
        state = state._replace(
            coming=torch.full_like(state.coming, coming),
            failed=torch.full_like(state.failed, failed),
            **dict(zip(SUMS, (instance_total, ran, total, gap, best, loss, reachable), strict=True)),
        )
        return state, server, Event(moment.number, f"drift detected by {TESTS[failed]}") if failed else None

    def detected(self, state: Master) -> Tensor:
        """Return []: the failed tests, 1, 2, or 3 for both; 0 none."""
        return state.failed

    def restarted(self, state: Master) -> Tensor:
        """Return []: 1 where a block began after a whole one, 2 after a detection, 0 otherwise."""
        return state.restarted

    def metrics(self, state: Master) -> dict[str, Tensor]:
        """Return the orders of block and instance, F, F̃ and U of the last round, numbers [] each."""
        values = (state.order, state.active, state.loss, state.reachable, state.best)
        return {**super().metrics(state), **dict(zip(self.measures, values, strict=True))}
