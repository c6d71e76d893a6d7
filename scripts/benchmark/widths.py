"""From which size of a layer a second thread pays: python scripts/benchmark/widths.py

Adam steps of a network with two hidden layers on two threads and on one, in turn, alone and beside a busy
process. Prints the median ratio of five rounds. Waiting threads sleep, as in a run.
"""

import statistics
import subprocess
import sys
import time

import hydrl  # noqa: F401 - before PyTorch, for it decides how threads wait

import torch  # isort: skip
from torch import nn  # isort: skip

SIZES = ((256, 256), (400, 256), (512, 256), (256, 1_024), (1_024, 256), (1_024, 1_024))  # units, rows
INPUTS, ROUNDS, WORK = 24, 5, 700_000_000  # WORK: multiplications of the hidden layers in a round


def ratio(units: int, rows: int) -> float:
    """Time of a step on one thread, as a multiple of that on two."""
    hidden = [nn.Linear(INPUTS, units), nn.ReLU(), nn.Linear(units, units), nn.ReLU()]
    network = nn.Sequential(*hidden, nn.Linear(units, 1))
    optimizer = torch.optim.Adam(network.parameters(), fused=True)
    inputs = torch.randn(rows, INPUTS)

    def seconds(threads: int, steps: int) -> float:
        torch.set_num_threads(threads)
        began = time.perf_counter()
        for _ in range(steps):
            optimizer.zero_grad()
            network(inputs).square().mean().backward()
            optimizer.step()
        return time.perf_counter() - began

    steps = 5 + WORK // (units * units * rows)
    seconds(2, 5)
    return statistics.median(seconds(1, steps) / seconds(2, steps) for _ in range(ROUNDS))


def main() -> None:
    """Prints a row a size."""
    print("units  rows  alone  beside a busy process")
    for units, rows in SIZES:
        alone = ratio(units, rows)
        other = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        try:
            beside = ratio(units, rows)
        finally:
            other.kill()
            other.wait()
        print(f"{units:5,} {rows:5,} {alone:6.2f} {beside:7.2f}", flush=True)


if __name__ == "__main__":
    main()
