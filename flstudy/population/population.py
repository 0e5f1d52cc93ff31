"""The world of a run as a LightningDataModule: devices with their data, cohorts, drift. One round is one epoch."""

import math
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import lightning as L
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flstudy import pytree
from flstudy.algorithms import fold_in
from flstudy.algorithms.parts.signatures import Job, Round
from flstudy.hyper import checked
from flstudy.population.ahead import Ahead
from flstudy.population.availability import Availability
from flstudy.population.batches import HOST, Batches, BatchPlan
from flstudy.population.data_stream import DataStream
from flstudy.population.dataset_cache import load_examples
from flstudy.population.datasets.base import Coding, Dataset
from flstudy.population.datasets.in_memory import InMemory
from flstudy.population.device_data import DeviceData, blocks_of, refuse_empty
from flstudy.population.drift import Drift, Event
from flstudy.population.membership import Membership, Ownership, membership
from flstudy.population.partition import ClientLists, Partition
from flstudy.population.selection import Selection, weighted_sample
from flstudy.population.streams import GOLDEN, STEPS, generator, mixed, random_bits
from flstudy.user_error import UserError

BLOCK = 2**14  # devices whose random words are computed at once: few enough for a core's cache


class Cohort(NamedTuple):
    """One round's work for S replicas of J jobs."""

    jobs: Job  # [S, J]
    sizes: Tensor  # [S, J] training examples of each job's device
    batches: Batches
    round: Round  # leaves [S, ...]; concepts are always filled in: the coordinator hides them
    devices: Tensor  # [S, J] the jobs' clients, which stay with the host: it looks their examples up

    def to(self, device: torch.device) -> "Cohort":
        """Return the cohort on a device, but for the fields that stay on the host; the copies are not waited for."""
        if device == self.sizes.device:
            return self
        on_host = {name: getattr(self.batches, name) for name in HOST}
        moved: Cohort = pytree.tree_map(lambda leaf: leaf.to(device, non_blocking=True), self)
        return moved._replace(batches=moved.batches._replace(**on_host), devices=self.devices)

    def of(self, places: Tensor) -> "Cohort":
        """Return the cohort of the jobs at some places [S, K] only; those on the host are looked up by the same."""
        replicas = torch.arange(len(places))[:, None]

        def pick(leaf: Tensor) -> Tensor:
            return leaf[replicas.to(leaf.device), places.to(leaf.device)]

        parts = (self.jobs, self.sizes, self.batches, self.round.concepts, self.devices)
        jobs, sizes, batches, concepts, devices = pytree.tree_map(pick, parts)
        return Cohort(jobs, sizes, batches, self.round._replace(concepts=concepts), devices)

    def repeated(self, times: int) -> "Cohort":
        """Return the cohort with every job ``times`` times, next to each other."""
        if times == 1:
            return self
        parts = (self.jobs, self.sizes, self.batches, self.round.concepts, self.devices)
        jobs, sizes, batches, concepts, devices = pytree.tree_map(lambda leaf: leaf.repeat_interleave(times, 1), parts)
        numbers = torch.arange(times, device=sizes.device).repeat(self.sizes.shape[1])
        jobs = jobs._replace(key=fold_in(jobs.key, numbers))
        return Cohort(jobs, sizes, batches, self.round._replace(concepts=concepts), devices)


