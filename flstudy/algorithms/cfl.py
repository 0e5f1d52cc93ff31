"""CFL (Sattler et al. 2021): a cluster whose devices come to disagree is split in two, again and again.

    device: train its cluster's model x_m, send Δ_i
    server: x_m ← x_m + η_g Σ_{i ∈ m} p_i Δ_i / Σ_{i ∈ m} p_i
    but where |Σ p_i Δ_i| / Σ p_i < ε₁,  max_i |Δ_i| > ε₂:   α_ij = cos(Δ_i, Δ_j)   over m's participants
        m₁, m₂ = argmin over bipartitions of max_{i ∈ m₁, j ∈ m₂} α_ij            (optimal bipartition)
        if γ_max < √((1 - α_cross) / 2): each of the two goes on from x_m with the mean update of its side

A device that was away trains the x_m of the split and goes to the side whose mean update is the nearer by its cosine,
once in each round in which it takes part (the paper's parameter tree for new clients).

Laws: ε₁ = 0 and M = 1 are FedAvg; devices of two opposed tasks part at the first split.
Differs: the tree keeps each side's mean update, not all updates, so participants of a split, too, go to the nearer
side. Bounds, ``first_round`` and ``participants`` are the authors' code's, which bipartitions by complete linkage.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize

from flstudy.algorithms.parts.clustered import Clustered, own_model
from flstudy.algorithms.parts.signatures import Inbox, Job, Layout, Local, Message, Round, Upload, trained_by
from flstudy.hyper import hyper


class Server(NamedTuple):
    x: Tensor  # [M, n] of the clusters
    origin: Tensor  # [M, n] model that a split was of; split s makes cluster s + 1 of a part of another one
    sides: Tensor  # [2, M, n] mean updates of the part that stays and of the part that goes
    parent: Tensor  # [M] the cluster that was split, -1 for a split that there is not; the last one never is
    split: Tensor  # [M] the round in which it was
    tree: Tensor  # [] number of this tree of splits
    trees: Tensor  # [] of the latest tree of the run

    @property
    def splits(self) -> Tensor:
        """[]: number of splits so far."""
        return (self.parent >= 0).sum()


class Client(NamedTuple):
    cluster: Tensor  # [] of which it is
    passed: Tensor  # [] number of splits that it has behind it: it looks for its side of its cluster's later ones
    round: Tensor  # [] in which it trained its cluster's model, or the origin of its next split; -1 before
    tree: Tensor  # [] of whose splits this is said
    delta: Tensor  # [n] its update then


def bipartition(similarity: Tensor, member: Tensor) -> tuple[Tensor, Tensor]:
    """Part members [J] so that the largest similarity [J, J] across is least: the side [J], and that similarity [].

    Prim's algorithm visits the members, the most similar to anyone visited first; the parts are those before and after
    the weakest of its steps. With fewer than two members the similarity is ∞.
    """
    places = torch.arange(len(member), device=member.device)
    visited = places == member.to(torch.int64).argmax()
    nearest = own_model(similarity, member.to(torch.int64).argmax())
    side, weakest = visited, torch.full_like(nearest[0], torch.inf)
    for _ in range(len(member) - 1):
        strength = torch.where(member & ~visited, nearest, -torch.inf)
        step, place = strength.max(), strength.argmax()
        weaker = (step > -torch.inf) & (step < weakest)
        side, weakest = torch.where(weaker, visited, side), torch.where(weaker, step, weakest)
        nearest = torch.maximum(nearest, own_model(similarity, place))
        visited = visited | (places == place)
    return side, weakest


@dataclass(frozen=True, kw_only=True)
class Cfl(Clustered):
    """CFL (Sattler et al. 2021): clusters of devices are split by the cosines of their updates. The server's model, as
    in ``global_`` metrics and kept files, is the first cluster's."""

    citations: ClassVar[tuple[str, ...]] = ("sattler2021",)
    measures: ClassVar[tuple[str, ...]] = (*Clustered.measures, "server/models")
    personalized: ClassVar[bool] = True
    prepares_rows: ClassVar[bool] = True
    copies_models: ClassVar[bool] = True

    models: int = hyper(8, "[1, 1e3]")
    """M, most clusters at once."""
    eps1: float = hyper(0.4, "[0, 1e12]")
    """ε₁: a cluster is split only while the norm of its mean update is below."""
    eps2: float = hyper(1.6, "[0, 1e12]")
    """ε₂: a cluster is split only while the largest norm of its updates is above."""
    gamma_max: float | None = hyper(None, "[0, 1]")
    """γ_max, an estimate of how far devices of one task differ; the sides' similarity α must fulfil γ_max <
    √((1 - α) / 2). Null asks nothing."""
    first_round: int = hyper(21, "[1, 1e9]")
    """First round in which clusters are split."""
    participants: int = hyper(3, "[2, 1e6]")
    """Fewest participants of a cluster in a round in which it is split."""

    @property
    def reads_each(self) -> bool:
        return True

    def server_init(self, x: Tensor, layout: Layout) -> Server:
        x = super().server_init(x, layout).x
        none = torch.zeros(self.models, dtype=torch.int64, device=x.device)
        return Server(x, x, torch.zeros_like(torch.stack([x, x])), none - 1, none, none[0], none[0])

    def server_restarted(self, server: Server, x: Tensor, layout: Layout) -> Server:
        number = server.trees + 1
        return self.server_init(x, layout)._replace(tree=number, trees=number)

    def resumed(self, server: Server, running: Server) -> Server:
        return server._replace(trees=running.trees)

    def client_init(self, x: Tensor) -> Client:
        none = torch.zeros((), dtype=torch.int64, device=x.device)
        return Client(none, none, none - 1, none - 1, torch.zeros_like(x))

    def placed(self, server: Server, client: Client) -> Client:
        """Return the row of a device that has found its side of the next split of its cluster, if it knows enough: it
        trained the split's model. A device that trained in another tree last is one that never took part."""
        in_tree = (client.tree == server.tree) & (client.passed <= server.splits)
        cluster, passed = torch.where(in_tree, client.cluster, 0), torch.where(in_tree, client.passed, 0)
        trained = torch.where(in_tree, client.round, -1)
        split = self.next_split(server, cluster, passed)
        finds = (own_model(server.parent, split) == cluster) & (trained >= own_model(server.split, split))
        stays, goes = (cosine_similarity(client.delta, own_model(side, split), 0) for side in server.sides.unbind())
        return client._replace(
            cluster=torch.where(finds & (goes > stays), split + 1, cluster),
            passed=torch.where(finds, split + 1, passed),
            round=torch.where(finds, -1, trained),
            tree=server.tree,
        )

    def next_split(self, server: Server, cluster: Tensor, passed: Tensor) -> Tensor:
        """Return []: the first split of a cluster that a device has not passed; the last, which never is, for none."""
        number = torch.arange(self.models, device=server.parent.device)
        return torch.where((server.parent == cluster) & (number >= passed), number, self.models - 1).amin()

    def model(self, server: Server, client: Client) -> Tensor:
        """Return []: the number of the model that a device trains and uses, M + s for the origin of split s."""
        split = self.next_split(server, client.cluster, client.passed)
        return torch.where(own_model(server.parent, split) == client.cluster, self.models + split, client.cluster)

    def prepare(self, server: Server, clients: Any, survey: Any, jobs: Job, round: Round) -> tuple[Any, Any, Tensor]:
        placed = torch.vmap(self.placed, in_dims=(None, 0))(server, clients)
        model = torch.vmap(self.model, in_dims=(None, 0))(server, placed)
        return server, placed._replace(round=round.number.expand_as(model)), model

    def choose(self, server: Any, survey: Any, jobs: Job, round: Round) -> Tensor:
        return jobs.model  # the first cluster's: devices use what is ``deployed``

    def broadcast(self, server: Server, job: Job) -> Message:
        return Message(own_model(torch.cat([server.x, server.origin]), job.model))

    def deployed(self, server: Server, client: Client) -> Tensor:
        model = self.model(server, self.placed(server, client))
        return own_model(torch.cat([server.x, server.origin]), model)

    def local_end(self, local: Local, msg: Any, client: Client) -> tuple[Upload, Client]:
        delta = local.y - msg.x
        return Upload(delta), client._replace(delta=delta)

    def server_step(self, server: Server, inbox: Inbox, round: Round) -> Server:
        member = trained_by(inbox.model, self.models)  # [M, J]
        mean = self.mean_of(member, inbox)
        side, disagree = self.disagreement(inbox.uploads.delta, member, mean)
        number = server.splits + disagree.cumsum(0) - 1  # [M] of the split that each cluster would be
        splits = disagree & (round.number >= self.first_round) & (number < self.models - 1)

        new_splits = splits & (number == torch.arange(self.models, device=number.device)[:, None])  # [M, M]
        now, parent = new_splits.any(1), new_splits.to(torch.int64).argmax(1)
        both = torch.stack([self.mean_of(member & part, inbox) for part in (side, ~side)])  # [2, M, n]
        step = torch.where(splits[:, None], both[0], mean)
        born = server.x[parent] + self.server_lr * both[1, parent]
        x = server.x + self.server_lr * step
        x = torch.cat([x[:1], torch.where(now[:-1, None], born[:-1], x[1:])])
        return server._replace(
            x=x,
            origin=torch.where(now[:, None], server.x[parent], server.origin),
            sides=torch.where(now[:, None], both[:, parent], server.sides),
            parent=torch.where(now, parent, server.parent),
            split=torch.where(now, round.number, server.split),
        )

    def disagreement(self, delta: Tensor, member: Tensor, mean: Tensor) -> tuple[Tensor, Tensor]:
        """Return the bipartition of each cluster's members [M, J], and whether these disagree [M].

        Args:
            delta: [J, n] updates.
            member: [M, J] whether a job trained a cluster's model.
            mean: [M, n] mean update of each cluster.
        """
        unit, largest = normalize(delta, dim=1), torch.where(member, delta.norm(dim=1), 0.0).max(1).values
        side, across = torch.vmap(bipartition, in_dims=(None, 0))(unit @ unit.T, member)
        disagree = (mean.norm(dim=1) < self.eps1) & (largest > self.eps2) & (member.sum(1) >= self.participants)
        if self.gamma_max is not None:
            disagree = disagree & (self.gamma_max < ((1 - across.clamp(-1, 1)) / 2).sqrt())
        return side, disagree

    def mean_of(self, member: Tensor, inbox: Inbox) -> Tensor:
        """Return [M, n]: the mean update of the members [M, J] of each cluster, by their weights."""
        delta: Tensor = inbox.uploads.delta
        return normalize(member * inbox.weights, p=1, dim=1).to(delta.dtype) @ delta

    def diagnostics(self, before: Any, after: Any, inbox: Inbox) -> dict[str, Tensor]:
        here = (
            torch.arange(self.models, device=before.x.device) <= before.splits
        )  # those that are born now took no step
        moved = torch.where(here[:, None], after.x - before.x, 0.0)
        models = (after.splits + 1).to(after.x.dtype)
        return {**super().diagnostics(before, after, inbox), "update_norm": moved.norm(), "models": models}
