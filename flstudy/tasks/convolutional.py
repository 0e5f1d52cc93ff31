"""Networks of convolutions, for images, with group normalisation where they normalise."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from flstudy.hyper import checked
from flstudy.tasks import kernels
from flstudy.tasks.task import HeadedTask, Penalty, projector
from flstudy.user_error import UserError

FEW = 3  # input channels, for which 9 products each cost less than transforming tiles


@torch.compiler.allow_in_graph  # whether kernels can be had is not for the compiler to trace
def convolution(x: Tensor, weight: Tensor, bias: Tensor, padding: int) -> Tensor:
    """Return a 3×3 convolution of stride 1 of images x [B, C, H, W] with weight [O, C, 3, 3] and bias [O]."""
    if not kernels.compiling(x):
        return F.conv2d(x, weight, bias, padding=padding)
    if weight.shape[1] <= FEW:
        x = bordered(x.permute(0, 2, 3, 1), padding)
        height, width = x.shape[1] - 2, x.shape[2] - 2
        windows = torch.cat([x[:, i : i + height, j : j + width] for i in range(3) for j in range(3)], -1)
        y = windows @ weight.permute(2, 3, 1, 0).flatten(0, 2)
    else:
        images = x.permute(0, 2, 3, 1).contiguous()
        y = kernels.Conv3x3Kernel.apply(images[None], weight[None], padding)[0]
    return (y + bias).permute(0, 3, 1, 2)


def bordered(x: Tensor, padding: int) -> Tensor:
    """Return the images x [B, H, W, C] with a border of zeros. ``F.pad`` would make a constant of the number of
    lanes."""
    for axis in (1, 2) if padding else ():
        border = x.new_zeros([padding if place == axis else size for place, size in enumerate(x.shape)])
        x = torch.cat([border, x, border], axis)
    return x


class Conv3x3(nn.Conv2d):
    """A 3×3 convolution that compiled programs do by flstudy's own kernel."""

    def __init__(self, inputs: int, outputs: int, padding: int = 0) -> None:
        super().__init__(inputs, outputs, 3, padding=padding)

    def forward(self, input: Tensor) -> Tensor:
        """Return the feature maps [B, O, H', W'] of images [B, C, H, W]."""
        assert self.bias is not None
        return convolution(input, self.weight, self.bias, int(self.padding[0]))


class Cnn(HeadedTask):
    """Convolutional network of Reddi et al. 2021 (App. C.2) for EMNIST: two 3×3 convolutions with ReLU, 2×2 pooling
    and a dense layer. The defaults have its 1,206,590 parameters for 62 classes. Its dropout is ``[0.25, 0.5]``;
    dropped units differ between executors, so that these then agree on average only.

    Args:
        shape: (channels, height, width) of one input; a config leaves it out and gets the data set's.
        classes: number of labels; a config leaves it out, too.
        channels: feature maps of the two convolutions.
        dense: width of the dense layer.
        dropout: shares dropped while training after pooling and after the dense layer.
        projection: width of a projection head before the classifier, of two more dense layers; null has none.
        l1: λ of a penalty λ ‖x‖₁ on all parameters.
        l2: λ of a penalty λ/2 ‖x‖².
    """

    @checked
    def __init__(
        self,
        shape: Sequence[int],
        classes: Annotated[int, "[1, 1e6]"],
        channels: Annotated[tuple[int, int], "[1, 1e4]"] = (32, 64),
        dense: Annotated[int, "[1, 1e5]"] = 128,
        dropout: Annotated[tuple[float, float], "[0, 1)"] = (0.0, 0.0),
        projection: Annotated[int | None, "[1, 1e5]"] = None,
        l1: Annotated[float, "[0, 1e12]"] = 0.0,
        l2: Annotated[float, "[0, 1e12]"] = 0.0,
    ) -> None:
        super().__init__()
        self.regulariser = Penalty(l1, l2)
        if len(shape) != 3 or min(shape[1:]) < 6:
            raise UserError(f"Cnn: shape must be (channels, height ≥ 6, width ≥ 6), got {tuple(shape)}; use Mlp")
        early, late = ([nn.Dropout(share)] if share else [] for share in dropout)  # without dropout nothing is drawn
        first, second = channels
        self.backbone = nn.Sequential(
            Conv3x3(shape[0], first),
            nn.ReLU(),
            Conv3x3(first, second),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            *early,
        )
        with torch.no_grad():
            width = self.backbone(torch.zeros(1, *shape)).shape[1]
        head, last = projector(dense, projection)
        self.head = nn.Sequential(nn.Linear(width, dense), nn.ReLU(), *late, *head, nn.Linear(last, classes))

    def body(self, x: Tensor) -> Tensor:
        return self.backbone(x)