class ExampleStore(NamedTuple):
    """All examples of all replicas, stacked once, and what each concept does to them; without drift its tables are
    empty and cost nothing."""

    x: Tensor  # [D, ...]
    y: Tensor  # [D], or [D, ...] for several labels per example; labels below 0 are padding
    table: Tensor = torch.empty(0, 0)  # [concepts, classes] what labels are called
    order: Tensor = torch.empty(0, 0)  # [concepts, features] which entry of an input comes to each place
    shift: Tensor = torch.empty(0, 0)  # [concepts, ...] what is added to inputs
    mean: Tensor = torch.empty(0)  # [channels, 1, 1] of `Coding`, or empty
    deviation: Tensor = torch.empty(0)  # likewise
    like: Tensor = torch.empty(0)  # [1] of the type in which coded inputs come; empty: nothing is coded

    @property
    def real(self) -> bool:
        """Return whether inputs are real numbers in a batch."""
        return (self.like if self.like.numel() > 0 else self.x).is_floating_point()

    def read(self, rows: Tensor | slice) -> tuple[Tensor, Tensor]:
        """Return the inputs [..., *shape] and labels [..., *] of rows [...] as they are in a batch, before any
        concept."""
        x, y = self.x[rows], self.y[rows]
        if self.like.numel() > 0:
            x = Coding(self.mean, self.deviation).inputs(x).to(self.like.dtype)
            real = self.real and y.is_floating_point()
            y = y.to(self.like.dtype) if real else y if y.is_floating_point() else y.to(torch.int64)
        return x, y

    def gather(self, rows: Tensor, concept: Tensor) -> tuple[Tensor, Tensor]:
        """Return the examples at rows [..., B] of devices under concept [...]: x [..., B, *shape], y [..., B] or [...,
        B, *] for several labels per example. Padding (-1) reads row 0; labels below 0 are nobody's and stay."""
        rows = rows.clamp(min=0)
        (x, y), lives = self.read(rows), concept.unsqueeze(-1)  # a batch of one: no index is a lone number
        if self.order.numel() > 0:
            x = torch.take_along_dim(x.flatten(rows.dim()), self.order[lives], -1).view(x.shape)
        if self.shift.numel() > 0:
            x = x + self.shift[lives].to(x.dtype)
        if self.table.numel() > 0:
            lives = lives.view(*concept.shape, *[1] * (y.dim() - concept.dim()))
            y = torch.where(y < 0, y, self.table[lives, y.clamp(min=0)])
        return x, y


def cohort_size(sampling: str, number: int, there: int, participants: int, clients: int) -> int:
    """Return the number of the devices that are there which take part in round ``number`` (from 1).

    fixed: ``participants``, or all. poisson: a binomial number, with probability participants / clients. It is the same
    for all seeds, whose rounds are one program; each seed by itself draws as if every device tossed its own coin.
    """
    if sampling == "fixed":
        return min(participants, there)
    return int(generator(0, "participants", number).binomial(there, participants / clients))


def lowest(keys: NDArray[np.uint64], count: int, among: int) -> NDArray[np.int64]:
    """Return [S, count]: the places of the lowest keys [S, N] of each line, ascending; of equal keys the first ones.
    Keys are random words of 63 bits, ``among`` of them at least in each line, but for higher ones."""
    bound, lines = low_bound(count, among), []
    for line in keys:
        places = np.flatnonzero(line <= bound)  # where N is large, few are looked at closely
        places = places if len(places) >= count else np.arange(len(line))
        lines.append(np.sort(places[np.argsort(line[places], kind="stable")[:count]]))
    return np.stack(lines)


def drawn_devices(words: NDArray[np.uint64], there: NDArray[np.bool_], count: int, among: int) -> NDArray[np.int64]:
    """Return [S, count]: the devices that a round draws, ascending: those with the lowest random words among the
    devices that are there [S, N]. The words go on from the round's words [S].

    Args:
        words: of each replica.
        there: who can be drawn.
        count: how many are.
        among: how many are there at least in each replica.
    """
    if there.shape[1] <= BLOCK:
        return lowest(keys_of(words, there), count, among)
    lines, bound = [], low_bound(count, among)
    for word, line in zip(words, there, strict=True):
        places = low_places(word, len(line), bound)
        places = places[line[places]]
        keys = mixed(word, places) >> np.uint64(1)
        if np.count_nonzero(keys <= bound) < count:
            lines.append(lowest(keys_of(word[None], line[None]), count, among)[0])
        else:
            lines.append(np.sort(places[np.argsort(keys, kind="stable")[:count]]))
    return np.stack(lines)


