"""Bags of words, for texts: the mean of embeddings, and logistic regression on shares of words."""

from collections.abc import Sequence
from typing import Annotated, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from flstudy.hyper import checked
from flstudy.tasks.task import HeadedTask, Task, projector
from flstudy.user_error import UserError


class FastText(HeadedTask):
    """fastText (Joulin et al. 2017) without n-grams: the mean of a text's word embeddings and a linear classifier.

    With 30,522 tokens and four classes the default has the 9,157,804 parameters that Chang et al. 2025 (Table I) report
    for AG News. Inputs are integer tokens [B, T], padded with 0, which counts in no mean; a text of padding alone is
    represented by zeros. Embeddings start from N(0, 1), torch's.

    Args:
        shape: (text length,) of one input; a config leaves it out and gets the data set's.
        classes: number of labels; a config leaves it out, too.
        tokens: size of the vocabulary, of which inputs are 0 … tokens − 1; a config leaves it out, too.
        embedding: width of a word's embedding.
        projection: width of a projection head before the classifier, of two more dense layers; null has none.
    """

    @checked
    def __init__(
        self,
        shape: Sequence[int],
        classes: Annotated[int, "[1, 1e6]"],
        tokens: int,
        embedding: Annotated[int, "[1, 1e5]"] = 300,
        projection: Annotated[int | None, "[1, 1e5]"] = None,
    ) -> None:
        super().__init__()
        if len(shape) != 1 or shape[0] < 1 or tokens < 1:
            raise UserError(
                f"FastText: inputs must be texts of shape (length ≥ 1,) and tokens ≥ 1, got shape {tuple(shape)} and "
                f"tokens {tokens}; use Mlp or Cnn"
            )
        self.embedding = nn.Embedding(tokens, embedding)
        head, width = projector(embedding, projection)
        self.head = nn.Sequential(*head, nn.Linear(width, classes))

    def body(self, x: Tensor) -> Tensor:
        """Return the mean embeddings [B, embedding] of texts x [B, T].

        Raises:
            UserError: x are not integer tokens [B, T].
        """
        if x.dim() != 2 or x.is_floating_point():
            raise UserError(f"FastText: inputs must be integer tokens [B, T], got {x.dtype} {list(x.shape)}; use Mlp")
        words = self.embedding(x)
        real = (x != 0).to(words.dtype)
        weight = real / real.sum(1, keepdim=True).clamp(min=1)
        return torch.einsum("bt,bte->be", weight, words)


class TagLogistic(Task):
    """Logistic regression of tags on the shares of words in a text, of Reddi et al. 2021 (App. C.5) for Stack Overflow.
    It has 5,000,500 parameters for 10,000 words and 500 tags.

    logits = b + Σ_t W[word t] / (number of words), over the known words; unknown ones count in the number. Inputs are
    numbers [B, T] of words, 0 for padding and the largest for unknown ones; labels are tags [B, L], −1 for padding.

    Differs: Reddi et al. add up the losses of a minibatch, here they are averaged as everywhere, so that their
    learning rates are to be multiplied by the size of the minibatch.

    Args:
        shape: (words,) of one input; a config leaves it out and gets the data set's.
        classes: number of tags; a config leaves it out, too.
        tokens: words, unknown and padding; a config leaves it out, too.
        loss: binary is one-vs-rest cross-entropy, the mean over tags as in Reddi et al. 2021. ``accuracy`` then is
            recall: the share of a text's tags among the ``top`` most likely. softmax is the cross-entropy of a text's
            first tag, and ``accuracy`` the share of texts where that is the most likely one. So does the published code
            of FedAda² (Lee et al. 2024), whose "500-class tag classification" knows one tag for each text.
        top: likely tags of which the recall is taken; Reddi et al.'s 5.
    """

    @checked
    def __init__(
        self,
        shape: Sequence[int],
        classes: Annotated[int, "[1, 1e6]"],
        tokens: int,
        loss: Literal["binary", "softmax"] = "binary",
        top: Annotated[int, "[1, 1e6]"] = 5,
    ) -> None:
        super().__init__()
        if len(shape) != 1 or tokens < 3:
            raise UserError(
                f"TagLogistic: inputs must be texts of shape (words,) and tokens ≥ 3 (a word, unknown, padding), got "
                f"shape {tuple(shape)} and tokens {tokens}; use Logistic"
            )
        self.words, self.classes, self.loss, self.top = tokens - 2, classes, loss, min(top, classes)
        self.weight = nn.Parameter(torch.empty(self.words, classes))
        self.bias = nn.Parameter(torch.empty(classes))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw Glorot and Bengio's uniform weights, no bias: the initial model of Reddi et al."""
        nn.init.xavier_uniform_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits [B, classes] of texts x [B, T].

        Raises:
            UserError: x are not integer words [B, T].
        """
        if x.dim() != 2 or x.is_floating_point():
            raise UserError(f"TagLogistic: inputs must be integer words [B, T], got {x.dtype} {list(x.shape)}")
        in_vocabulary = ((x > 0) & (x <= self.words)).to(self.weight.dtype)
        share = in_vocabulary / (x > 0).to(in_vocabulary.dtype).sum(1, keepdim=True).clamp(min=1)
        rows = F.embedding((x - 1).clamp(0, self.words - 1), self.weight)
        return torch.einsum("bt,btk->bk", share, rows) + self.bias

    def example_losses(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Return the loss [B] of each text.

        Raises:
            UserError: for inputs or labels of another form.
        """
        logits, y = self(batch[0]), batch[1]
        if self.loss == "softmax":
            return F.cross_entropy(logits, y[:, 0], reduction="none")
        return F.binary_cross_entropy_with_logits(logits, self._targets(y, logits), reduction="none").mean(1)

    def example_correct(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Return [B]: recall among the ``top`` most likely tags, or 1 where the first tag is the most likely.

        Raises:
            UserError: for inputs or labels of another form.
        """
        logits, y = self(batch[0]), batch[1]
        if self.loss == "softmax":
            return (logits.argmax(1) == y[:, 0]).to(logits.dtype)
        targets = self._targets(y, logits)
        hits = targets.gather(1, logits.topk(self.top, 1).indices).sum(1)
        return hits / targets.sum(1).clamp(min=1)

    def _targets(self, y: Tensor, like: Tensor) -> Tensor:
        """Return [B, classes]: 1 for each of a text's tags."""
        if y.dim() != 2:
            raise UserError(f"TagLogistic: labels must be tags [B, L], −1 for padding, got {list(y.shape)}")
        return (y.unsqueeze(-1) == torch.arange(self.classes, device=y.device)).any(1).to(like.dtype)
