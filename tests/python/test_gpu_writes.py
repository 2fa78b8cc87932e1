"""CUDA graphs of a pass see every way to write the weight between replays, and those of a trusted weight what is told.
On the host an eager pass stands for the graph."""

import pytest
import torch
from gpu import DEVICES, assert_equal, data, passes, sizes
from timing import captured
from writes import MOVES, TABLE, WAYS, each_memory, halve

import octile.torch as ot

#: Replays read the memory that they were captured with, and call no hooks. The last ones write the host's memory.
NOT_HERE = MOVES | {"a collective in a hook", "NumPy", "a pointer", "an optimizer as bitsandbytes'", "a child"}
IN_PLACE = {name: way for name, way in WAYS.items() if TABLE[name]["cached"] == "seen" and name not in NOT_HERE}


def on_another_stream(model):
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        each_memory(halve)(model)
    torch.cuda.current_stream().wait_stream(side)


def by_a_graph(model):
    graph, _ = captured(lambda: each_memory(halve)(model), 0)
    graph.replay()


#: Those that need a GPU.
ON_GPUS = {"another stream": on_another_stream, "a graph": by_a_graph}


def replayed(step, device):
    """Returns a function that replays a graph of a step, and returns copies of the step's results."""
    if device == "cpu":
        return step
    graph, made = captured(step, 2)

    def replay():
        graph.replay()
        return [tensor.clone() for tensor in made]

    return replay


@DEVICES
@pytest.mark.parametrize("training", [False, True], ids=["eval", "microbatch"])
@pytest.mark.parametrize("trusted", [False, True])
def test_replays_see_every_way(device, trusted, training, one_rank):
    n, k = sizes(device)
    layer = ot.Linear(k, n, bias=False, device=device).train(training)
    ot.trust_weights(layer, trusted)
    first, (x, dy) = layer.weight.detach().clone(), data(device, n, k, tokens=16)

    def run(layer):
        if training:
            return passes(layer, x, dy)
        with torch.no_grad():
            return [layer(x)]

    replay = replayed(lambda: run(layer), device)
    ways = IN_PLACE | ON_GPUS if device == "cuda" else IN_PLACE
    for name, way in ways.items():
        layer.load_state_dict({"weight": first})
        before = replay()
        with torch.no_grad():
            way(layer)
        if trusted:
            ot.weights_changed()
        fresh = ot.Linear(k, n, bias=False, device=device)
        fresh.load_state_dict(layer.state_dict())
        wanted = run(fresh)
        for _ in range(2):
            after = replay()
            assert not after[0].equal(before[0]), name
            assert_equal(after, wanted)
