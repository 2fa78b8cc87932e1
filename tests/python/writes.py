"""Ways in which programs write weights, and what the next forward pass of each kind of weight makes of them: ``TABLE``.

Kinds are the columns. cached: plain weights of ``Linear`` and ``Experts``. trusted: the same behind ``trust_weights``.
frozen: those of ``freeze_to_fp8``. held: those of ``primary_fp8``. sharded: those of FSDP2 and HSDP, gathered in BF16
or, by ``shard_fp8``, in FP8. parts: those of tensor parallelism.
"""

import ctypes
import os
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist
from torch import nn

# ---- what ways write


def weights(model):
    """Returns the parameters of a model as its modules show them: frozen layers show values, and no scales."""
    names = [(module, name) for module in model.modules() for name in module._parameters]
    shown = [getattr(module, name) for module, name in names if not name.endswith("_scale_inv")]
    return [p for p in shown if p is not None]


def memory(p):
    """Returns the tensor whose memory a weight has: the part of a rank, for one that ranks share."""
    local = getattr(p, "_local_tensor", p)
    return getattr(local, "plain", local)


def address(tensor):
    """Returns where a tensor is. Raises ValueError for one that has no memory of its own."""
    if tensor.data_ptr() == 0 and tensor.numel() > 0:
        raise ValueError("the tensor has no address")
    return tensor.data_ptr()


def each(write):
    """Returns the way that writes all weights, one by one."""
    return lambda model: [write(p) for p in weights(model)]


def each_memory(write):
    return each(lambda p: write(memory(p).detach()))


def halve(tensor):
    tensor.mul_(0.5)


# ---- ways


def by_numpy(tensor):
    tensor.detach().numpy().__imul__(0.5)  # nobody counts it


def by_dlpack(tensor):
    other = torch.utils.dlpack.from_dlpack(tensor)
    address(other)
    halve(other)


def by_pointer(tensor):
    halved = tensor * 0.5
    ctypes.memmove(address(tensor), halved.data_ptr(), halved.numel() * halved.element_size())


def by_storage(tensor):
    address(tensor)
    if tensor.numel() > 0:
        tensor.untyped_storage().copy_((tensor * 0.5).untyped_storage())


def by_collective(tensor):
    """Writes by a collective of this rank alone."""
    if tensor.numel() > 0:
        dist.scatter(tensor, [tensor * 0.5], dist.get_rank(), group=_alone())


def _alone():
    """Returns the group of this rank alone. All ranks call it together for the first time."""
    if getattr(_alone, "world", None) is not dist.group.WORLD:
        _alone.world = dist.group.WORLD
        _alone.groups = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
    return _alone.groups[dist.get_rank()]


def by_all(p):
    """Gives all ranks the part of the first, but those whose parts have another size."""
    sizes = [None] * dist.get_world_size()
    dist.all_gather_object(sizes, memory(p).numel())
    group = dist.new_group([rank for rank, size in enumerate(sizes) if size == sizes[0]])
    if memory(p).numel() == sizes[0]:
        dist.broadcast(memory(p).detach(), 0, group=group)


def in_a_hook(model):
    """Lets a collective write before the next forward pass, in a hook that runs before those of FSDP2."""

    def hook(module, _):
        handle.remove()
        with torch.no_grad():
            each_memory(by_collective)(module)

    handle = model.register_forward_pre_hook(hook, prepend=True)


def in_backward(p):
    """Writes when the gradient is there, as optimizers do that run in backward."""

    def hook(p):
        with torch.no_grad():
            p.data.sub_(p.grad, alpha=0.02)

    handle = p.register_post_accumulate_grad_hook(hook)
    try:
        with torch.enable_grad():
            (p * 1).backward(torch.ones_like(p))
    finally:
        handle.remove()
        p.grad = None


def by_optimizer(tensors, make=lambda tensors: torch.optim.SGD(tensors, lr=1.0)):
    for tensor in tensors:
        tensor.grad = torch.full_like(tensor, 0.02)
    try:
        make(tensors).step()
    finally:
        for tensor in tensors:
            tensor.grad = None


class Foreign(torch.optim.Optimizer):
    """Writes parameters as optimizers of another library do."""

    def __init__(self, parameters, write):
        super().__init__(parameters, {})
        self.write = write

    @torch.no_grad()
    def step(self):
        for p in self.param_groups[0]["params"]:
            self.write(p, p.grad)


def of_foreign(write):
    return lambda model: by_optimizer(weights(model), lambda tensors: Foreign(tensors, write))


