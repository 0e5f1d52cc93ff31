"""Vision transformer, trained from scratch or from a file of weights."""

import pickle
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from flstudy.hyper import FilePath, checked
from flstudy.tasks.task import Task
from flstudy.user_error import UserError

EPS = 1e-6  # of layer normalisation, as in Dosovitskiy et al.'s code


class AttentionBlock(nn.Module):
    """Transformer block: attention and a dense network, each after a normalisation and with a residual connection."""

    def __init__(self, dim: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim, EPS), nn.LayerNorm(dim, EPS)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.fc1, self.fc2 = nn.Linear(dim, hidden), nn.Linear(hidden, dim)

    def forward(self, z: Tensor) -> Tensor:
        """Return the block's outputs [B, T, dim] of z [B, T, dim]."""
        q, k, v = self.qkv(self.norm1(z)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)  # [B, heads, T, d]
        weight = (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).softmax(-1)
        z = z + self.proj((weight @ v).transpose(1, 2).flatten(2))
        branch: Tensor = self.fc2(F.gelu(self.fc1(self.norm2(z))))
        return z + branch


class Vit(Task):
    """Vision transformer (Dosovitskiy et al. 2021) without dropout, of any size; the defaults are for images of 8×8.

    ViT-S/16 is ``{image: 224, patch: 16, dim: 384, depth: 12, heads: 6}`` with 21,665,664 parameters before its head
    (22,050,664 with one of 1,000 classes). FedAda² (Lee et al. 2024) trains its head, or all of it, from weights
    pretrained on ImageNet-21k. With ``train: head`` all else is frozen, a model that is sent has the head's
    (dim + 1) × classes numbers, and the head's input is computed once for each example instead of in every step.

    Args:
        shape: (channels, height, width) of one input; a config leaves it out and gets the data set's.
        classes: number of labels; a config leaves it out, too.
        image: height and width to which inputs are scaled, a multiple of patch; null takes them as they are.
        patch: height and width of a patch.
        dim: width of the network, a multiple of heads.
        depth: number of blocks.
        heads: number of attention heads of a block.
        mlp_ratio: width of a block's dense layer over dim.
        checkpoint: file of weights to start from, whatever the seed, by timm's or torchvision's names: torch.save's or
            .safetensors; its head is not taken. Null draws all.
        train: full, or head for the last layer alone.
    """

    @checked
    def __init__(
        self,
        shape: Sequence[int],
        classes: Annotated[int, "[1, 1e6]"],
        image: int | None = None,
        patch: Annotated[int, "[1, 1e4]"] = 4,
        dim: Annotated[int, "[1, 1e5]"] = 32,
        depth: Annotated[int, "[1, 1e3]"] = 2,
        heads: Annotated[int, "[1, 1e3]"] = 4,
        mlp_ratio: Annotated[int, "[1, 1e3]"] = 4,
        checkpoint: FilePath | None = None,
        train: Literal["full", "head"] = "full",
    ) -> None:
        super().__init__()
        if len(shape) != 3:
            raise UserError(f"Vit: shape must be (channels, height, width), got {tuple(shape)}; use Mlp or Lstm")
        size = tuple(shape[1:]) if image is None else (image, image)
        if min(size) < patch or any(side % patch for side in size):
            raise UserError(
                f"Vit: patch must divide height and width, got {patch} for {size[0]}×{size[1]}; set image or patch"
            )
        if dim % heads:
            raise UserError(f"Vit: heads must divide dim, got {heads} for {dim}")
        if train == "head" and checkpoint is None:
            raise UserError("Vit: train head keeps all else as it is loaded, got no checkpoint: set checkpoint")
        self.size, self.patch, self.checkpoint, self.embeds = size, patch, checkpoint, train == "head"
        self.patch_embed = nn.Linear(shape[0] * patch**2, dim)  # a convolution whose windows do not overlap
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos_embed = nn.Parameter(torch.zeros(1, 1 + (size[0] // patch) * (size[1] // patch), dim))
        self.blocks = nn.Sequential(*(AttentionBlock(dim, heads, mlp_ratio * dim) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(dim, EPS), nn.Linear(dim, classes)
        self.reset_parameters()
        if self.embeds:  # then `embed` depends on no parameter that is trained
            for name, parameter in self.named_parameters():
                parameter.requires_grad_(name.startswith("head."))

    def reset_parameters(self) -> None:
        """Draw truncated normal weights of deviation 0.02 and no biases, as timm does, or load the checkpoint's.

        Raises:
            UserError: for a checkpoint that is not there, cannot be read, or is of another architecture.
        """
        if self.checkpoint is not None:
            pretrained(self, self.checkpoint)
            return
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if "norm" in name:
                    parameter.fill_(float(name.endswith("weight")))
                elif name.endswith("bias"):
                    parameter.zero_()
                elif not name.startswith("head"):
                    nn.init.trunc_normal_(parameter, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits [B, classes] of images x [B, channels, height, width], or of their ``embed`` [B, dim]."""
        return self.head(self.features(x))

    def features(self, x: Tensor) -> Tensor:
        """Return the representations [B, dim] of images, or x itself where it is their ``embed`` [B, dim]; the head
        classifies them."""
        return x if x.dim() == 2 and self.embeds else self.embed(x)

    def embed(self, x: Tensor) -> Tensor:
        """Return [B, dim] of images x [B, channels, height, width]: the normalised class token after the last block.

        Raises:
            UserError: x have another number of dimensions.
        """
        if x.dim() != 4:
            raise UserError(f"Vit: inputs must be images [B, channels, height, width], got {list(x.shape)}; use Mlp")
        if tuple(x.shape[2:]) != self.size:
            x = F.interpolate(x, self.size, mode="bilinear", align_corners=False)
        rows, columns = (side // self.patch for side in self.size)
        patches = x.unflatten(3, (columns, self.patch)).unflatten(2, (rows, self.patch)).permute(0, 2, 4, 1, 3, 5)
        z = self.patch_embed(patches.flatten(3).flatten(1, 2))
        z = torch.cat([self.cls_token.expand(len(z), -1, -1), z], 1) + self.pos_embed
        return self.norm(self.blocks(z))[:, 0]


# ---- weights from files, by timm's or torchvision's names ------------------------------------------------------------

TIMM = (
    (r"patch_embed\.proj\.(weight|bias)", r"patch_embed.\1"),
    (r"blocks\.(\d+)\.attn\.(qkv|proj)\.(weight|bias)", r"blocks.\1.\2.\3"),
    (r"blocks\.(\d+)\.mlp\.(fc1|fc2)\.(weight|bias)", r"blocks.\1.\2.\3"),
    (r"(cls_token|pos_embed|blocks\.\d+\.norm[12]\.(?:weight|bias)|norm\.(?:weight|bias))", r"\1"),
)
LAYER = r"encoder\.layers\.encoder_layer_(\d+)"
TORCHVISION = (
    (r"conv_proj\.(weight|bias)", r"patch_embed.\1"),
    (r"class_token", r"cls_token"),
    (r"encoder\.pos_embedding", r"pos_embed"),
    (r"encoder\.ln\.(weight|bias)", r"norm.\1"),
    (LAYER + r"\.ln_([12])\.(weight|bias)", r"blocks.\1.norm\2.\3"),
    (LAYER + r"\.self_attention\.in_proj_(weight|bias)", r"blocks.\1.qkv.\2"),  # q, k and v below each other, as timm's
    (LAYER + r"\.self_attention\.out_proj\.(weight|bias)", r"blocks.\1.proj.\2"),
    (LAYER + r"\.mlp\.(?:0|linear_1)\.(weight|bias)", r"blocks.\1.fc1.\2"),
    (LAYER + r"\.mlp\.(?:3|linear_2)\.(weight|bias)", r"blocks.\1.fc2.\2"),
)
HEADS = ("head", "heads", "head_dist", "pre_logits", "fc_norm")
STEP = "set image, patch, dim, depth, heads and mlp_ratio to the file's, or checkpoint to another file"


def pretrained(task: nn.Module, checkpoint: str) -> None:
    """Copy all of a file's weights but its head's into a transformer with as many blocks of the same sizes.

    Args:
        task: with parameters named as `Vit` names them.
        checkpoint: path of the file.

    Raises:
        UserError: for no such file, one that cannot be read, or weights of another architecture.
        ImportError: for a .safetensors file without the package safetensors.
    """
    name, path = type(task).__name__, Path(checkpoint)
    weights = renamed(read_weights(path, name))
    parameters = {key: parameter for key, parameter in task.named_parameters() if not key.startswith("head.")}

    def refuse(reason: str) -> NoReturn:
        raise UserError(f"{name}: checkpoint {str(path)!r} is of another architecture: {reason}; {STEP}")

    for key in parameters:
        if key not in weights:
            refuse(f"it lacks {key}")
    for key in weights:
        if key not in parameters:
            refuse(f"it has {key}, which is not here")
    for key, parameter in parameters.items():
        value = weights[key].flatten(1) if key == "patch_embed.weight" else weights[key]
        if value.shape != parameter.shape:
            refuse(f"{key} is {list(value.shape)}, here {list(parameter.shape)}")
    with torch.no_grad():
        for key, parameter in parameters.items():
            parameter.copy_(weights[key].view_as(parameter))


def read_weights(path: Path, name: str) -> Mapping[str, Tensor]:
    """Return the tensors of a file by its own names and in its shapes, without running what it may hold.

    Raises:
        UserError: for no such file, or one that holds no weights.
        ImportError: for a .safetensors file without the package safetensors.
    """
    if not path.is_file():
        raise UserError(
            f"{name}: there is no checkpoint {str(path)!r}: save a model's state_dict there, such as that of timm's "
            f"vit_small_patch16_224, or set checkpoint to null to train from nothing"
        )
    if path.suffix == ".safetensors":
        try:
            from safetensors.torch import load_file  # not among flstudy's dependencies
        except ImportError as error:
            raise ImportError(f"{name}: reading {path} needs safetensors: pip install safetensors") from error
        return load_file(path)
    try:
        content: Any = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError, ValueError) as error:
        raise UserError(
            f"{name}: checkpoint {str(path)!r} holds no weights that can be read ({str(error).splitlines()[0]}); save "
            f"a state_dict with torch.save"
        ) from error
    for key in ("state_dict", "model"):
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    if not isinstance(content, Mapping) or not all(isinstance(value, Tensor) for value in content.values()):
        raise UserError(f"{name}: checkpoint {str(path)!r} must hold a state_dict, got {type(content).__name__}")
    return content


def renamed(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights, in the shapes of the file, by the names of `Vit`, unknown ones by their own; without
    heads."""
    table = TORCHVISION if any(key.startswith("encoder.") for key in tensors) else TIMM
    weights = {}
    for key, value in tensors.items():
        if key.partition(".")[0] in HEADS:
            continue
        matches = ((re.fullmatch(pattern, key), name) for pattern, name in table)
        weights[next((match.expand(name) for match, name in matches if match), key)] = value
    return weights