class Vgg(HeadedTask):
    """Small network in the manner of VGG (Simonyan & Zisserman 2015). Blocks of padded 3×3 convolutions, each with
    GroupNorm and ReLU, end with 2×2 pooling. A dense layer with ReLU and the classifier follow.

    The defaults are the CNN of Chang et al. 2025 for SVHN, of which their Table I says that it has 667,178 parameters
    and 91.04 operations for each; their text gives no layers. The defaults have both, counted as ptflops 0.7 does from
    torchvision's modules (twice the multiplications of a forward pass; ReLU and pooling count twice), a way that also
    gives the table's 2.00, 6.50 and 27.69 for the other image models. The network that they released has these layers
    too, with dropout 0.4. Differs: it normalises batches, which has as many parameters.

    Args:
        shape: (channels, height, width) of one input; a config leaves it out and gets the data set's.
        classes: number of labels; a config leaves it out, too.
        blocks: feature maps of each block's convolutions; a block halves height and width.
        dense: width of the dense layer.
        groups: number of groups of channels that are normalised together; must divide each number of feature maps.
        dropout: share dropped while training after the dense layer.
        projection: width of a projection head before the classifier, of two more dense layers; null has none.
    """

    @checked
    def __init__(
        self,
        shape: Sequence[int],
        classes: Annotated[int, "[1, 1e6]"],
        blocks: Annotated[Sequence[Sequence[int]], "[1, 1e4]"] = ((32, 32), (64, 64), (128,)),
        dense: Annotated[int, "[1, 1e5]"] = 256,
        groups: Annotated[int, "[1, 1e4]"] = 2,
        dropout: Annotated[float, "[0, 1)"] = 0.0,
        projection: Annotated[int | None, "[1, 1e5]"] = None,
    ) -> None:
        super().__init__()
        maps = {f"blocks[{i}][{j}]": width for i, block in enumerate(blocks) for j, width in enumerate(block)}
        if not blocks or not all(blocks):
            raise UserError(f"Vgg: blocks must hold one or more blocks of one or more convolutions, got {blocks}")
        least = 2 ** len(blocks)
        if len(shape) != 3 or min(shape[1:]) < least:
            raise UserError(
                f"Vgg: shape must be (channels, height ≥ {least}, width ≥ {least}) for {len(blocks)} blocks, got "
                f"{tuple(shape)}; use fewer blocks, or Mlp"
            )
        for name, width in maps.items():
            if width % groups:
                raise UserError(f"Vgg: groups must divide all feature maps, got {groups} for {name} {width}")
        layers: list[nn.Module] = []
        channels = shape[0]
        for block in blocks:
            for width in block:
                layers += [Conv3x3(channels, width, padding=1), nn.GroupNorm(groups, width), nn.ReLU()]
                channels = width
            layers.append(nn.MaxPool2d(2))
        self.backbone = nn.Sequential(*layers, nn.Flatten())
        with torch.no_grad():
            flat = self.backbone(torch.zeros(1, *shape)).shape[1]
        dropping = [nn.Dropout(dropout)] if dropout else []  # without dropout nothing is drawn
        head, last = projector(dense, projection)
        self.head = nn.Sequential(nn.Linear(flat, dense), nn.ReLU(), *dropping, *head, nn.Linear(last, classes))

    def body(self, x: Tensor) -> Tensor:
        return self.backbone(x)