def as_torchao(p, grad):
    """Computes in float32, and rounds into the weight."""
    p.detach().copy_((p.detach().float() - grad).to(p.dtype))


def as_bitsandbytes(p, grad):
    """Gives a kernel of its own the address."""
    by_pointer(memory(p.data))


def as_apex(p, grad):
    """Gives a kernel for many tensors what is in ``data``."""
    torch._foreach_sub_([p.data], [grad.data])


def assign_data(p):
    p.data = p.data * 0.5


def merge(p):
    """Merges an adapter as peft does."""
    p.data += torch.full_like(p.data, 0.02)


def unmerge(p):
    p.data -= torch.full_like(p.data, 0.02)


def replace(model):
    for module in model.modules():
        for name, p in list(module._parameters.items()):
            if p is not None and not name.endswith("_scale_inv"):
                shown = getattr(module, name)
                setattr(module, name, nn.Parameter(shown.detach() * 0.5, requires_grad=p.requires_grad))


def swap(p):
    torch.utils.swap_tensors(p, nn.Parameter(p.detach() * 0.5))


def swap_in_and_out(model):
    """Swaps averaged weights in, out, and in again."""
    own = [memory(p).detach().clone() for p in weights(model)]
    for values in ([w * 0.5 for w in own], own, [w * 0.5 for w in own]):
        for p, value in zip(weights(model), values, strict=True):
            memory(p).detach().copy_(value)


def load(model, assign=False):
    model.load_state_dict({name: _halved(p) for name, p in model.state_dict().items()}, assign=assign)


def _halved(p):
    return p * 0.5 if p.dtype.itemsize > 1 else p.clone()


def recast(model):
    """Casts to other memory, writes, and casts back."""
    dtype = weights(model)[0].dtype
    try:
        each_memory(halve)(model.half())
    finally:
        model.to(dtype)


def free_and_allocate(tensor):
    address(tensor)
    halved, storage = tensor * 0.5, tensor.untyped_storage()
    size = storage.size()
    storage.resize_(0)
    storage.resize_(size)
    tensor.copy_(halved)


def in_a_thread(tensor):
    with ThreadPoolExecutor(1) as pool:
        pool.submit(halve, tensor).result()


def share(tensor):
    address(tensor)
    tensor.share_memory_()


def in_a_child(tensor):
    """Writes in a process that shares the memory."""
    array, halved = tensor.numpy(), (tensor * 0.5).numpy()
    child = os.fork()
    if child == 0:
        array[...] = halved
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def _by_vmap(tensor):
    return torch.func.vmap(lambda row: row * 0.5)(tensor)


