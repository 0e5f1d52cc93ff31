"""Candidates of a round, which are asked for the loss of the server's model before those with the largest train."""

from typing import Any

import torch

from flstudy.algorithms import Algorithm
from flstudy.algorithms.parts.personal import Keeping
from flstudy.federation.asked_devices import stacked
from flstudy.federation.evaluation import Evaluation
from flstudy.federation.own_parts import trains_several
from flstudy.population import Cohort, Population
from flstudy.user_error import UserError


def refuse_candidates(algorithm: Algorithm, population: Population) -> None:
    """Raise UserError where a selection asks for losses of the server's one model, but there is no such model."""
    if not population.asks_candidates:
        return
    several, alone = trains_several(algorithm), not algorithm.sent_models
    if several or alone or isinstance(algorithm, Keeping):
        what = "trains several models" if several else "sends none" if alone else "leaves parts of it on the devices"
        raise UserError(
            f"population.selection: {type(population.selection).__name__} asks devices for the loss of the server's "
            f"model, but {type(algorithm).__name__} {what}: use BySize or ByWeight"
        )


def with_largest_losses(
    cohort: Cohort, server: Any, participants: int, evaluation: Evaluation
) -> tuple[Cohort, tuple[float, float]]:
    """Return the cohort of the ``participants`` candidates with the largest losses, in the order of their numbers.

    Beside it stand the bytes that the candidates are sent and send, over the number of participants: each candidate
    gets the model, of which those who train need no second copy, and tells one number.
    """
    candidates, x = cohort.sizes.shape[1], stacked(evaluation.algorithm.global_models(server))
    losses = evaluation.losses(server, cohort.devices, cohort.batches.concept, int(cohort.round.number[0]))
    losses = losses.nan_to_num(nan=torch.inf).cpu()  # a model that has diverged fits worst
    order = torch.sort(losses, dim=1, descending=True, stable=True).indices
    places = order[:, :participants].sort(1).values
    down = (candidates - participants) * x.shape[-1] * x.element_size() / participants
    return cohort.of(places), (down, candidates * x.element_size() / participants)
