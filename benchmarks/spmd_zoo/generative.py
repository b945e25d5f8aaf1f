"""Networks that make images: adversarial, variational, by denoising; and such that compare them."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from spmd_zoo.entry import Entry, Made, image

NOISE = 16


def generator() -> nn.Sequential:
    return nn.Sequential(
        nn.ConvTranspose2d(NOISE, 32, 4, 1, 0, bias=False), nn.BatchNorm2d(32), nn.ReLU(True),
        nn.ConvTranspose2d(32, 16, 4, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(True),
        nn.ConvTranspose2d(16, 3, 4, 2, 1, bias=False), nn.Tanh(),
    )  # fmt: skip


def critic() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 16, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, inplace=True),
        nn.Conv2d(16, 32, 4, 2, 1, bias=False), nn.BatchNorm2d(32), nn.LeakyReLU(0.2, inplace=True),
        nn.Conv2d(32, 1, 4, 1, 0, bias=False), nn.Flatten(),
    )  # fmt: skip


class DCGAN(nn.Module):
    """Both losses of a step; what the critic learns does not reach the generator's images."""

    def __init__(self) -> None:
        super().__init__()
        self.generator, self.critic = generator(), critic()

    def forward(self, noise: Tensor, real: Tensor) -> Tensor:
        made = self.generator(noise)
        on_real, on_made = self.critic(real), self.critic(made.detach())
        judged = functional.binary_cross_entropy_with_logits(
            on_real, torch.ones_like(on_real)
        ) + functional.binary_cross_entropy_with_logits(on_made, torch.zeros_like(on_made))
        believed = functional.binary_cross_entropy_with_logits(
            self.critic(made), torch.ones_like(on_made)
        )
        return judged + believed


class WGAN(nn.Module):
    """Scores of real and made images, without a sigmoid."""

    def __init__(self) -> None:
        super().__init__()
        self.generator, self.critic = generator(), critic()

    def forward(self, noise: Tensor, real: Tensor) -> Tensor:
        return self.critic(self.generator(noise)).mean() - self.critic(real).mean()


class ResnetBlock(nn.Module):
    """CycleGAN's block: reflected edges, instance norm."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.ReflectionPad2d(1), nn.Conv2d(channels, channels, 3), nn.InstanceNorm2d(channels),
            nn.ReLU(True), nn.ReflectionPad2d(1), nn.Conv2d(channels, channels, 3),
            nn.InstanceNorm2d(channels),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x)


class CycleGAN(nn.Module):
    """There and back again: the loss of the cycle."""

    def __init__(self) -> None:
        super().__init__()
        self.there, self.back = self._way(), self._way()

    def _way(self) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(3, 8, 3, 2, 1), nn.InstanceNorm2d(8), nn.ReLU(True), ResnetBlock(8),
            nn.ConvTranspose2d(8, 8, 3, 2, 1, output_padding=1), nn.ReLU(True),
            nn.Conv2d(8, 3, 3, padding=1), nn.Tanh(),
        )  # fmt: skip

    def forward(self, real: Tensor) -> Tensor:
        return functional.l1_loss(self.back(self.there(real)), real)


class VAE(nn.Module):
    """A variational autoencoder: what is between its halves is drawn."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Conv2d(3, 8, 4, 2, 1), nn.ReLU(), nn.Flatten())
        self.mean, self.spread = nn.Linear(8 * 64, 8), nn.Linear(8 * 64, 8)
        self.decode = nn.Sequential(
            nn.Linear(8, 8 * 64), nn.ReLU(), nn.Unflatten(1, (8, 8, 8)),
            nn.ConvTranspose2d(8, 3, 4, 2, 1),
        )  # fmt: skip

    def forward(self, real: Tensor) -> Tensor:
        seen = self.encode(real)
        mean, spread = self.mean(seen), self.spread(seen)
        drawn = mean + torch.randn_like(mean) * torch.exp(0.5 * spread)
        far = -0.5 * torch.mean(1 + spread - mean.pow(2) - spread.exp())
        return functional.mse_loss(self.decode(drawn), real) + far