#: Ways to write the weights of a model, without gradients, as any code may.
WAYS = {
    "p.mul_": each(halve),
    "p.data": each(lambda p: halve(p.data)),
    "p.detach": each(lambda p: halve(p.detach())),
    "p.copy_": each(lambda p: p.copy_(p.detach() * 0.5)),
    "nn.init": each(lambda p: nn.init.constant_(p, 0.01)),
    "out=": each_memory(lambda t: torch.mul(t, 0.5, out=t)),
    "elements": each_memory(lambda t: t.__setitem__(slice(0, 3), 0.01)),
    "a view": each_memory(lambda t: t.view(-1)[:99].zero_()),
    "a transposed view": each_memory(lambda t: halve(t.transpose(-1, -2) if t.dim() > 1 else t)),
    "foreach": lambda m: torch._foreach_mul_(weights(m), 0.5),
    "foreach of data": each(lambda p: torch._foreach_mul_([p.data], 0.5)),
    "an alias by set_": each_memory(lambda t: halve(torch.empty(0, dtype=t.dtype, device=t.device).set_(t))),
    "its own set_": each(lambda p: memory(p).set_(memory(p).detach() * 0.5)),
    "p.data = other": each(assign_data),
    "p.data = view of a buffer": lambda m: nn.utils.vector_to_parameters(
        nn.utils.parameters_to_vector(weights(m)) * 0.5, weights(m)
    ),
    "another parameter": replace,
    "swap_tensors": each(swap),
    "memory freed and allocated": each_memory(free_and_allocate),
    "the storage": each_memory(by_storage),
    "NumPy": each_memory(by_numpy),
    "DLPack": each_memory(by_dlpack),
    "a pointer": each_memory(by_pointer),
    "a collective": each_memory(by_collective),
    "a collective in a hook": in_a_hook,
    "a hook of backward": each(in_backward),
    "an optimizer": lambda m: by_optimizer(weights(m)),
    "a fused optimizer": lambda m: by_optimizer(weights(m), lambda p: torch.optim.AdamW(p, fused=True)),
    "an optimizer of detached tensors": lambda m: by_optimizer([memory(p).detach() for p in weights(m)]),
    "an optimizer as torchao's": of_foreign(as_torchao),
    "an optimizer as bitsandbytes'": of_foreign(as_bitsandbytes),
    "an optimizer as apex's": of_foreign(as_apex),
    "an average": each_memory(lambda t: t.lerp_(torch.zeros_like(t), 0.5)),
    "swapped in and out": swap_in_and_out,
    "a merge": each(merge),
    "a merge taken back": each(unmerge),
    "the state": lambda m: [halve(value) for value in m.state_dict().values()],
    "load_state_dict": load,
    "load_state_dict, assign": lambda m: load(m, assign=True),
    "cast and cast back": recast,
    "torch.func.vmap": each_memory(lambda t: t.copy_(_by_vmap(t))),
    "torch.func.functionalize": each_memory(lambda t: torch.func.functionalize(lambda w: w.mul_(0.5))(t)),
    "torch.compile": each_memory(torch.compile(lambda t: t.mul_(0.5), backend="aot_eager", dynamic=True)),
    "a thread": each_memory(in_a_thread),
    "a child": each_memory(in_a_child),
}
#: Ways through the tensor that a DTensor is made of.
WAYS |= {
    "foreach of local tensors": lambda m: torch._foreach_mul_([p.to_local() for p in weights(m)], 0.5),
    "foreach of detached": lambda m: torch._foreach_mul_([p.detach().to_local() for p in weights(m)], 0.5),
    "_local_tensor": each(lambda p: halve(p._local_tensor)),
    "_local_tensor.data": each(lambda p: halve(p._local_tensor.data)),
    "to_local": each(lambda p: halve(p.to_local())),
    "to_local.detach": each(lambda p: halve(p.to_local().detach())),
    "to_local.data": each(lambda p: halve(p.to_local().data)),
    "detach.to_local": each(lambda p: halve(p.detach().to_local())),
    "detach.to_local.copy_": each(lambda p: p.detach().to_local().copy_(torch.full_like(p.to_local(), 0.01))),
    "a view of local": each(lambda p: p.to_local().view(-1)[:99].zero_()),
    "the state in place": lambda m: [by_numpy(value.to_local()) for value in m.state_dict().values()],
    "a collective of all ranks": each(by_all),
}
#: Preparations of a way, ahead of the first pass.
BEFORE = {"a child": each_memory(share)}
#: Ways by which a weight is another tensor, or has other memory.
MOVES = frozenset(
    (
        *("its own set_", "p.data = other", "p.data = view of a buffer", "another parameter", "swap_tensors"),
        *("memory freed and allocated", "load_state_dict, assign", "cast and cast back"),
    )
)

# ---- what becomes of them