def keys_of(words: NDArray[np.uint64], there: NDArray[np.bool_]) -> NDArray[np.uint64]:
    """Return [S, N]: random words of 63 bits of all devices, which go on from the round's words [S]; who is not there
    [S, N] comes last."""
    draw = mixed(words[:, None], np.arange(there.shape[1]))
    return np.where(there, draw >> np.uint64(1), ~np.uint64(0))


def low_bound(count: int, among: int) -> np.uint64:
    """Return the key up to which the ``count`` lowest of ``among`` random keys are looked for."""
    share = (count + 8 * math.sqrt(count) + 8) / max(among, 1)
    return np.uint64(int(min(share, 1.0) * 2**63))


def low_places(word: np.uint64, devices: int, bound: np.uint64) -> NDArray[np.int64]:
    """Return [K]: the devices whose key, `mixed` of the word and halved, may be at most the bound, and few others.

    The last step of the mixing leaves the upper bits alone, so that it is left out. In place, since this is done for
    everybody.
    """
    limit = np.uint64(min(2 * int(bound) + 1 | 2**33 - 1, 2**64 - 1))
    z, moved, blocks = np.empty(BLOCK, dtype=np.uint64), np.empty(BLOCK, dtype=np.uint64), list[Any]()
    number = np.arange(BLOCK, dtype=np.uint64)
    with np.errstate(over="ignore"):
        start = word * GOLDEN + np.uint64(1)
        for begin in range(0, devices, BLOCK):
            np.add(number, start + np.uint64(begin), out=z)
            for bits, factor in STEPS:
                np.right_shift(z, bits, out=moved)
                np.bitwise_xor(z, moved, out=z)
                np.multiply(z, factor, out=z)
            blocks.append(np.flatnonzero(z[: devices - begin] <= limit) + begin)
    return np.concatenate(blocks)


