"""Law: a cohort that trains in blocks gives what it gives at once, but for the rounding of sums."""

import pytest
import torch

from flstudy.algorithms import FedAvg, FedDrift, FedDyn, Flash, Mime, Scaffold
from flstudy.algorithms.parts.signatures import Totals
from flstudy.controllers import DynamicInitialModel
from flstudy.execution.parts import cohort_parts
from flstudy.federation.blocks import job_bytes, jobs_at_once
from flstudy.metrics.panel import Panel
from flstudy.population import AlternatingGroups
from flstudy.privacy import AdaptiveClip, Privacy

from ..tiers import in_tiers
from ..worlds import difference, drifting, run, wide
from .cases import FORMS, OWN, plain

SEEDS = (0, 44)
ONE = 0  # bytes for the jobs of one device at a time
CASES = {**plain(), "by relations": OWN["continuous by relations"], "two last models": OWN["moon with two last models"]}


def both(algorithm, memory=ONE, rounds=2, **how):
    """The run at once, and in blocks."""
    settings = {"seeds": SEEDS, "initial": "seeded", "compile": False, "evaluate": True, **how}
    worlds = settings.pop("worlds", lambda: drifting())
    at_once = run(algorithm, rounds, population=worlds(), **settings)
    in_blocks = run(algorithm, rounds, population=worlds(), cohort_memory=memory, **settings)
    return at_once, in_blocks


def alike(at_once, in_blocks, bound=1e-12):
    """Whether two runs' servers, rows and metrics are the same but for rounding."""
    assert difference(at_once.server, in_blocks.server) <= bound
    everybody = torch.arange(at_once.population.clients).expand(len(at_once.seeds), -1)
    x = at_once.server.x.reshape(len(at_once.seeds), -1, at_once.server.x.shape[-1])[:, 0]
    rows = [module.bank.read(module.algorithm, everybody, x) for module in (at_once, in_blocks)]
    assert difference(*rows) <= bound
    for here, there in zip(at_once.records, in_blocks.records, strict=True):
        assert list(here.metrics) == list(there.metrics)
        for name in here.metrics:
            if not name.startswith("time/") and name != "fit/lane_utilization":
                assert there.metrics[name] == pytest.approx(here.metrics[name], rel=1e-9, abs=1e-11, nan_ok=True), name


@pytest.mark.parametrize("name", in_tiers(CASES, [*FORMS, "by relations"]))
def test_methods_do_not_see_blocks(name):
    algorithm = CASES[name]
    at_once, in_blocks = both(algorithm)
    alike(at_once, in_blocks)
    assert isinstance(in_blocks.last.inbox, Totals) == (not algorithm.reads_each)
    assert in_blocks.last.fit.personal.numel() == 0


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [Flash(lr=0.1), Scaffold(lr=0.1), Mime(lr=0.1), FedDrift(lr=0.1)])
def test_blocks_of_any_size_and_executor(algorithm):
    size = job_bytes(algorithm, run(algorithm, 1).server, run(algorithm, 1).task_function.layout).training
    alike(*both(algorithm, memory=3 * len(SEEDS) * size))  # of four jobs
    alike(*both(algorithm, executor="sequential"))


def test_one_block_changes_no_bit():
    at_once, in_blocks = both(Scaffold(lr=0.1), memory=10**9)
    assert all(map(torch.equal, at_once.server, in_blocks.server))
    assert difference(at_once.last.fit.personal, in_blocks.last.fit.personal) == 0


@pytest.mark.parametrize(
    "privacy",
    [
        Privacy(clip=0.05),
        Privacy(clip=0.05, noise=1.0, delta=1e-3, orders=[2.0], adaptive_clip=AdaptiveClip(count_noise=4.0)),
        Privacy(clip=0.05, noise=1.0, delta=1e-3, orders=[2.0], sampling="poisson"),
    ],
)
@pytest.mark.parametrize("algorithm", [FedAvg, FedDyn])
def test_private_servers_see_the_same(privacy, algorithm):
    worlds = {"worlds": lambda: drifting(sampling=privacy.sampling)}
    alike(*both(algorithm(lr=0.3, weighting="uniform"), privacy=privacy, **worlds))


@pytest.mark.slow
def test_probe_rounds_panels_and_rounds_without_evaluation():
    how = {"controllers": [DynamicInitialModel()], "fit": {"check_val_every_n_epoch": 2}}
    how |= {"panel": Panel(clients=6, examples=4), "worlds": lambda: wide(availability=AlternatingGroups(rounds=1))}
    at_once, in_blocks = both(Flash(lr=0.1), rounds=4, **how)
    alike(at_once, in_blocks)
    assert ["test/personal_accuracy" in record.metrics for record in in_blocks.records] == [False, True, False, True]


def test_parts_hold_every_job_once_and_a_devices_jobs_together():
    cohort = wide().settle(SEEDS).cohort(1).repeated(2)
    parts = cohort_parts(cohort.batches.steps, 6, 2)
    assert sorted(row for part in parts for row in part.rows) == list(range(20))
    assert max(len(part.rows) for part in parts) <= 6
    assert all(row ^ 1 in part.rows for part in parts for row in part.rows)
    longest = [int(cohort.batches.steps[:, part.rows].sum(0).max()) for part in parts]
    assert longest == sorted(longest, reverse=True)


def test_a_server_that_reads_each_upload_is_told_what_that_takes():
    module = run(OWN["continuous by relations"], 1, population=drifting(), seeds=SEEDS)
    arguments = module.algorithm, module.server, module.task_function.layout, module.population
    with pytest.warns(UserWarning, match=r"Continuous looks at single devices: 8 jobs of .* MB keep .* GB in memory"):
        assert jobs_at_once(*arguments, ONE) == 1


class ReadsInSilence(FedAvg):
    """A server that looks at single uploads and does not say so."""

    def server_step(self, server, inbox, round):
        return server._replace(x=server.x + inbox.uploads.delta[0])


def test_a_server_that_does_not_say_so_is_refused():
    with pytest.raises(ValueError, match="set reads_each = True"):
        run(ReadsInSilence(lr=0.1), 1, population=drifting(), cohort_memory=ONE)
