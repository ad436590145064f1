"""The small networks that several notebooks share, with weights that are equal on every machine,
rank and device.

They come from generators of their own, so they do not depend on torch.manual_seed and do not
disturb it.
"""

import itertools
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention


def mlp(width: int = 64, *, seed: int = 0) -> nn.Sequential:
    """Digits in, ten logits out: 64 -> width -> width -> 10, on the CPU."""
    sizes = (64, width, width, 10)
    linear = [nn.utils.skip_init(nn.Linear, i, o) for i, o in itertools.pairwise(sizes)]
    generator = torch.Generator().manual_seed(seed)
    for layer in linear:
        bound = layer.in_features**-0.5  # what nn.Linear itself uses
        for parameter in (layer.weight, layer.bias):
            nn.init.uniform_(parameter, -bound, bound, generator=generator)
    first, second, last = linear
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), last)


class Embed(nn.Module):
    """What a character is, plus where it stands: ids (N, T) int64 -> (N, T, width)."""

    def __init__(self, vocabulary: int, context: int, width: int) -> None:
        super().__init__()
        self.token = _empty(nn.Embedding, vocabulary, width)
        self.position: nn.Embedding = _empty(nn.Embedding, context, width)

    def forward(self, ids: Tensor) -> Tensor:
        return self.token(ids) + self.position.weight[: ids.shape[1]]


class Attention(nn.Module):
    """Causal self-attention, (N, T, width) -> (N, T, width); each head has its own `head` columns
    of q, k and v.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"{heads} heads do not divide a width of {width}.")
        self.head = width // heads
        self.q, self.k, self.v, self.out = (_empty(nn.Linear, width, width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            part(x).unflatten(-1, (-1, self.head)).transpose(1, 2)
            for part in (self.q, self.k, self.v)
        )
        return self.out(
            scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        )


class MLP(nn.Module):
    """(N, T, width) -> 4 width -> (N, T, width)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = (
            _empty(nn.Linear, width, 4 * width),
            _empty(nn.Linear, 4 * width, width),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.down(gelu(self.up(x)))


class Block(nn.Module):
    """Attention and MLP, each of the normalised input and added to it: (N, T, width) -> (N, T,
    width).
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), Attention(width, heads)
        self.norm2, self.mlp = nn.LayerNorm(width), MLP(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """A small GPT: ids (N, T) int64 -> logits (N, T, vocabulary) of each next character; T at most
    `context`.
    """

    def __init__(
        self,
        vocabulary: int,
        *,
        layers: int = 4,
        width: int = 64,
        heads: int = 4,
        context: int = 64,
    ) -> None:
        super().__init__()
        self.embed = Embed(vocabulary, context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), _empty(nn.Linear, width, vocabulary)
        generator = torch.Generator().manual_seed(0)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                _fill(module.weight, module.in_features**-0.5, generator)
                nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Embedding):
                _fill(module.weight, 0.02, generator)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def _empty(layer: type[nn.Module], *sizes: int) -> Any:
    """A layer whose weights are still to be filled; on the device of a surrounding
    `torch.device(…)`.
    """
    return nn.utils.skip_init(layer, *sizes, device=torch.get_default_device())


@torch.no_grad()
def _fill(weight: Tensor, std: float, generator: torch.Generator) -> None:
    if weight.is_meta:  # it has no memory to fill
        return
    weight.copy_(torch.randn(weight.shape, generator=generator, device="cpu") * std)


def filled(module: nn.Module) -> nn.Module:
    """The module itself, with the same random weights everywhere, biases included."""
    generator = torch.Generator().manual_seed(3)
    for parameter in module.parameters():
        _fill(parameter, 0.3, generator)
    return module