#: seen: the next pass has the bits of a layer that shares nothing and has the new values. told: so has the pass that
#: follows ``weights_changed()``, and others have the bits of before. refused: the way raises Octile's error. copied:
#: the way writes a copy, and neither weight nor pass changes. -: it raises PyTorch's error, as REASONS has it. Errors
#: leave weights and passes as they were. Dots are not tried: only DTensors have a local tensor; FSDP2 gathers from the
#: memory that it divided, and never sees another parameter; and a frozen weight that another one replaces is gone.
TABLE = """
way                               cached   trusted  frozen   held     sharded  parts
p.mul_                            seen     seen     refused  refused  seen     seen
p.data                            seen     told     refused  refused  seen     seen
p.detach                          seen     seen     refused  refused  seen     seen
p.copy_                           seen     seen     refused  seen     seen     seen
nn.init                           seen     seen     refused  refused  seen     seen
out=                              seen     seen     refused  refused  seen     seen
elements                          seen     seen     refused  refused  seen     seen
a view                            seen     seen     refused  refused  seen     seen
a transposed view                 seen     seen     refused  refused  seen     seen
foreach                           seen     seen     refused  refused  seen     seen
foreach of data                   seen     told     refused  refused  seen     seen
an alias by set_                  seen     told     copied   copied   seen     seen
its own set_                      seen     seen     refused  refused  .        seen
p.data = other                    seen     seen     refused  refused  .        copied
p.data = view of a buffer         seen     seen     refused  refused  .        -
another parameter                 seen     seen     .        seen     .        seen
swap_tensors                      -        -        .        seen     .        -
memory freed and allocated        seen     seen     -        -        seen     seen
the storage                       seen     told     -        -        seen     seen
NumPy                             seen     told     -        -        seen     seen
DLPack                            seen     told     -        -        seen     seen
a pointer                         seen     told     -        -        seen     seen
a collective                      seen     told     refused  refused  seen     seen
a collective in a hook            seen     told     refused  refused  seen     seen
a hook of backward                seen     told     -        refused  seen     seen
an optimizer                      seen     seen     refused  refused  seen     seen
a fused optimizer                 seen     seen     refused  refused  seen     seen
an optimizer of detached tensors  seen     seen     refused  refused  seen     seen
an optimizer as torchao's         seen     seen     refused  seen     seen     seen
an optimizer as bitsandbytes'     seen     seen     -        -        seen     seen
an optimizer as apex's            seen     seen     refused  refused  seen     seen
an average                        seen     seen     refused  refused  seen     seen
swapped in and out                seen     seen     refused  seen     seen     seen
a merge                           seen     told     refused  refused  seen     seen
a merge taken back                seen     told     refused  refused  seen     seen
the state                         seen     seen     -        copied   seen     seen
load_state_dict                   seen     seen     seen     seen     seen     seen
load_state_dict, assign           seen     seen     seen     seen     seen     seen
cast and cast back                seen     seen     refused  refused  seen     seen
torch.func.vmap                   seen     seen     refused  seen     seen     seen
torch.func.functionalize          seen     seen     refused  seen     seen     seen
torch.compile                     seen     seen     refused  refused  seen     seen
a thread                          seen     seen     refused  refused  seen     seen
a child                           seen     told     -        -        seen     seen
foreach of local tensors          .        .        .        .        seen     seen
foreach of detached               .        .        .        .        seen     seen
_local_tensor                     .        .        .        .        seen     seen
_local_tensor.data                .        .        .        .        seen     seen
to_local                          .        .        .        .        seen     seen
to_local.detach                   .        .        .        .        seen     seen
to_local.data                     .        .        .        .        seen     seen
detach.to_local                   .        .        .        .        seen     seen
detach.to_local.copy_             .        .        .        .        seen     seen
a view of local                   .        .        .        .        seen     seen
the state in place                .        .        .        .        seen     seen
a collective of all ranks         .        .        .        .        seen     seen
"""
KINDS, *ROWS = (line.split() for line in TABLE.strip().splitlines())
TABLE = {" ".join(row[: -len(KINDS) + 1]): dict(zip(KINDS[1:], row[-len(KINDS) + 1 :], strict=True)) for row in ROWS}
assert list(TABLE) == list(WAYS)

#: PyTorch's errors. ``address`` raises the first one, because PyTorch itself would write at the address 0.
NO_ADDRESS = "ValueError: the tensor has no address"
REASONS = {
    "p.data = view of a buffer": "Attempted to flatten multiple dimensions, with dimension 1 being sharded",
    "swap_tensors": "RuntimeError: Cannot swap t1 because it has weakref associated with it",
    "NumPy": "RuntimeError: .numpy() is not supported for tensor subclasses.",
    "a hook of backward": "RuntimeError: cannot register a hook on a tensor that doesn't require gradient",
    "the state": "NotImplementedError: \"mul_cpu_reduced_float\" not implemented for 'Float8_e4m3fn'",
}
#: Octile's errors.
REFUSED = {
    "frozen": "into a frozen weight, which is FP8 codes and is not written; octile.torch.thaw_from_fp8(model)",
    "held": "writes into a weight that is held in FP8; allowed are copy_() of a whole weight, load_state_dict(), and",
}
#: Outcomes that differ from the table, which has what the documents say. Whoever mends a defect deletes its entry.
DEFECTS = {
    ("cast and cast back", "parts"): "RuntimeError: _apply(): Couldn't swap ColumnLinear.weight",
}


def expected(kind):
    """Returns what becomes of each way that is one for a kind."""
    words = {name: DEFECTS.get((name, kind), row[kind]) for name, row in TABLE.items()}
    return {name: word for name, word in words.items() if word != "."}


def word_of(name, kind, outcome):
    """Returns the table's word for an outcome, or the outcome itself if the table has none."""
    if outcome.startswith("NotImplementedError: octile: ") and REFUSED.get(kind, "?") in outcome:
        return "refused"
    return "-" if REASONS.get(name, NO_ADDRESS) in outcome else outcome


def first_line(error):
    return f"{type(error).__name__}: {error}".splitlines()[0]
