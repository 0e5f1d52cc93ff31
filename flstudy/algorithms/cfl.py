"""CFL (Sattler et al. 2021): a cluster whose devices come to disagree is split in two, again and again.

    device: train its cluster's model x_v, send Δ_i
    server: x_v ← x_v + η_g Σ_{i ∈ v} p_i Δ_i / Σ_{i ∈ v} p_i
    but where |Σ p_i Δ_i| / Σ p_i < ε₁,  max_i |Δ_i| > ε₂:   α_ij = cos(Δ_i, Δ_j)   over v's participants
        v₁, v₂ = argmin over bipartitions of max_{i ∈ v₁, j ∈ v₂} α_ij            (optimal bipartition)
        if γ_max < √((1 - α_cross) / 2): v keeps x_v, its children start at x_v and the mean update of their side

A device that was away trains the x_v of the split and goes to the side whose mean update is the nearer by its cosine,
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
from flstudy.algorithms.parts.signatures import Inbox, Job, Layout, Local, Round, Upload, trained_by
from flstudy.hyper import hyper


class Server(NamedTuple):
    x: Tensor  # [V, n] of the clusters, from the root; V = 2 M - 1
    direction: Tensor  # [V, n] mean update of a cluster's members at the split that made it
    child: Tensor  # [V] a cluster's first child, which the second one follows; 0 while it is whole
    split: Tensor  # [V] the round in which it was split
    tree: Tensor  # [] number of this tree
    trees: Tensor  # [] of the latest tree of the run


class Client(NamedTuple):
    cluster: Tensor  # [] that it trained last
    round: Tensor  # [] in which it did
    tree: Tensor  # [] of whose clusters it is one
    delta: Tensor  # [n] its update


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
    """CFL (Sattler et al. 2021): clusters of devices are split by the cosines of their updates."""

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
        clusters = 2 * self.models - 1
        none = torch.zeros(clusters, dtype=torch.int64, device=x.device)
        x = x.reshape(-1, layout.n).expand(clusters, layout.n).clone()
        return Server(x, torch.zeros_like(x), none, none, none[0], none[0])

    def server_restarted(self, server: Server, x: Tensor, layout: Layout) -> Server:
        number = server.trees + 1
        return self.server_init(x, layout)._replace(tree=number, trees=number)

    def resumed(self, server: Server, running: Server) -> Server:
        return server._replace(trees=running.trees)

    def client_init(self, x: Tensor) -> Client:
        none = torch.zeros((), dtype=torch.int64, device=x.device)
        return Client(none, none, none - 1, torch.zeros_like(x))

    def cluster(self, server: Server, client: Client) -> Tensor:
        """Return []: the cluster of a device; the root where it never trained a model of this tree."""
        last = torch.where(client.tree == server.tree, client.cluster, 0)
        first, split = own_model(server.child, last), own_model(server.split, last)
        knows = (first > 0) & (client.tree == server.tree) & (client.round >= split)
        likeness = [
            cosine_similarity(client.delta, own_model(server.direction, child), 0)
            for child in (first, first + 1 * knows)
        ]
        return torch.where(knows, first + (likeness[1] > likeness[0]), last)

    def prepare(self, server: Server, clients: Any, survey: Any, jobs: Job, round: Round) -> tuple[Any, Any, Tensor]:
        cluster = torch.vmap(self.cluster, in_dims=(None, 0))(server, clients)
        here = clients._replace(
            cluster=cluster, round=round.number.expand_as(cluster), tree=server.tree.expand_as(cluster)
        )
        return server, here, cluster

    def choose(self, server: Any, survey: Any, jobs: Job, round: Round) -> Tensor:
        return jobs.model  # the root: what is judged is ``deployed``

    def deployed(self, server: Server, client: Client) -> Tensor:
        return own_model(server.x, self.cluster(server, client))

    def local_end(self, local: Local, msg: Any, client: Client) -> tuple[Upload, Client]:
        delta = local.y - msg.x
        return Upload(delta), client._replace(delta=delta)

    def server_step(self, server: Server, inbox: Inbox, round: Round) -> Server:
        member = trained_by(inbox.model, len(server.x))  # [V, J]
        mean, whole = self.mean_of(member, inbox), server.child == 0
        side, disagree = self.disagreement(inbox.uploads.delta, member, mean)
        splits = whole & disagree & (round.number >= self.first_round)
        number = (~whole).sum() + splits.cumsum(0) - 1  # of the tree's splits, from 0
        splits = splits & (number < self.models - 1)
        child = torch.where(splits, 2 * number + 1, server.child)

        sides = torch.stack([self.mean_of(member & part, inbox) for part in (side, ~side)])  # [2, V, n]
        place = torch.arange(len(server.x), device=child.device)
        second = (place + 1) % 2  # whether a cluster is its parent's second child
        made_by = splits & (child == (place - second)[:, None])  # [V, V]
        born, parent = made_by.any(1), made_by.to(torch.int64).argmax(1)
        direction = torch.where(born[:, None], sides[second, parent], server.direction)
        moved = torch.where((whole & ~splits)[:, None], server.x + self.server_lr * mean, server.x)
        x = torch.where(born[:, None], server.x[parent] + self.server_lr * direction, moved)
        split = torch.where(splits, round.number, server.split)
        return server._replace(x=x, direction=direction, child=child, split=split)

    def disagreement(self, delta: Tensor, member: Tensor, mean: Tensor) -> tuple[Tensor, Tensor]:
        """Return the bipartition of each cluster's members [V, J], and whether these disagree [V].

        Args:
            delta: [J, n] updates.
            member: [V, J] whether a job trained a cluster's model.
            mean: [V, n] mean update of each cluster.
        """
        unit, largest = normalize(delta, dim=1), torch.where(member, delta.norm(dim=1), 0.0).max(1).values
        side, across = torch.vmap(bipartition, in_dims=(None, 0))(unit @ unit.T, member)
        disagree = (mean.norm(dim=1) < self.eps1) & (largest > self.eps2) & (member.sum(1) >= self.participants)
        if self.gamma_max is not None:
            disagree = disagree & (self.gamma_max < ((1 - across.clamp(-1, 1)) / 2).sqrt())
        return side, disagree

    def mean_of(self, member: Tensor, inbox: Inbox) -> Tensor:
        """Return [V, n]: the mean update of the members [V, J] of each cluster, by their weights."""
        delta: Tensor = inbox.uploads.delta
        return normalize(member * inbox.weights, p=1, dim=1).to(delta.dtype) @ delta

    def diagnostics(self, before: Any, after: Any, inbox: Inbox) -> dict[str, Tensor]:
        models = (after.child > 0).sum() + 1
        return {**super().diagnostics(before, after, inbox), "models": models.to(after.x.dtype)}
