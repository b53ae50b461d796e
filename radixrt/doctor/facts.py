"""`Facts`: the results of the probes of a machine, as plain values, so that advice is a pure function of them."""

from __future__ import annotations

from dataclasses import dataclass, field

from radixrt.doctor.model import ModelNeeds
from radixrt.doctor.roles import RoleLayout

GIB = 1 << 30


@dataclass(frozen=True)
class Gpu:
    """A device as torch sees it; memory in bytes."""

    name: str
    capability: tuple[int, int]
    memory_total: int
    memory_free: int


@dataclass(frozen=True)
class Tool:
    """A program on the PATH; `version` is None if the program did not print one."""

    path: str
    version: str | None = None


@dataclass(frozen=True)
class CacheFolder:
    """A cache folder for kernels, models or grammars. `size` in bytes, 0 if the folder does not exist yet."""

    what: str
    path: str
    size: int
    writable: bool


@dataclass(frozen=True)
class Disk:
    """Measured speed of the disk that has a folder; rates in bytes a second, `free` in bytes."""

    folder: str
    free: int
    write_rate: float
    read_rate: float


@dataclass(frozen=True)
class Facts:
    """Results of the probes. None means "there is none", or "not known" if `unknown` has an entry for it.

    Attributes:
        device, attention_backend: the requested values of the options of these names.
        ranks: the requested number, tp * pp, of each replica.
        memory_left: bytes that processes can still allocate: `memory_free`, or less in a limited control group.
        driver: version of the NVIDIA driver.
        driver_gpus: devices as the driver lists them, e.g. "NVIDIA H200, 143771 MiB".
        torch, torch_cuda: version of torch, and version of CUDA for which torch was built.
        cuda_error: why torch cannot use CUDA although it was built for CUDA.
        cuda_home: folder of the CUDA toolkit, by the environment.
        nvcc, compiler, ninja: the tools with which kernels are built.
        packages: versions of Python packages; None for missing packages.
        broken: packages that are installed and do not import, with the reason.
        cpu_kernels: "" if the compiled CPU kernels load, otherwise the reason; None if torch is missing.
        kernel_features: instructions of the processor that the compiled CPU kernels use.
        kernels_prebuilt: this installation has brought them; otherwise they were compiled for this machine.
        threads: threads with which a ModelRunner computes on the CPU, without --num-threads.
        flashinfer_kernels: bytes of FlashInfer's compiled kernels on disk.
        default_model: the embedded default model is installed.
        installer: how this system installs its own packages: apt-get, dnf, apk, zypper, pacman.
        bandwidth: bytes a second at which "cpu" and "cuda" read their memory; empty where no model was named.
        checkpoint: why the tensors of the model's folder do not fit its config.json; "" if they do.
        disk: the disk that was to be measured; None if none was named.
        model: needs of the requested model; None if no model was named.
        layout: the requested replicas with roles; None if no roles were named.
        unknown: facts that no probe could determine, each with the reason.
    """

    device: str = "auto"
    attention_backend: str = "auto"
    radixrt: str = ""
    python: str = ""
    system: str = ""
    cpu: str = ""
    cpu_features: tuple[str, ...] = ()
    cores: int = 0
    memory_total: int = 0
    memory_free: int = 0
    memory_left: int = 0
    driver: str | None = None
    driver_gpus: tuple[str, ...] = ()
    torch: str | None = None
    torch_cuda: str | None = None
    gpus: tuple[Gpu, ...] = ()
    cuda_error: str | None = None
    cuda_home: str | None = None
    nvcc: Tool | None = None
    compiler: Tool | None = None
    ninja: Tool | None = None
    packages: dict[str, str | None] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)
    cpu_kernels: str | None = None
    kernel_features: tuple[str, ...] = ()
    kernels_prebuilt: bool = False
    threads: int = 0
    flashinfer_kernels: int = 0
    default_model: bool = False
    caches: tuple[CacheFolder, ...] = ()
    installer: str | None = None
    bandwidth: dict[str, int] = field(default_factory=dict)
    checkpoint: str = ""
    disk: Disk | None = None
    model: ModelNeeds | None = None
    layout: RoleLayout | None = None
    ranks: int = 1
    unknown: dict[str, str] = field(default_factory=dict)

    def failure(self, package: str) -> str | None:
        """Return why an installed package cannot be imported; None if the import works or the package is missing."""
        return self.broken.get(package) or self.unknown.get(package)

    @property
    def device_memory(self) -> int:
        """Free bytes of the device that the engine would run on; of the GPU that has least, where there are several."""
        return min(gpu.memory_free for gpu in self.gpus) if self.uses_cuda else self.memory_free

    @property
    def uses_cuda(self) -> bool:
        """True if the engine would run on CUDA here."""
        return self.device != "cpu" and bool(self.gpus)
