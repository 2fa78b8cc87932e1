"""A process may fork at any time while other threads use the package; the child may then use it too."""

import subprocess
import sys

# Threads train layers, change weights, make layers and quantise arrays, while the main thread forks. Each child does
# the same work, within seconds: a lock that no thread of it holds would stop it for ever.
PROGRAM = """
import os, signal, threading, time
import numpy, torch
import octile.numpy as on
import octile.torch as ot

torch.set_num_threads(1)  # PyTorch's own threads do not survive a fork
rows = torch.randn(8, 256)
fixed = ot.Linear(256, 128, bias=False)
trained = [ot.Linear(256, 128, bias=False, recipe=recipe) for recipe in ("blockwise", "delayed")]
optimizer = torch.optim.SGD([layer.weight for layer in trained], lr=1e-3)

def train():
    sum(layer(rows).sum() for layer in trained).backward()
    optimizer.step()
    optimizer.zero_grad()

@torch.no_grad()
def change():
    ot.weights_changed()
    fixed(rows)

@torch.no_grad()
def make():
    layer = ot.Linear(256, 128, bias=False, device="meta")  # no random numbers: PyTorch's have a lock
    layer.weight = torch.nn.Parameter(torch.ones(128, 256))
    layer(rows)

def quantise(turn=[0]):
    turn[0] += 1
    on.dequantize(on.quantize(numpy.ones((turn[0] % 64 + 1, 128 + turn[0]), numpy.float32)))

@torch.no_grad()
def child_works(expected):
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(20)
    for layer in trained:
        layer(rows)
    make()
    quantise()
    return fixed(rows).equal(expected)

works = train, change, make, quantise
turns = [0] * len(works)
ended = False

def forever(index):
    while not ended:
        works[index]()
        turns[index] += 1

with torch.no_grad():
    expected = fixed(rows)
threads = [threading.Thread(target=forever, args=(index,)) for index in range(len(works))]
for thread in threads:
    thread.start()
begin = time.monotonic()
forks, bad = 0, []
while (forks < 12 or time.monotonic() - begin < 1.5) and not bad:
    time.sleep(0.0007 * (forks % 7))
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if child_works(expected) else 4)
        except BaseException as error:
            os.write(2, repr(error).encode())
            os._exit(3)
    forks += 1
    status = os.waitpid(child, 0)[1]
    if status != 0:
        bad.append(status)
ended = True
for thread in threads:
    thread.join()
print(f"bad {bad}, each thread worked {all(turns)}")
"""


def test_a_fork_at_any_time_leaves_the_child_able():
    ran = subprocess.run([sys.executable, "-W", "ignore", "-c", PROGRAM], capture_output=True, text=True)
    assert ran.stdout == "bad [], each thread worked True\n", ran.stdout + ran.stderr[-500:]