class ResNet(HeadedTask):
    """Residual network (He et al. 2016) with GroupNorm instead of BatchNorm, as in Hsieh et al. 2020 and Reddi et al.
    2021.

    Args:
        shape: (channels, height, width) of one input; a config leaves it out and gets the data set's.
        classes: number of labels; a config leaves it out, too.
        groups: number of groups of channels that are normalised together; must divide 64.
        stem: imagenet begins with a 7×7 convolution of stride 2 and pooling, which leaves 8×8 of a 32×32 image. cifar
            begins with a 3×3 convolution and no pooling (He et al. 2016, sec. 4.2), which needs some 16 times the work.
        projection: width of a projection head before the classifier, of two more dense layers; null has none.
            MOON's is 256 (Li et al. 2021, sec. 3.2).
    """

    @checked
    def __init__(
        self,
        shape: Sequence[int],
        classes: Annotated[int, "[1, 1e6]"],
        groups: Annotated[int, "[1, 1e4]"] = 2,
        stem: Literal["imagenet", "cifar"] = "imagenet",
        projection: Annotated[int | None, "[1, 1e5]"] = None,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        if len(shape) != 3:
            raise UserError(f"{name}: shape must be (channels, height, width), got {tuple(shape)}; use Mlp or Lstm")
        if 64 % groups:
            raise UserError(f"{name}: groups must divide 64, got {groups}")
        network = self.published()(num_classes=classes, norm_layer=lambda channels: nn.GroupNorm(groups, channels))
        if stem == "cifar":
            network.conv1, network.maxpool = nn.Conv2d(shape[0], 64, 3, padding=1, bias=False), nn.Identity()
        elif shape[0] != 3:
            network.conv1 = nn.Conv2d(shape[0], 64, 7, stride=2, padding=3, bias=False)
        for module in network.modules():
            if isinstance(module, nn.ReLU):
                module.inplace = False  # mapped operations do not write into what another lane may share
        head, width = projector(network.fc.in_features, projection)
        classifier, network.fc = nn.Linear(width, classes) if head else network.fc, nn.Identity()
        self.network = network
        self.head = nn.Sequential(*head, classifier)
        self.reset_parameters()

    @abstractmethod
    def published(self) -> Callable[..., Any]:
        """Return torchvision's constructor, a study dependency: the engine runs without it."""

    def reset_parameters(self) -> None:
        """Draw convolutions from He et al.'s initial distribution; the other layers draw their own."""
        for module in self.network.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def body(self, x: Tensor) -> Tensor:
        return self.network(x)


class ResNet18(ResNet):
    """ResNet-18 (He et al. 2016) with GroupNorm instead of BatchNorm, as in Hsieh et al. 2020 and Reddi et al. 2021.

    With projection 256 it has the 11,573,066 parameters that Chang et al. 2025 (Table I) report for CIFAR-10, and
    11,596,196 for CIFAR-100; theirs normalises batches and starts from weights trained on ImageNet.

    Differs: this is torchvision's network, with normalisation after each convolution; Reddi et al. took the variant
    with normalisation before. Their 11,181,642 parameters for 10 classes are those of stem ``imagenet``.
    """

    def published(self) -> Callable[..., Any]:
        from torchvision.models import resnet18

        return resnet18


class ResNet34(ResNet):
    """ResNet-34 (He et al. 2016) with GroupNorm instead of BatchNorm.

    With projection 256 it has the 21,730,056 parameters that Chang et al. 2025 (Table I) report for TinyImageNet;
    theirs normalises batches and starts from weights trained on ImageNet.
    """

    def published(self) -> Callable[..., Any]:
        from torchvision.models import resnet34

        return resnet34
