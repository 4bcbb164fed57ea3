"""What notebooks show of machines: clusters, workers, profiles, models."""

from __future__ import annotations

from collections.abc import Mapping

from hetero_la.pictures.html import Table, html
from hetero_la.scheduler.cluster.cluster import Cluster
from hetero_la.scheduler.machine.cluster_model import ClusterModel, Fabric
from hetero_la.scheduler.machine.device import DeviceModel
from hetero_la.scheduler.machine.model import DaskCosts, LinkModel, MachineModel
from hetero_la.scheduler.machine.profile import Profile
from hetero_la.scheduler.placement.workers import WorkerInfo, kinds_text
from hetero_la.tiles.arrays.counted import counted, in_bytes, in_seconds
from hetero_la.tiles.arrays.displayed import display
from hetero_la.tiles.storage.tile_sizes import sizes_text


@display.register
def _(cluster: Cluster) -> str:
    size = cluster.size
    facts = {
        "workers": kinds_text(size.gpus, size.virtual_gpus, size.cpus),
        "each CPU worker": counted(size.blas_threads, "BLAS thread"),
        "status": cluster.status.name,
        "runs": cluster.runs_link if cluster.healthy else "",
        "dashboard": cluster.dashboard_link if cluster.healthy else "",
        "options": ", ".join(f"{name} = {value}" for name, value in cluster.options.items()),
    }
    rows = []
    for name, spec in cluster.worker_spec.items():
        device, worker = spec["options"]["hetero_device"], cluster.workers.get(name)
        rows.append((str(name), device.kind, worker.status.name if worker else "closed"))
    return html("Cluster in this process", facts, Table(("worker", "kind", "status"), rows))


@display.register
def _(worker: WorkerInfo) -> str:
    facts = {
        "computes on": worker.role, "runs in": worker.place, "address": worker.address,
        "may hold": in_bytes(worker.memory) if worker.memory else "",
        "without NCCL": worker.no_nccl,
    }  # fmt: skip
    return html(f"Worker {worker.name}", facts)


@display.register
def _(profile: Profile) -> str:
    machine = profile.machine
    cores, gpus = counted(machine["cores"], "core"), counted(len(machine["gpus"]), "GPU")
    facts = {
        "machine": f"{machine['cpu']}, {cores}; {gpus}",
        "measured": profile.measured,
        "Dask": _dask_text(profile.dask),
    }
    devices = [
        (
            device.title, device.model.dtype, _rate(device.model.gemm_rate),
            str(len(device.model.rates.tables)), f"{device.model.rates.spread:.1%}",
            "no: the machine was busy" if device.disturbed else "yes",
        )
        for device in profile.devices
    ]  # fmt: skip
    tunings = [
        (
            f"{t.routine} of {t.m} x {t.n}", t.dtype, t.workers, sizes_text(t.nb),
            str(t.lookahead), in_seconds(t.seconds),
        )
        for t in profile.tunings
    ]  # fmt: skip
    tuned = Table(("tuned", "dtype", "workers", "nb", "look-ahead", "took"), tunings)
    head = ("device", "dtype", "products", "kernels", "spread", "used by plans")
    return html("Profile of a machine", facts, Table(head, devices), _links(profile.links), tuned)


def _dask_text(costs: DaskCosts) -> str:
    return f"{in_seconds(costs.start)} for a run, {in_seconds(costs.hop)} from task to task"


def _rate(flops: float) -> str:
    return f"{flops / 1e9:,.0f} Gflop/s"


def _links(links: Mapping[str, LinkModel]) -> Table:
    rows = [
        (name.replace("_", " "), in_seconds(link.latency), f"{link.bandwidth / 1e9:.3g} GB/s")
        for name, link in links.items()
    ]
    return Table(("link", "latency", "bandwidth"), rows)


@display.register
def _(model: MachineModel) -> str:
    names = [worker.name for worker in model.workers] or map(str, range(len(model.devices)))
    rows = [
        (name, device.kind, device.dtype, _rate(device.gemm_rate))
        for name, device in zip(names, model.devices, strict=True)
    ]
    own = {"host to GPU": model.host_link, "GPU to GPU": model.peer_link}
    facts = {"measured": model.measured or "no: nominal figures", "Dask": _dask_text(model.dask)}
    devices = Table(("worker", "kind", "dtype", "products"), rows)
    return html("Machine model", facts, devices, _links({**own, **model.links}))


@display.register
def _(device: DeviceModel) -> str:
    facts = {
        "products": f"{_rate(device.gemm_rate)} in {device.dtype}",
        "a call": in_seconds(device.call_seconds),
        "measured kernels": ", ".join(table.kind for table in device.rates.tables),
    }
    return html(f"Model of a {device.kind.upper()}", facts)


@display.register
def _(machine: ClusterModel) -> str:
    facts = {
        "size": f"{counted(machine.nodes, 'node')} of {counted(machine.gpus_per_node, 'GPU')}",
        "each GPU": f"{_rate(machine.gpu.gemm_rate)} in products, {in_bytes(int(machine.memory))}",
        "in a node": _fabric(machine.node),
        "between nodes": _fabric(machine.network) if machine.nodes > 1 else "",
    }
    return html(machine.name, facts)


def _fabric(fabric: Fabric) -> str:
    links = f"{counted(fabric.links, 'link')} of {fabric.bandwidth / 1e9:.3g} GB/s"
    return f"{links}, {in_seconds(fabric.latency)}, broadcast {fabric.broadcast.value}"
