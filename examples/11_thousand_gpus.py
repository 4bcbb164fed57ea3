"""A thousand GPUs that are not there: how long, how efficient, and what to change first.

    python examples/11_thousand_gpus.py
    python examples/11_thousand_gpus.py --routine qr --n 500000 --gpus 256 --plot scaling.svg

Predicts a factorization of a matrix that fills a cluster of DGX nodes.  It first makes sure
of the prediction where the real programs can be executed without kernels, on a few GPUs;
then it says what bounds the large run, and what other ways to pass panels on inside a node
would make of it.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import hetero_la
from hetero_la.pictures.charts.scaling_chart import draw_scaling
from hetero_la.predict.scaling import forecast, read_machine, strong_scaling
from hetero_la.scheduler.machine.cluster_model import Broadcast, ClusterModel, Fabric
from hetero_la.scheduler.placement.workers import WorkerInfo


def compare_with_programs(routine: str, machine: ClusterModel) -> None:
    """Predict four GPUs in two ways: by the programs that would run, and step by step."""
    workers = [WorkerInfo(f"gpu{i}", "gpu", device=i) for i in range(4)]
    plan = hetero_la.plan(routine, (32768, 32768), nb=1024, workers=workers)
    programs = plan.simulate().makespan
    # The plan's model lets every GPU copy a panel as fast as if it were alone.
    link = plan.model.peer_link
    alone = Fabric(link.latency, link.bandwidth, broadcast=Broadcast.INDEPENDENT)
    node = replace(machine, gpu=plan.model.devices[0], node=alone)
    steps = forecast(routine, (32768, 32768), node, 4, nb=1024).seconds
    print(f"n = 32768 on 4 GPUs: {programs:.4f} s by programs, {steps:.4f} s by steps")
    assert abs(steps / programs - 1) < 0.05
    print("both predictions agree")


def main() -> int:
    parser = argparse.ArgumentParser(description="A factorization on a large machine.")
    parser.add_argument("--routine", choices=["lu", "cholesky", "qr"], default="lu")
    parser.add_argument("--n", type=int, default=1_000_000, help="order of the matrix")
    parser.add_argument("--gpus", type=int, default=1024)
    parser.add_argument("--machine", default="dgx-h200-x128", help="a name, or a TOML file")
    parser.add_argument("--plot", type=Path, help="draw how it scales: .svg, .png or .pdf")
    arguments = parser.parse_args()
    machine, shape = read_machine(arguments.machine), (arguments.n, arguments.n)
    compare_with_programs(arguments.routine, machine)

    print()
    print(forecast(arguments.routine, shape, machine, arguments.gpus).explain())
    print()
    for rule in (Broadcast.DIRECT, Broadcast.FIRST, Broadcast.TREE, Broadcast.PIPELINE):
        changed = replace(machine, node=replace(machine.node, broadcast=rule))
        found = forecast(arguments.routine, shape, changed, arguments.gpus)
        print(f"panels inside a node {rule:<9} {found.seconds:8.2f} s, bound by {found.bound}")
    if arguments.plot:
        rows = strong_scaling(arguments.routine, shape, machine, arguments.gpus)
        draw_scaling(rows, arguments.plot)
        print(f"written to {arguments.plot}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
