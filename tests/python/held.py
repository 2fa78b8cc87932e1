"""Models whose weights are held in FP8, and the same training by hand."""

import torch
from torch import nn

import octile.torch as ot


#: Tokens, inputs, what is inside, and outputs; no block divides the tokens.
SIZES = {"cpu": (9, 144, 272, 160), "cuda": (300, 2048, 1024, 528)}


def model_of(recipe="blockwise", dtype=torch.bfloat16, device="cpu"):
    torch.manual_seed(1)
    _, k, i, n = SIZES[device]
    model = nn.Sequential(nn.Linear(k, i), nn.GELU(), nn.Linear(i, n, bias=False)).to(device, dtype)
    ot.convert(model, recipe, min_dims=16, fuse=False)  # torch.func rounds fused MLPs in other places
    return model


def adamw(parameters, **options):
    return torch.optim.AdamW(parameters, lr=1e-2, **options)


def held(optimizer=adamw, recipe="blockwise", dtype=torch.bfloat16, device="cpu", **options):
    model = model_of(recipe, dtype, device)
    made = optimizer(model.parameters())
    return model, made, ot.primary_fp8(model, made, **options)


def batch(seed, dtype=torch.bfloat16, device="cpu"):
    x = torch.randn(*SIZES[device][:2], dtype=dtype, generator=torch.Generator().manual_seed(seed))
    return x.to(device).requires_grad_()


def backward(model, seed, dtype=torch.bfloat16, device="cpu"):
    x = batch(seed, dtype, device)
    y = model(x)
    y.float().square().mean().backward()
    return [y.detach(), x.grad, *(p.grad.clone() for p in model.parameters())]


class Ordinary:
    """The same training by hand: an ordinary layer, whose weights are float32 masters rounded to their dtype."""

    def __init__(self, optimizer=adamw, recipe="blockwise", dtype=torch.bfloat16, device="cpu"):
        self.model = model_of(recipe, dtype, device)
        self.masters = [p.detach().float() if p.dim() == 2 else p for p in self.model.parameters()]
        self.optimizer = optimizer(self.masters)

    def step(self):
        for p, master in zip(self.model.parameters(), self.masters, strict=True):
            if master is not p:
                master.grad, p.grad = p.grad.float(), None
        self.optimizer.step()
        self.optimizer.zero_grad()
        with torch.no_grad():
            for p, master in zip(self.model.parameters(), self.masters, strict=True):
                p.copy_(master)


def assert_equal(a, b):
    assert len(a) == len(b)
    for p, q in zip(a, b, strict=True):
        assert type(p) is type(q) is torch.Tensor and p.dtype == q.dtype and p.equal(q)


def masters(model):
    return [model[0].weight.master.clone(), model[2].weight.master.clone()]


def trained(form):
    model, optimizer, _ = held(master=form)
    for seed in range(2):
        backward(model, seed)
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer
