"""Accelerators that `plan` knows: memory, peak speed and links, each figure with the place it comes from.

Peaks are dense (no 2:4 sparsity) bfloat16 with float32 accumulation. Memory is what torch reports as the
device's total capacity, which is less than the figure on the box. Link speeds are of one direction. MFU is
the share of the peak that training reaches, as a low and a high figure: the widest assumption of a plan,
so its source stands beside it.
"""

from __future__ import annotations

from dataclasses import dataclass

from pangu_hif8.errors import UserError

GIB = 1024**3
# nccl-tests, 8 GPUs of one node, of the link's one-direction figure: A100 235 of 300 GB/s (78%), MI300X 313
# of 448 (70%). stas00/ml-engineering, network/README.md.
LINK_EFFICIENCY = 0.7
SMALL_ALL_REDUCE_S = {"node": 30e-6, "network": 100e-6}  # latency of a few hundred bytes, assumed


@dataclass(frozen=True)
class Gpu:
    """One accelerator. Bandwidths in bytes per second, peak in FLOP per second."""

    name: str
    memory_gib: float
    peak_bf16: float
    memory_bandwidth: float
    link_bandwidth: float
    network_bandwidth: float
    mfu_low: float
    mfu_high: float
    source: str
    mfu_source: str

    @property
    def memory(self) -> float:
        """Bytes that torch can see."""
        return self.memory_gib * GIB


_MOSAIC = "mosaicml/llm-foundry, scripts/train/benchmarking/README.md"
_UNCOMPILED = "low: the share of that which the published run reached on its GPUs"
_ADA = "high: LLMQ (arXiv 2512.15306) reports about 50% on RTX 4090, with kernels written for it"

GPUS: dict[str, Gpu] = {
    "h100": Gpu(
        name="NVIDIA H100 SXM 80 GB",
        memory_gib=79.1,
        peak_bf16=989.4e12,
        memory_bandwidth=3.35e12,
        link_bandwidth=450e9,
        network_bandwidth=50e9,
        mfu_low=0.34,
        mfu_high=0.42,
        source="NVIDIA H100 data sheet (1,979 TFLOP/s with sparsity; NVLink 900 GB/s both ways); "
        "DGX H100: 8 x 400 Gb/s",
        mfu_source=f"high: 41.95% for 1.3 B parameters, sequence 1,024, 8 GPUs ({_MOSAIC}); "
        "low: what the published run implies (33.9%)",
    ),
    "h200": Gpu(
        name="NVIDIA H200 SXM 141 GB",
        memory_gib=139.7,
        peak_bf16=989.4e12,
        memory_bandwidth=4.8e12,
        link_bandwidth=450e9,
        network_bandwidth=50e9,
        mfu_low=0.34,
        mfu_high=0.42,
        source="NVIDIA H200 data sheet (compute as H100; NVLink 900 GB/s both ways); 8 x 400 Gb/s a node",
        mfu_source="taken from H100, whose compute it shares",
    ),
    "a100-80g": Gpu(
        name="NVIDIA A100 SXM 80 GB",
        memory_gib=79.2,
        peak_bf16=312e12,
        memory_bandwidth=2.039e12,
        link_bandwidth=300e9,
        network_bandwidth=25e9,
        mfu_low=0.48,
        mfu_high=0.60,
        source="NVIDIA A100 data sheet (NVLink 600 GB/s both ways); DGX A100: 8 x 200 Gb/s",
        mfu_source=f"high: 60.15% for 1.3 B parameters, sequence 1,024, 8 GPUs ({_MOSAIC}); {_UNCOMPILED}",
    ),
    "a100-40g": Gpu(
        name="NVIDIA A100 SXM 40 GB",
        memory_gib=39.4,
        peak_bf16=312e12,
        memory_bandwidth=1.555e12,
        link_bandwidth=300e9,
        network_bandwidth=25e9,
        mfu_low=0.44,
        mfu_high=0.55,
        source="NVIDIA A100 data sheet (NVLink 600 GB/s both ways); DGX A100: 8 x 200 Gb/s",
        mfu_source=f"high: 54.8% for 2.7 B parameters ({_MOSAIC}); {_UNCOMPILED}",
    ),
    "mi300x": Gpu(
        name="AMD Instinct MI300X 192 GB",
        memory_gib=191.0,
        peak_bf16=1307.4e12,
        memory_bandwidth=5.3e12,
        link_bandwidth=448e9,
        network_bandwidth=50e9,
        mfu_low=0.19,
        mfu_high=0.32,
        source="AMD Instinct MI300X data sheet (Infinity Fabric 7 links x 64 GB/s one way); "
        "8 x 400 Gb/s a node",
        mfu_source="low: H100's low figure, less the 1.36 times by which an H200 was faster at training "
        "8 B parameters (alpharomercoma/MI300X-vs-H200); high: H100's high figure at the same FLOP/s",
    ),
    "ascend-910b": Gpu(
        name="Huawei Ascend 910B2 64 GB",
        memory_gib=60.9,
        peak_bf16=353e12,
        memory_bandwidth=1.6e12,
        link_bandwidth=196e9,
        network_bandwidth=25e9,
        mfu_low=0.30,
        mfu_high=0.40,
        source="CANN platform files (24 cube cores at 1.8 GHz); HCCS 392 GB/s both ways and 8 x 200 Gb/s a "
        "node assumed, as in Atlas 800T A2",
        mfu_source="low: 30.0% on 6,000 of them (Pangu Ultra MoE, arXiv 2505.04519); high: assumed",
    ),
    "l40s": Gpu(
        name="NVIDIA L40S 48 GB",
        memory_gib=44.4,
        peak_bf16=362e12,
        memory_bandwidth=864e9,
        link_bandwidth=31e9,
        network_bandwidth=3.1e9,
        mfu_low=0.25,
        mfu_high=0.45,
        source="NVIDIA L40S data sheet (733 TFLOP/s with sparsity; PCIe 4.0 x16, no NVLink); "
        "200 Gb/s a node of 8 assumed",
        mfu_source=_ADA,
    ),
    "rtx-4090": Gpu(
        name="NVIDIA GeForce RTX 4090 24 GB",
        memory_gib=23.5,
        peak_bf16=165.2e12,
        memory_bandwidth=1.008e12,
        link_bandwidth=31e9,
        network_bandwidth=1.6e9,
        mfu_low=0.30,
        mfu_high=0.50,
        source="NVIDIA Ada architecture white paper, appendix A (float32 accumulation; PCIe 4.0 x16, "
        "no peer-to-peer); 100 Gb/s a node of 8 assumed",
        mfu_source=_ADA,
    ),
}


def get_gpu(name: str) -> Gpu:
    """Look an accelerator up; case, spaces and underscores don't matter. Raises UserError with the names."""
    gpu = GPUS.get(name.lower().replace(" ", "-").replace("_", "-")) if isinstance(name, str) else None
    if gpu is None:
        raise UserError(f"unknown GPU {name!r}; valid: {', '.join(GPUS)}")
    return gpu


@dataclass(frozen=True)
class Cluster:
    """`nodes` machines of `gpus` accelerators each. Raises UserError for counts below 1."""

    gpu: Gpu
    gpus: int
    nodes: int = 1

    def __post_init__(self) -> None:
        for name, value in (("gpus", self.gpus), ("nodes", self.nodes)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise UserError(f"{name} must be a whole number from 1, got {value!r}")

    @property
    def ranks(self) -> int:
        """Processes, one a GPU."""
        return self.gpus * self.nodes

    @property
    def bus_bandwidth(self) -> float:
        """Bytes per second of a large collective: a node's links, or its network cards where slower."""
        link = self.gpu.link_bandwidth
        slowest = link if self.nodes == 1 else min(link, self.gpu.network_bandwidth * self.gpus)
        return LINK_EFFICIENCY * slowest

    def all_reduce_seconds(self, num_bytes: float) -> float:
        """Time of a large all-reduce: 2 (n-1)/n bytes through each rank (nccl-tests, doc/PERFORMANCE.md)."""
        return 2 * self.gather_seconds(num_bytes)

    def gather_seconds(self, num_bytes: float) -> float:
        """Time of an all-gather or reduce-scatter of `num_bytes` in all: (n-1)/n through each rank."""
        return num_bytes * (self.ranks - 1) / self.ranks / self.bus_bandwidth

    @property
    def small_all_reduce_seconds(self) -> float:
        """Time of an all-reduce of a few hundred bytes: latency alone. Zero on one rank."""
        if self.ranks == 1:
            return 0.0
        return SMALL_ALL_REDUCE_S["node" if self.nodes == 1 else "network"]
