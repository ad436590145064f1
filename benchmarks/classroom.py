"""What a class takes from one machine: students who launch four ranks at the same moment.

Each student is a Jupyter kernel that trains the README's network on four ranks twice: the first
launch starts the student's server of ranks, the next one finds it. Memory is PSS of all students'
processes together, by student, without JupyterLab: after the imports, between launches, and the
most in one.
"""

import tempfile
import threading
import time
from contextlib import ExitStack

from bench import Kernel, machine, memory, options, table

IMPORTS = "from course_utils import launch, pick\nfrom course_utils.lessons import data, models"
TRAIN = """
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP


def train(digits, steps):
    x, y = (part.to(pick()) for part in digits.train[dist.get_rank() :: dist.get_world_size()])
    model = DDP(models.mlp().to(pick()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(steps):
        batch = torch.randint(len(x), (64,))
        optimizer.zero_grad()
        cross_entropy(model(x[batch]), y[batch]).backward()
        optimizer.step()
"""
LAUNCH = "launch(train, data.digits(), 100, ranks=4, device='cpu')"


def at_once(kernels: list[Kernel], cell: str) -> tuple[list[float], float]:
    """The seconds of each kernel from the common start, and the most MB of all meanwhile."""
    begun, seconds = time.perf_counter(), [0.0] * len(kernels)

    def wait(number: int) -> None:
        kernels[number].begin(cell)()
        seconds[number] = time.perf_counter() - begun

    threads = [threading.Thread(target=wait, args=(number,)) for number in range(len(kernels))]
    for thread in threads:
        thread.start()
    most = 0.0
    while any(thread.is_alive() for thread in threads):
        most = max(most, sum(memory(kernel.pid) for kernel in kernels))
        time.sleep(0.2)
    return seconds, most


def row(students: int, folder: str) -> list[object]:
    with ExitStack() as stack:
        kernels = [stack.enter_context(Kernel(folder)) for _ in range(students)]
        at_once(kernels, f"{IMPORTS}\n{TRAIN}")
        imported = sum(memory(kernel.pid) for kernel in kernels)
        first, _ = at_once(kernels, LAUNCH)
        ready = sum(memory(kernel.pid) for kernel in kernels)
        later, most = at_once(kernels, LAUNCH)
    each = [f"{total / students:.0f}" for total in (imported, ready, most)]
    return [students, *(f"{max(seconds):.1f}" for seconds in (first, later)), *each]


if __name__ == "__main__":
    args = options(__doc__, repeat=8)
    header = ["students", "first launch, s", "next, s"]
    header += [f"{when}, MB each" for when in ("imported", "between launches", "in a launch")]
    print(machine())
    with tempfile.TemporaryDirectory() as folder:
        print(table(header, (row(students, folder) for students in sorted({1, args.repeat}))))
