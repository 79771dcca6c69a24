"""A ResNet-18 for small images and a small GPT, with generated data from which they learn."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset, TensorDataset

#: Examples of each data set.
EXAMPLES = 480


def norm(channels: int) -> nn.Module:
    """Of each example alone. `BatchNorm2d` takes those of one process, so that the number of processes counts."""
    return nn.GroupNorm(32, channels)


class Block(nn.Module):
    """Two convolutions and a shortcut."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, 1, bias=False),
            norm(after),
            nn.ReLU(),
            nn.Conv2d(after, after, 3, 1, 1, bias=False),
            norm(after),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or before != after:
            self.shortcut = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), norm(after))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.shortcut(x))


class ResNet18(nn.Module):
    """He et al., CVPR'16, with the stem for small images and group normalisation. 11.2 million parameters."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), norm(64), nn.ReLU()]
        for before, after, stride in ((64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)):
            layers += [Block(before, after, stride), Block(after, after, 1)]
        self.layers = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))

    def forward(self, images: Tensor, classes: Tensor) -> Tensor:
        return F.cross_entropy(self.layers(images), classes)


class GPT(nn.Module):
    """A decoder of two layers, whose tokens are characters."""

    def __init__(self, tokens: int = 32, length: int = 32, width: int = 64) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(tokens, width), nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, tokens)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length))

    def forward(self, text: Tensor, following: Tensor) -> Tensor:
        x = self.token(text) + self.place(torch.arange(text.shape[1]))
        x = self.head(self.layers(x, mask=self.mask, is_causal=True))
        return F.cross_entropy(x.flatten(0, 1), following.flatten())


def images() -> Dataset[tuple[Tensor, ...]]:
    """Noise over one of ten patterns, which is the class."""
    generator = torch.Generator().manual_seed(1)
    classes = torch.arange(EXAMPLES) % 10
    patterns = torch.randn(10, 3, 16, 16, generator=generator)
    return TensorDataset(patterns[classes] + 2 * torch.randn(EXAMPLES, 3, 16, 16, generator=generator), classes)


def texts() -> Dataset[tuple[Tensor, ...]]:
    """Characters of which each has four that can follow it."""
    generator = torch.Generator().manual_seed(1)
    following = torch.randint(32, (32, 4), generator=generator)
    text = torch.randint(32, (EXAMPLES, 1), generator=generator)
    for _ in range(32):
        choice = torch.randint(4, (EXAMPLES,), generator=generator)
        text = torch.cat([text, following[text[:, -1], choice].unsqueeze(1)], dim=1)
    return TensorDataset(text[:, :-1], text[:, 1:])


#: Each model with its data, its learning rate, and the epochs that it is trained.
MODELS = {"resnet18": (ResNet18, images, 0.002, 6), "gpt": (GPT, texts, 0.3, 10)}
