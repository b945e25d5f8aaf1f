"""Convolutional networks for images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from spmd_zoo.entry import Entry, Made, WithLoss, classifier, image

CLASSES = 10


def conv(
    inner: int, outer: int, size: int = 3, stride: int = 1, groups: int = 1,
    act: Callable[[], nn.Module] = nn.ReLU,
) -> nn.Sequential:  # fmt: skip
    """Convolution, batch norm, activation."""
    return nn.Sequential(
        nn.Conv2d(inner, outer, size, stride, size // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outer),
        act(),
    )


def head(channels: int) -> nn.Sequential:
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, CLASSES))


class Chain(nn.Sequential):
    """Layers after each other, of an input named `x`."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)


class Residual(nn.Module):
    """What a branch gives, added to a shortcut."""

    def __init__(
        self, branch: nn.Module, shortcut: nn.Module | None = None, act: bool = True
    ) -> None:
        super().__init__()
        self.branch, self.shortcut = branch, shortcut or nn.Identity()
        self.act = nn.ReLU(inplace=True) if act else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.branch(x) + self.shortcut(x))


class Squeeze(nn.Module):
    """Channels weighed by their means (squeeze and excitation)."""

    def __init__(self, channels: int, inner: int, gate: type[nn.Module] = nn.Sigmoid) -> None:
        super().__init__()
        self.scores = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(channels, inner, 1), nn.ReLU(),
            nn.Conv2d(inner, channels, 1), gate(),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scores(x)


def basic(inner: int, outer: int, stride: int) -> Residual:
    branch = nn.Sequential(conv(inner, outer, 3, stride), *conv(outer, outer)[:2])
    short = (
        None
        if inner == outer and stride == 1
        else nn.Sequential(*conv(inner, outer, 1, stride)[:2])
    )
    return Residual(branch, short)


def bottleneck(
    inner: int, outer: int, stride: int, groups: int = 1, squeeze: bool = False
) -> Residual:
    middle = outer // 2
    last: list[nn.Module] = [Squeeze(outer, 4)] if squeeze else []
    branch = nn.Sequential(
        conv(inner, middle, 1),
        conv(middle, middle, 3, stride, groups),
        *conv(middle, outer, 1)[:2],
        *last,
    )
    return Residual(branch, nn.Sequential(*conv(inner, outer, 1, stride)[:2]))


def resnet18() -> nn.Module:
    widths = (8, 8, 16, 32, 32)
    blocks: list[nn.Module] = []
    for inner, outer in pairwise(widths):
        stride = 1 if inner == outer == 8 else 2
        blocks += [basic(inner, outer, stride), basic(outer, outer, 1)]
    return Chain(conv(3, 8, 7, 2), nn.MaxPool2d(3, 2, 1), *blocks, head(32))


def resnet50() -> nn.Module:
    return Chain(conv(3, 8), bottleneck(8, 16, 1), bottleneck(16, 32, 2), head(32))


def resnext() -> nn.Module:
    return Chain(
        conv(3, 8), bottleneck(8, 16, 1, groups=4), bottleneck(16, 32, 2, groups=4), head(32)
    )


def se_resnet() -> nn.Module:
    return Chain(
        conv(3, 8),
        bottleneck(8, 16, 1, squeeze=True),
        bottleneck(16, 32, 2, squeeze=True),
        head(32),
    )


class Dense(nn.Module):
    """A layer that reads all before it."""

    def __init__(self, inner: int, growth: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.BatchNorm2d(inner), nn.ReLU(), nn.Conv2d(inner, 2 * growth, 1, bias=False),
            nn.BatchNorm2d(2 * growth), nn.ReLU(),
            nn.Conv2d(2 * growth, growth, 3, padding=1, bias=False),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.layers(x)], 1)


def densenet() -> nn.Module:
    turn = nn.Sequential(nn.BatchNorm2d(24), nn.ReLU(), nn.Conv2d(24, 12, 1), nn.AvgPool2d(2))
    return Chain(conv(3, 8), Dense(8, 8), Dense(16, 8), turn, Dense(12, 8), Dense(20, 8), head(28))


def inverted(inner: int, outer: int, stride: int, act: Callable[[], nn.Module],
             squeeze: bool = False) -> nn.Module:  # fmt: skip
    """MobileNet's block: wide inside, its convolution one channel at a time."""
    wide = 4 * inner
    middle: list[nn.Module] = [Squeeze(wide, 4, nn.Hardsigmoid)] if squeeze else []
    branch = nn.Sequential(
        conv(inner, wide, 1, act=act), conv(wide, wide, 3, stride, wide, act), *middle,
        *conv(wide, outer, 1)[:2],
    )  # fmt: skip
    return Residual(branch, act=False) if inner == outer and stride == 1 else branch


def mobilenet(act: Callable[[], nn.Module], squeeze: bool) -> nn.Module:
    blocks = [inverted(*sizes, act, squeeze) for sizes in ((8, 8, 1), (8, 16, 2), (16, 16, 1))]
    return Chain(conv(3, 8, 3, 2, act=act), *blocks, conv(16, 32, 1, act=act), head(32))


