"""Weights of vision transformers from files, by timm's or torchvision's names."""

import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

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
        ValueError: for no such file, one that cannot be read, or weights of another architecture.
        ImportError: for a .safetensors file without the package safetensors.
    """
    name, path = type(task).__name__, Path(checkpoint)
    found = renamed(read(path, name))
    own = {key: parameter for key, parameter in task.named_parameters() if not key.startswith("head.")}

    def refuse(reason: str) -> NoReturn:
        raise ValueError(f"{name}: checkpoint {str(path)!r} is of another architecture: {reason}; {STEP}")

    for key in own:
        if key not in found:
            refuse(f"it lacks {key}")
    for key in found:
        if key not in own:
            refuse(f"it has {key}, which is not here")
    for key, parameter in own.items():
        value = found[key].flatten(1) if key == "patch_embed.weight" else found[key]
        if value.shape != parameter.shape:
            refuse(f"{key} is {list(value.shape)}, here {list(parameter.shape)}")
    with torch.no_grad():
        for key, parameter in own.items():
            parameter.copy_(found[key].view_as(parameter))


def read(path: Path, name: str) -> Mapping[str, Tensor]:
    """The tensors of a file, without running what it may hold."""
    if not path.is_file():
        raise ValueError(
            f"{name}: there is no checkpoint {str(path)!r}: save a model's state_dict there, such as that of timm's "
            f"vit_small_patch16_224, or set checkpoint to null to train from nothing"
        )
    if path.suffix == ".safetensors":
        try:
            from safetensors.torch import load_file  # not among flstudy's dependencies
        except ImportError as error:
            raise ImportError(f"{name}: reading {path} needs safetensors: pip install safetensors") from error
        tensors: Mapping[str, Tensor] = load_file(path)
        return tensors
    try:
        content: Any = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError, ValueError) as error:
        raise ValueError(
            f"{name}: checkpoint {str(path)!r} holds no weights that can be read ({str(error).splitlines()[0]}); save "
            f"a state_dict with torch.save"
        ) from error
    for key in ("state_dict", "model"):
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    if not isinstance(content, Mapping) or not all(isinstance(value, Tensor) for value in content.values()):
        raise ValueError(f"{name}: checkpoint {str(path)!r} must hold a state_dict, got {type(content).__name__}")
    return content


def renamed(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights by the names of `Vit`, unknown ones by their own; without heads."""
    table = TORCHVISION if any(key.startswith("encoder.") for key in tensors) else TIMM
    found = {}
    for key, value in tensors.items():
        if key.partition(".")[0] in HEADS:
            continue
        matches = ((re.fullmatch(pattern, key), name) for pattern, name in table)
        found[next((match.expand(name) for match, name in matches if match), key)] = value
    return found