class Population(L.LightningDataModule):
    """Population of devices with their data, their participation by round, and the drift of their world.

    Args:
        dataset: a flstudy data set, or any form of one's own that `InMemory` reads.
        clients: N, number of devices.
        participants: J, devices drawn without replacement in each round.
        sampling: ``fixed`` draws J, ``poisson`` every device by itself with probability J / N (at least one works).
        selection: which devices are drawn more often, or by their losses; null: all are drawn alike.
        partition: who gets which example, or a list of each device's examples; null takes the data set's natural
            devices, or Iid where it has none.
        drift: concept drift, or null.
        availability: who is there in which round, and where sessions begin; null: everybody always, in one session.
        data_stream: what devices train on in a round; null: always all that they own.
        batch_size: B, examples of a local minibatch.
        epochs: E, (largest) number of local epochs.
        steps: K, exact number of local minibatches instead of epochs.
        max_steps: most local minibatches; a device's fit ends with them or with its epochs, whichever comes first.
        valid: share of each device's examples kept for validation, unless the data set has a split of its own.
        test: share of each device's examples kept for testing, unless the data set has a split of its own.

    Raises:
        UserError: for a value outside its domain.
    """

    @checked
    def __init__(
        self,
        dataset: Dataset | Any,
        *,
        clients: Annotated[int, "[1, 1e6]"] = 20,
        participants: Annotated[int, "[1, 1e6]"] = 10,
        sampling: Literal["fixed", "poisson"] = "fixed",
        selection: Selection | None = None,
        partition: Partition | Sequence[Sequence[int]] | None = None,
        drift: Drift | None = None,
        availability: Availability | None = None,
        data_stream: DataStream | None = None,
        batch_size: Annotated[int, "[1, 1e6]"] = 20,
        epochs: Annotated[int, "[1, 1e6]"] = 1,
        steps: Annotated[int | None, "[1, 1e6]"] = None,
        max_steps: Annotated[int | None, "[1, 1e6]"] = None,
        valid: Annotated[float, "(0, 1)"] = 0.2,
        test: Annotated[float, "(0, 1)"] = 0.2,
    ) -> None:
        super().__init__()
        if participants > clients:
            raise UserError(f"Population: participants must be ≤ clients ({clients}), got {participants}")
        if valid + test >= 1:
            raise UserError(f"Population: valid + test must be < 1 to leave training data, got {valid + test}")
        if selection is not None:
            selection.check(clients, participants)
            if sampling == "poisson":
                raise UserError(
                    "Population: sampling poisson tosses the same coin for every device, which selection contradicts: "
                    "leave out one of them"
                )
        self.dataset = dataset if isinstance(dataset, Dataset) else InMemory(dataset)
        self.clients, self.participants, self.sampling, self.selection = clients, participants, sampling, selection
        if partition is not None and not isinstance(partition, Partition):
            partition = ClientLists(lists=[list(map(int, rows)) for rows in partition])
        self.partition, self.drift, self.availability, self.data_stream = partition, drift, availability, data_stream
        if steps is not None and max_steps is not None:
            raise UserError(f"Population: steps ({steps}) is exact; leave it or max_steps ({max_steps}) out")
        self.plan = BatchPlan(batch_size, epochs, steps, max_steps)
        self.shares = {"valid": valid, "test": test}
        self.seeds: tuple[int, ...] = ()
        self.ahead = Ahead[Cohort]()

    def __getstate__(self) -> dict[str, Any]:
        """Return the population without its Trainer, as Lightning pickles a module."""
        return {**vars(self), "trainer": None}

    # ---- the world, settled once per run -----------------------------------------------------------------------------

    def settle(self, seeds: Sequence[int]) -> "Population":
        """Load, partition and split the data of every replica. Idempotent.

        Raises:
            UserError: the data cannot be divided or changed as asked; the message names the key.
        """
        if tuple(seeds) == self.seeds:
            return self
        if self.availability is not None:
            self.availability.check(self.clients)
        examples = load_examples(self.dataset, seeds, self.clients)
        self.members: list[Membership] = []  # [S] what devices own; what they hold is the `DeviceData`
        alike = self.partition is None and (examples.owner is not None or examples.ranges is not None)
        blocks: Ownership | None = None
        for replica, seed in enumerate(seeds):
            if blocks is None or not alike or self.dataset.seeded:
                blocks = blocks_of(examples.replica(replica), self.partition, self.clients, seed)
            self.members.append(membership(blocks, self.clients, examples.starts[replica], seed, self.shares))
        self.store = ExampleStore(examples.x, examples.y)
        if (coding := examples.coding) is not None:
            like = coding.inputs(examples.x[:1]).new_zeros(1)
            self.store = self.store._replace(mean=coding.mean, deviation=coding.deviation, like=like)
        if self.drift is not None:
            self.drift.check(self.clients)
            tables = self.drift.tables(self.dataset.shape, self.dataset.classes)
            if tables.shift.numel() > 0 and not self.store.real:
                raise UserError(f"population: inputs are {examples.x.dtype}, which cannot shift; use LabelSwap")
            self.store = self.store._replace(table=tables.labels, order=tables.order, shift=tables.shift)
        self.device_data = DeviceData(seeds, self.members, examples.y, self.drift, self.data_stream)
        self._refuse_what_comes_later()
        self.seeds = tuple(seeds)
        return self

    def _refuse_what_comes_later(self) -> None:
        if self.selection is not None:
            self.weights(1, self.device_data.stage(1).able)
        if self.drift is None or self.drift.classes(1) is None:
            return
        last = max((event.round for event in self.drift.events()), default=1)
        for round in range(1, last + 1):
            refuse_empty(self.device_data, self.present(round), round)

    # ---- pure functions of (seed, round) --------------------------------------------------------------------------

    def cohort(self, round: int, probe: int = 0, devices: int | None = None) -> Cohort:
        """Return the work of a round (from 1) for all replicas; or of its ``probe``-th probe round
        (from 1), which draws other devices, so many of them, and other batches.

        Where a selection has candidates, the work of a round that is no probe is that of all of them."""
        number = round + (probe << 32)
        seeds = np.asarray(self.seeds)
        there = self.available(round)
        fewest = min(int(np.count_nonzero(line)) for line in there)
        drawn = cohort_size(self.sampling, round, fewest, self.participants, self.clients)
        candidates = self.selection.candidates or 0 if self.selection is not None and not probe else 0
        participants = min(max(1, drawn, candidates) if devices is None else devices, fewest)
        words = random_bits(seeds, "participation", number)
        if self.selection is None:
            client = drawn_devices(words, there, participants, fewest)
        else:
            client = weighted_sample(keys_of(words, there), self.weights(round, there), participants)
        concept = self._lived(client, round)
        lists = [rows for s, line in enumerate(client) for rows in self.device_data.lists(s, line, "train", round)]
        rows, steps, epoch = self.plan.rows(np.repeat(seeds, participants), number, client.ravel(), lists)
        shape = client.shape
        where = torch.from_numpy(client)
        # As wide for every cohort: programs are compiled for it.
        valid = self.device_data.examples_of("valid", where, round, self.device_data.stage(round).most)
        batches = Batches(
            rows=rows.view(*shape, *rows.shape[1:]),
            steps=steps.view(shape),
            epoch=epoch.view(*shape, -1),
            valid=valid,
            validated=torch.from_numpy((valid.numpy() >= 0).sum(-1)),
            concept=torch.from_numpy(concept),
            round=torch.full(shape, round),
        )
        sizes = torch.tensor([len(rows) for rows in lists]).view(shape)
        replicas = torch.ones(len(seeds), dtype=torch.int64)
        ever_there = self.clients if self.availability is None else self.availability.known(round, self.clients)
        round_ = Round(replicas * round, replicas * ever_there, replicas * self.session(round), batches.concept)
        per_epoch = (sizes + self.plan.batch_size - 1) // self.plan.batch_size
        words = random_bits(seeds[:, None], "device", number, client)
        job = Job(where, torch.zeros_like(where), per_epoch, torch.from_numpy(words.view(np.int64)))
        return Cohort(job, sizes, batches, round_, where)

    def _lived(self, client: NDArray[np.int64], round: int) -> NDArray[np.int64]:
        """Return [S, J]: the concepts of devices [S, J] in a round (from 1)."""
        if self.drift is None:
            return np.zeros_like(client)
        return np.take_along_axis(self.concepts(round).numpy(), client, axis=1)

    @property
    def asks_candidates(self) -> bool:
        """Return whether a selection draws more devices than train, and asks them for their losses."""
        return self.selection is not None and self.selection.candidates is not None

    def weights(self, round: int, there: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Return [S, N]: the weights by which a selection draws the devices of a round (from 1); 0 for who is not there
        [S, N].

        Raises:
            UserError: for a device that is there and can never be drawn.
        """
        assert self.selection is not None
        sizes = [membership.counts[:, 0] for membership in self.members]
        weights = np.stack([np.broadcast_to(self.selection.weights(line, round), line.shape) for line in sizes])
        never = there & ~(np.isfinite(weights) & (weights > 0))
        if never.any():
            replica, device = np.argwhere(never)[0]
            raise UserError(
                f"population.selection: a weight must be a finite number > 0, but {type(self.selection).__name__} "
                f"gives {weights[replica, device]:g} to device {device} with its {sizes[replica][device]} examples for "
                "training: set another selection, or null"
            )
        return np.where(there, weights, 0.0)

    def drawn(self, round: int) -> int:
        """Return the number of devices drawn for a round (from 1), which may be 0, although one works even then."""
        return cohort_size(self.sampling, round, self.fewest(round), self.participants, self.clients)

    def available(self, round: int) -> NDArray[np.bool_]:
        """Return [S, N]: whether each device can be drawn and is evaluated in a round (from 1): it is there and holds
        examples for training, validation and testing. Before the data are settled every device holds some, and S is
        1."""
        there = self.present(round)
        return self.device_data.stage(round).able & there if self.seeds else there[None]

    def fewest(self, round: int) -> int:
        """Return the number of devices available in a round (from 1) in the replica that has the fewest."""
        return min(int(np.count_nonzero(line)) for line in self.available(round))

    def present(self, round: int) -> NDArray[np.bool_]:
        """Return [N]: whether each device is there in a round (from 1)."""
        if self.availability is None:
            return np.ones(self.clients, dtype=bool)
        return self.availability.present(round, self.clients)

    def session(self, round: int) -> int:
        """Return the session (from 0) of a round (from 1)."""
        return 0 if self.availability is None else self.availability.session(round)

    def age(self, round: int) -> int:
        """Return the number of rounds of its session that came before a round (from 1)."""
        return round - 1 if self.availability is None else round - self.availability.began(round)

    def session_rounds(self, round: int, last: int | None) -> int | None:
        """Return the number of rounds that the session of a round (from 1) has in a run of ``last`` rounds; None if
        unknown."""
        if last is None:
            return None
        return last if self.availability is None else self.availability.length(round, last)

    def concepts(self, round: int) -> Tensor:
        """Return [S, N]: the concept of every device in a round (from 1)."""
        if self.drift is None:
            return torch.zeros(len(self.seeds), self.clients, dtype=torch.int64)
        return torch.from_numpy(np.stack([self.drift.concept(s, round, self.clients) for s in self.seeds]))

    def count_concepts(self) -> int:
        """Return the number of concepts; 1 where nothing drifts."""
        return 1 if self.drift is None else self.drift.concepts

    def drifts(self, rounds: int) -> list[Event]:
        """Return the drifts of rounds 1 to ``rounds``."""
        return [] if self.drift is None else [event for event in self.drift.events() if event.round <= rounds]

    def sessions(self, rounds: int) -> list[Event]:
        """Return the sessions that begin within so many rounds, but for the first."""
        return [] if self.availability is None else self.availability.events(rounds)

    def events(self, rounds: int) -> list[Event]:
        """Return the drifts and sessions that begin within so many rounds, for plots and metrics."""
        return sorted(self.drifts(rounds) + self.sessions(rounds), key=lambda event: event.round)

    # ---- Lightning -------------------------------------------------------------------------------------------------

    def setup(self, stage: str) -> None:
        """Settle the data; called by the Trainer, which knows the coordinator and so the seeds."""
        assert self.trainer is not None
        seeds: Any = self.trainer.lightning_module.seeds
        self.settle(seeds)

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """Move a cohort to a device; called by the Trainer."""
        if not isinstance(batch, Cohort):
            return super().transfer_batch_to_device(batch, device, dataloader_idx)
        assert self.trainer is not None
        # A replay after a resume would pass unnoticed.
        assert int(batch.round.number[0]) == self.trainer.current_epoch + 1, "a cohort of another round"
        return batch.to(device)

    def train_dataloader(self) -> "Rounds":
        """Return the loader of one item per epoch: the cohort of that round."""
        return Rounds(self)

    def val_dataloader(self) -> list[Tensor]:
        """Return a loader of one item, zeros [1]: the coordinator evaluates the whole population by itself."""
        return [torch.zeros(1)]

    test_dataloader = val_dataloader

    def predict_dataloader(self) -> list[int]:
        """Return the devices' numbers, one by one."""
        return list(range(self.clients))


class Rounds:
    """Loader of cohorts, one per epoch. Not a torch ``DataLoader``, whose iterator takes longer than a small cohort."""

    def __init__(self, population: Population) -> None:
        self.population, self.sampler = population, RoundSampler()

    def __iter__(self) -> Iterator[Cohort]:
        # Read when the round begins: on a resume the iterator is made before ``set_epoch`` is called.
        yield self.population.ahead.made(self.population.cohort, self.sampler.epoch + 1)

    def __len__(self) -> int:
        return 1


class RoundSampler:
    """Sampler that holds the current epoch, from 0. Lightning calls ``set_epoch``, also after a resume, so that no
    cohort is ever replayed."""

    def __init__(self) -> None:
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Set the current epoch, from 0; called by Lightning's loop before each one."""
        self.epoch = epoch