class VQVAE(nn.Module):
    """An autoencoder through the nearest of some codes, straight through for gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Conv2d(3, 8, 4, 4)
        self.codes = nn.Embedding(16, 8)
        self.decode = nn.ConvTranspose2d(8, 3, 4, 4)

    def forward(self, real: Tensor) -> Tensor:
        seen = self.encode(real).permute(0, 2, 3, 1)
        codes = self.codes.weight
        far = seen.pow(2).sum(-1, keepdim=True) - 2 * seen @ codes.t() + codes.pow(2).sum(1)
        near = self.codes(far.argmin(-1))
        straight = seen + (near - seen).detach()
        made = self.decode(straight.permute(0, 3, 1, 2))
        return (
            functional.mse_loss(made, real)
            + functional.mse_loss(near, seen.detach())
            + 0.25 * functional.mse_loss(seen, near.detach())
        )


class DenoisingBlock(nn.Module):
    """A residual block of a diffusion model, told the step."""

    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        self.one, self.two = nn.GroupNorm(4, inner), nn.GroupNorm(4, outer)
        self.first = nn.Conv2d(inner, outer, 3, padding=1)
        self.last = nn.Conv2d(outer, outer, 3, padding=1)
        self.time, self.short = nn.Linear(16, outer), nn.Conv2d(inner, outer, 1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        found = self.first(functional.silu(self.one(x))) + self.time(time)[:, :, None, None]
        return self.short(x) + self.last(functional.silu(self.two(found)))


class Denoiser(nn.Module):
    """DDPM's U-Net with attention in the middle; noise and steps are inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 3, 3, padding=1)
        self.time = nn.Sequential(nn.Linear(16, 16), nn.SiLU(), nn.Linear(16, 16))
        self.down, self.smaller = DenoisingBlock(8, 8), nn.Conv2d(8, 16, 3, 2, 1)
        self.deep, self.norm = DenoisingBlock(16, 16), nn.GroupNorm(4, 16)
        self.three, self.out = nn.Conv2d(16, 48, 1), nn.Conv2d(16, 16, 1)
        self.larger, self.up = nn.Conv2d(16, 8, 3, padding=1), DenoisingBlock(16, 8)
        self.register_buffer("signal", torch.linspace(0.99, 0.01, 100).cumprod(0))

    def attended(self, x: Tensor) -> Tensor:
        b, c, h, w = x.shape
        q, k, v = self.three(self.norm(x)).reshape(b, 3, c, h * w).unbind(1)
        weights = torch.softmax(torch.einsum("bct,bcs->bts", q, k) * c**-0.5, dim=-1)
        return x + self.out(torch.einsum("bts,bcs->bct", weights, v).reshape(b, c, h, w))

    def forward(self, real: Tensor, noise: Tensor, step: Tensor) -> Tensor:
        signal = self.signal[step][:, None, None, None]
        x = signal.sqrt() * real + (1 - signal).sqrt() * noise
        angles = step[:, None].float() * torch.exp(-torch.arange(8) * 0.5)
        time = self.time(torch.cat([angles.sin(), angles.cos()], -1))
        high = self.down(self.enter(x), time)
        deep = self.attended(self.deep(self.smaller(high), time))
        up = self.larger(functional.interpolate(deep, scale_factor=2.0, mode="nearest"))
        found = self.leave(self.up(torch.cat([up, high], 1), time))
        return functional.mse_loss(found, noise)


class SimCLR(nn.Module):
    """Two views of each image, closer to each other than to all others of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(
            nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 16), nn.BatchNorm1d(16), nn.ReLU(),
            nn.Linear(16, 8),
        )  # fmt: skip

    def forward(self, one: Tensor, two: Tensor) -> Tensor:
        seen = functional.normalize(self.network(torch.cat([one, two])), dim=-1)
        count = one.shape[0]
        scores = seen @ seen.t() / 0.5
        scores = scores.masked_fill(torch.eye(2 * count, dtype=torch.bool), -1e9)
        partners = torch.arange(2 * count).roll(count)
        return functional.cross_entropy(scores, partners)


class BYOL(nn.Module):
    """One view predicts the other, as a slow copy of the network sees it."""

    def __init__(self) -> None:
        super().__init__()
        self.online, self.slow = self._network(), self._network().requires_grad_(False)
        self.predict = nn.Sequential(
            nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 8)
        )

    def _network(self) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(3, 8, 3, 2, 1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )

    def forward(self, one: Tensor, two: Tensor) -> Tensor:
        with torch.no_grad():
            target = functional.normalize(self.slow(two), dim=-1)
        found = functional.normalize(self.predict(self.online(one)), dim=-1)
        return (2 - 2 * (found * target).sum(-1)).mean()


def _adversarial(module: type[nn.Module], batch: int) -> Made:
    return module(), {"noise": torch.randn(batch, NOISE, 1, 1), "real": image(batch, 16)}


def _views(module: type[nn.Module], batch: int) -> Made:
    return module(), {"one": image(batch, 16), "two": image(batch, 16)}


def _image(module: type[nn.Module], batch: int) -> Made:
    return module(), {"real": image(batch, 16)}


def _denoiser(batch: int) -> Made:
    return Denoiser(), {
        "real": image(batch, 16), "noise": image(batch, 16), "step": torch.randint(100, (batch,))
    }  # fmt: skip


MODELS = {
    "DCGAN": Entry("GAN", lambda batch: _adversarial(DCGAN, batch)),
    "WGAN": Entry("GAN", lambda batch: _adversarial(WGAN, batch)),
    "CycleGAN": Entry("GAN", lambda batch: _image(CycleGAN, batch)),
    "VAE": Entry("generative", lambda batch: _image(VAE, batch)),
    "VQ-VAE": Entry("generative", lambda batch: _image(VQVAE, batch)),
    "DDPM": Entry("U-Net", _denoiser),
    "SimCLR": Entry("contrastive", lambda batch: _views(SimCLR, batch)),
    "BYOL": Entry("contrastive", lambda batch: _views(BYOL, batch)),
}