def vgg() -> nn.Module:
    return Chain(
        conv(3, 8), nn.MaxPool2d(2), conv(8, 16), conv(16, 16), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(16 * 64, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, CLASSES),
    )  # fmt: skip


def alexnet() -> nn.Module:
    return Chain(
        nn.Conv2d(3, 8, 5, 2, 2), nn.ReLU(), nn.LocalResponseNorm(3), nn.MaxPool2d(3, 2),
        nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(),
        nn.Dropout(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, CLASSES),
    )  # fmt: skip


class Branches(nn.Module):
    """Results of several branches side by side (Inception, Fire)."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


def inception() -> nn.Module:
    mix = Branches(
        conv(8, 4, 1), nn.Sequential(conv(8, 4, 1), conv(4, 8)),
        nn.Sequential(conv(8, 4, 1), conv(4, 4, 5)),
        nn.Sequential(nn.MaxPool2d(3, 1, 1), conv(8, 4, 1)),
    )  # fmt: skip
    return Chain(conv(3, 8, 3, 2), mix, head(20))


def squeezenet() -> nn.Module:
    def fire(inner: int) -> nn.Module:
        wide = Branches(
            nn.Sequential(nn.Conv2d(4, 8, 1), nn.ReLU()),
            nn.Sequential(nn.Conv2d(4, 8, 3, padding=1), nn.ReLU()),
        )
        return nn.Sequential(nn.Conv2d(inner, 4, 1), nn.ReLU(), wide)

    return Chain(
        nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.MaxPool2d(3, 2, ceil_mode=True), fire(8), fire(16),
        nn.Dropout(), nn.Conv2d(16, CLASSES, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    )  # fmt: skip


class Shuffle(nn.Module):
    """ShuffleNet V2: half of the channels are computed, then both halves are mixed."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        half = channels // 2
        self.branch = nn.Sequential(
            conv(half, half, 1), *conv(half, half, 3, 1, half)[:2], conv(half, half, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        one, two = x.chunk(2, dim=1)
        joined = torch.cat((one, self.branch(two)), dim=1)
        n, c, h, w = joined.shape
        return joined.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)


def shufflenet() -> nn.Module:
    return Chain(conv(3, 16, 3, 2), Shuffle(16), Shuffle(16), head(16))


class ConvNeXtBlock(nn.Module):
    """A wide kernel for each channel, a norm over channels, and a perceptron."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.deep = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels)
        self.wide, self.narrow = (
            nn.Linear(channels, 4 * channels),
            nn.Linear(4 * channels, channels),
        )
        self.scale = nn.Parameter(torch.full((channels,), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.deep(x).permute(0, 2, 3, 1))
        y = self.scale * self.narrow(functional.gelu(self.wide(y)))
        return x + y.permute(0, 3, 1, 2)


def convnext() -> nn.Module:
    return Chain(nn.Conv2d(3, 16, 4, 4), ConvNeXtBlock(16), ConvNeXtBlock(16), head(16))


class Mixer(nn.Module):
    """MLP-Mixer: perceptrons over patches and over channels in turn."""

    def __init__(self, patches: int = 16, channels: int = 16, layers: int = 2) -> None:
        super().__init__()

        def mlp(width: int) -> nn.Module:
            return nn.Sequential(
                nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
            )

        self.patches = nn.Conv2d(3, channels, 8, 8)
        self.norms = nn.ModuleList(nn.LayerNorm(channels) for _ in range(2 * layers))
        self.over_patches = nn.ModuleList(mlp(patches) for _ in range(layers))
        self.over_channels = nn.ModuleList(mlp(channels) for _ in range(layers))
        self.scores = nn.Linear(channels, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        for k, (one, two) in enumerate(zip(self.over_patches, self.over_channels, strict=True)):
            x = x + one(self.norms[2 * k](x).transpose(1, 2)).transpose(1, 2)
            x = x + two(self.norms[2 * k + 1](x))
        return self.scores(x.mean(dim=1))


class UNet(nn.Module):
    """Down and up again, with what was seen on the way down; up by interpolation or convolution."""

    def __init__(self, by_convolution: bool, outer: int = 4) -> None:
        super().__init__()
        self.first, self.down, self.deep = conv(3, 8), conv(8, 16), conv(16, 32)
        self.ups = nn.ModuleList(
            nn.ConvTranspose2d(inner, inner // 2, 2, 2) if by_convolution
            else nn.Sequential(
                nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True),
                nn.Conv2d(inner, inner // 2, 1),
            )
            for inner in (32, 16)
        )  # fmt: skip
        self.after, self.last = conv(32, 16), conv(16, 8)
        self.scores = nn.Conv2d(8, outer, 1)

    def forward(self, x: Tensor) -> Tensor:
        one = self.first(x)
        two = self.down(functional.max_pool2d(one, 2))
        deep = self.deep(functional.max_pool2d(two, 2))
        up = self.after(torch.cat([two, self.ups[0](deep)], 1))
        return self.scores(self.last(torch.cat([one, self.ups[1](up)], 1)))


class FeaturePyramid(nn.Module):
    """FPN with a segmentation head: maps of all sizes, each added to the next larger one."""

    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.ModuleList((conv(3, 8, 3, 2), conv(8, 16, 3, 2), conv(16, 32, 3, 2)))
        self.sides = nn.ModuleList(nn.Conv2d(c, 8, 1) for c in (8, 16, 32))
        self.scores = nn.Conv2d(8, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        maps = []
        for stage, side in zip(self.stages, self.sides, strict=True):
            x = stage(x)
            maps.append(side(x))
        found = maps.pop()
        while maps:
            finer = maps.pop()
            found = finer + functional.interpolate(found, size=finer.shape[-2:], mode="nearest")
        return functional.interpolate(self.scores(found), scale_factor=2, mode="bilinear")


class AtrousPyramid(nn.Module):
    """DeepLab v3: the same map seen with kernels of several reaches."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(conv(3, 8, 3, 2), conv(8, 16, 3, 2))
        self.reaches = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(16, 8, 3, padding=d, dilation=d, bias=False), nn.BatchNorm2d(8), nn.ReLU()
            )
            for d in (1, 2, 3)
        )
        self.overall = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(16, 8, 1), nn.ReLU())
        self.scores = nn.Conv2d(32, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        seen = self.stem(x)
        maps = [reach(seen) for reach in self.reaches]
        maps.append(self.overall(seen).expand(-1, -1, *seen.shape[-2:]))
        return functional.interpolate(
            self.scores(torch.cat(maps, 1)), size=x.shape[-2:], mode="bilinear", align_corners=False
        )


class SubPixel(nn.Module):
    """ESPCN: an image made larger by channels that become pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 16, 5, padding=2),
            nn.Tanh(),
            nn.Conv2d(16, 12, 3, padding=1),
            nn.PixelShuffle(2),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class PointNet(nn.Module):
    """Points of a cloud, each seen alone, and the largest of each feature."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv1d(3, 16, 1), nn.BatchNorm1d(16), nn.ReLU(), nn.Conv1d(16, 32, 1),
            nn.BatchNorm1d(32), nn.ReLU(),
        )  # fmt: skip
        self.scores = nn.Sequential(
            nn.Linear(32, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, CLASSES)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.scores(torch.max(self.layers(x), 2)[0])


class Video(nn.Module):
    """C3D: convolution over time as well."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv3d(3, 8, 3, padding=1), nn.BatchNorm3d(8), nn.ReLU(), nn.MaxPool3d((1, 2, 2)),
            nn.Conv3d(8, 16, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool3d(1), nn.Flatten(),
            nn.Linear(16, CLASSES),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def _classes(network: Callable[[], nn.Module], shape: Sequence[int], batch: int) -> Made:
    return classifier(network(), CLASSES, batch, x=torch.randn(batch, *shape))


def _pixels(network: Callable[[], nn.Module], batch: int) -> Made:
    target = torch.randint(4, (batch, 32, 32))
    return WithLoss(network(), nn.CrossEntropyLoss()), {"x": image(batch), "target": target}


def _larger(batch: int) -> Made:
    return WithLoss(SubPixel(), nn.MSELoss()), {"x": image(batch, 16), "target": image(batch, 32)}


PICTURE = (3, 32, 32)
CLASSIFIERS: dict[str, tuple[Callable[[], nn.Module], Sequence[int]]] = {
    "ResNet-18": (resnet18, PICTURE),
    "ResNet-50": (resnet50, PICTURE),
    "ResNeXt": (resnext, PICTURE),
    "SE-ResNet": (se_resnet, PICTURE),
    "DenseNet": (densenet, PICTURE),
    "MobileNet v2": (partial(mobilenet, nn.ReLU6, False), PICTURE),
    "MobileNet v3": (partial(mobilenet, nn.Hardswish, True), PICTURE),
    "EfficientNet": (partial(mobilenet, nn.SiLU, True), PICTURE),
    "VGG with batch norm": (vgg, PICTURE),
    "AlexNet": (alexnet, PICTURE),
    "Inception": (inception, PICTURE),
    "SqueezeNet": (squeezenet, PICTURE),
    "ShuffleNet v2": (shufflenet, PICTURE),
    "ConvNeXt block": (convnext, PICTURE),
    "MLP-Mixer": (Mixer, PICTURE),
    "PointNet": (PointNet, (3, 40)),
    "C3D": (Video, (3, 4, 16, 16)),
}
MODELS = {
    **{name: Entry("vision", partial(_classes, *made)) for name, made in CLASSIFIERS.items()},
    "U-Net, transposed": Entry("U-Net", partial(_pixels, partial(UNet, True))),
    "U-Net, bilinear": Entry("U-Net", partial(_pixels, partial(UNet, False))),
    "FPN": Entry("U-Net", partial(_pixels, FeaturePyramid)),
    "DeepLab v3": Entry("U-Net", partial(_pixels, AtrousPyramid)),
    "ESPCN": Entry("vision", _larger),
}
