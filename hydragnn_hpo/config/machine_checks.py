"""Checks of a machine profile: values that contradict each other, and misspelt variables.

No library complains of a variable it does not know: a wrong letter only makes a job slow.

Source: docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html; rocm.docs.amd.com (RCCL, MIOpen,
ROCr); libfabric's fi_cxi(7), fi_mr(3) and fabric(7); pytorch.org/docs (torch_nccl_environment);
oneCCL and Level Zero references. Checked 2026-11-21.
"""

import difflib
import re
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BeforeValidator

from hydragnn_hpo.config.path_templates import FIELD, FOLDER_FIELDS

if TYPE_CHECKING:
    from hydragnn_hpo.config.machine import ProfileConfig


def _refuse_steps(backend: object) -> object:
    if backend == "steps":
        raise ValueError(
            "the backend 'steps' is gone: use 'slurm', with launcher = \"srun\" in [command] for "
            "commands that need Slurm's PMI."
        )
    return backend


BackendName = Annotated[Literal["local", "slurm", "mpiexec", "ray"], BeforeValidator(_refuse_steps)]
"""What runs trials."""


def cores_of(text: str) -> tuple[int, ...]:
    """Parse a list of cores such as ``1-7,65-71``.

    Returns:
        Numbers of the cores in the order of the list; empty for an empty text.

    Raises:
        ValueError: the text is no such list, runs backwards, or names a core twice.
    """
    cores: list[int] = []
    for part in filter(None, text.split(",")):
        if not (match := re.fullmatch(r"(\d{1,5})(?:-(\d{1,5}))?", part.strip())):
            raise ValueError(f"'{text}' is no list of cores: write it as in 1-7,65-71.")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise ValueError(f"'{part.strip()}' in '{text}' runs backwards: write {last}-{first}.")
        cores += range(first, last + 1)
    if len(set(cores)) != len(cores):
        raise ValueError(f"'{text}' names a core twice: name each once.")
    return tuple(cores)


_NAMES = {
    "NCCL_": """
        SOCKET_IFNAME SOCKET_FAMILY SOCKET_RETRY_CNT SOCKET_RETRY_SLEEP_MSEC SOCKET_NTHREADS
        NSOCKS_PERTHREAD CROSS_NIC NET NET_PLUGIN TUNER_PLUGIN PROFILER_PLUGIN DEBUG DEBUG_SUBSYS
        DEBUG_FILE DEBUG_TIMESTAMP_FORMAT P2P_DISABLE P2P_LEVEL P2P_DIRECT_DISABLE P2P_PXN_LEVEL
        SHM_DISABLE BUFFSIZE NTHREADS MAX_NCHANNELS MIN_NCHANNELS MAX_CTAS MIN_CTAS CHECKS_DISABLE
        LAUNCH_MODE NET_GDR_LEVEL NET_GDR_READ NET_GDR_C2C NET_SHARED_BUFFERS NET_SHARED_COMMS
        NET_FORCE_FLUSH ALGO PROTO COLLNET_ENABLE COLLNET_NODE_THRESHOLD TOPO_FILE TOPO_DUMP_FILE
        GRAPH_FILE GRAPH_DUMP_FILE NVB_DISABLE PXN_DISABLE GRAPH_REGISTER LOCAL_REGISTER
        SET_STACK_SIZE GRAPH_MIXING_SUPPORT DMABUF_ENABLE CUMEM_ENABLE CUMEM_HOST_ENABLE NVLS_ENABLE
        IGNORE_CPU_AFFINITY CONF_FILE COMM_ID COMM_BLOCKING RAS_ENABLE RAS_ADDR
        NCHANNELS_PER_NET_PEER OOB_NET_ENABLE OOB_NET_IFNAME GDRCOPY_ENABLE IB_HCA IB_TIMEOUT
        IB_RETRY_CNT IB_GID_INDEX IB_ADDR_FAMILY IB_SL IB_TC IB_DISABLE IB_CUDA_SUPPORT
        IB_PCI_RELAXED_ORDERING IB_ADAPTIVE_ROUTING IB_QPS_PER_CONNECTION IB_MERGE_NICS
        IB_SPLIT_DATA_ON_QPS IB_ECE_ENABLE
    """,
    "RCCL_": """
        MSCCL_ENABLE MSCCLPP_ENABLE KERNEL_COLL_TRACE_ENABLE
    """,
    "TORCH_NCCL_": """
        ASYNC_ERROR_HANDLING BLOCKING_WAIT DUMP_ON_TIMEOUT TRACE_BUFFER_SIZE HIGH_PRIORITY
        ENABLE_MONITORING HEARTBEAT_TIMEOUT_SEC AVOID_RECORD_STREAMS DESYNC_DEBUG NAN_CHECK
        ENABLE_TIMING USE_COMM_NONBLOCKING CUDA_EVENT_CACHE COORD_CHECK_MILSEC
        WAIT_TIMEOUT_DUMP_MILSEC RETHROW_CUDA_ERRORS
    """,
    "FI_": """
        PROVIDER LOG_LEVEL LOG_PROV LOG_SUBSYS MR_CACHE_MONITOR MR_CACHE_MAX_SIZE MR_CACHE_MAX_COUNT
        MR_CUDA_CACHE_MONITOR_ENABLED MR_ROCR_CACHE_MONITOR_ENABLED MR_ZE_CACHE_MONITOR_ENABLED HMEM
        HMEM_CUDA_USE_GDRCOPY HMEM_CUDA_USE_DMABUF HMEM_ROCR_USE_DMABUF HMEM_DISABLE_P2P
        UNIVERSE_SIZE
    """,
    "FI_CXI_": """
        ATS ATS_MLOCK_MODE COMPAT CQ_FILL_PERCENT CTRL_RX_EQ_MAX_SIZE DEFAULT_CQ_SIZE
        DEFAULT_TX_SIZE DEFAULT_RX_SIZE DEFAULT_VNI DEVICE_NAME DISABLE_CQ_HUGETLB
        DISABLE_DMABUF_CUDA DISABLE_DMABUF_ROCR DISABLE_EQ_HUGETLB DISABLE_HMEM_DEV_REGISTER
        DISABLE_HOST_REGISTER DISABLE_NON_INJECT_MSG_IDC DISABLE_NON_INJECT_RMA_IDC
        ENABLE_UNRESTRICTED_END_RO EQ_ACK_BATCH_SIZE FC_RETRY_USEC_DELAY FORCE_DEV_REG_COPY
        FORCE_ODP LLRING_MODE MR_CACHE_EVENTS_DISABLE_POLL_NSECS MSG_LOSSLESS MSG_OFFLOAD ODP
        OFLOW_BUF_COUNT OFLOW_BUF_MAX_CACHED OFLOW_BUF_MIN_POSTED OFLOW_BUF_SIZE OPTIMIZED_MRS
        RDZV_EAGER_SIZE RDZV_GET_MIN RDZV_PROTO RDZV_THRESHOLD REQ_BUF_MAX_CACHED REQ_BUF_MIN_POSTED
        REQ_BUF_SIZE RX_MATCH_MODE SAFE_DEVMEM_COPY_THRESHOLD SW_RX_TX_INIT_MAX TELEMETRY WEAK_FENCE
    """,
    "MIOPEN_": """
        USER_DB_PATH CUSTOM_CACHE_DIR SYSTEM_DB_PATH DISABLE_CACHE FIND_MODE FIND_ENFORCE
        ENABLE_LOGGING LOG_LEVEL COMPILE_PARALLEL_LEVEL
    """,
    "HSA_": """
        FORCE_FINE_GRAIN_PCIE XNACK ENABLE_SDMA ENABLE_PEER_SDMA NO_SCRATCH_RECLAIM
        OVERRIDE_GFX_VERSION
    """,
    "CCL_": """
        PROCESS_LAUNCHER ATL_TRANSPORT ALLREDUCE ALLREDUCE_SCALEOUT BCAST KVS_MODE
        KVS_CONNECTION_TIMEOUT KVS_GET_TIMEOUT KVS_USE_MPI_RANKS KVS_IFACE CONFIGURATION
        CONFIGURATION_PATH ZE_CACHE_OPEN_IPC_HANDLES_THRESHOLD LOG_LEVEL WORKER_AFFINITY
        WORKER_COUNT ATL_SYNC_COLL OP_SYNC ZE_IPC_EXCHANGE
    """,
    "ZE_": """
        AFFINITY_MASK FLAT_DEVICE_HIERARCHY ENABLE_PCI_ID_DEVICE_ORDER
    """,
    "OMP_": """
        NUM_THREADS PROC_BIND PLACES STACKSIZE SCHEDULE DYNAMIC WAIT_POLICY
    """,
    "MPICH_": """
        GPU_SUPPORT_ENABLED OFI_NIC_POLICY SMP_SINGLE_COPY_MODE
    """,
    "": """
        CUDA_VISIBLE_DEVICES HIP_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES GLOO_SOCKET_IFNAME
        GPU_MAX_HW_QUEUES ZEX_NUMBER_OF_CCS MKL_NUM_THREADS PYTORCH_ALLOC_CONF
        PYTORCH_CUDA_ALLOC_CONF PYTORCH_HIP_ALLOC_CONF CUDA_DEVICE_MAX_CONNECTIONS CUDA_DEVICE_ORDER
    """,
}
"""Names that libraries read, by what they begin with."""

KNOWN = frozenset(prefix + name for prefix, names in _NAMES.items() for name in names.split())

TRAPS = {
    "FI_CXI_RDV_PROTO": "FI_CXI_RDZV_PROTO",
    "FI_CXI_RDV_THRESHOLD": "FI_CXI_RDZV_THRESHOLD",
    "FI_CXI_RDV_GET_MIN": "FI_CXI_RDZV_GET_MIN",
    "FI_CXI_RDV_EAGER_SIZE": "FI_CXI_RDZV_EAGER_SIZE",
    "FI_CXI_OVFLOW_BUF_SIZE": "FI_CXI_OFLOW_BUF_SIZE",
    "NCCL_NET_GDRLEVEL": "NCCL_NET_GDR_LEVEL",
    "NCCL_SOCKET_IFACE": "NCCL_SOCKET_IFNAME",
}
"""Names that scripts on the web write, and that nothing reads; with what was meant."""

GIVEN_BY_US = frozenset(
    ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"]
)
"""Names that every rank gets a value of its own for."""

DEVICES_OF = {
    "cpu": {""},
    "cuda": {"", "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"},
    "xpu": {"", "ZE_AFFINITY_MASK"},
}
"""Variables by which a process is told its devices, by what torch calls them."""


def misspelt(name: str) -> str | None:
    """Return what was certainly meant by a name that nothing reads; None of any other."""
    if name.startswith("MIOOPEN_"):
        return name.replace("MIOOPEN_", "MIOPEN_", 1)
    return TRAPS.get(name)


def resembles(name: str) -> str | None:
    """Return a known name that an unknown one is nearly, if there is one."""
    if name in KNOWN:
        return None
    close = difflib.get_close_matches(name, sorted(KNOWN), n=1, cutoff=0.92)
    return close[0] if close else None


def find_errors(profile: "ProfileConfig") -> Iterator[str]:
    """Yield what must be mended before the profile is used, a sentence each."""
    slots, layout = profile.slots_per_host, profile.layout
    for key in ("cores_of_slot", "device_of_slot", "numa_of_slot", "nic_of_slot"):
        count = len(getattr(layout, key))
        if count not in (0, slots):
            yield (
                f"layout.{key} describes {count} slots, slots_per_host is {slots}: make them equal."
            )
    if profile.slot_order and sorted(profile.slot_order) != list(range(slots)):
        yield (
            f"slot_order names slots {list(profile.slot_order)}, the host has {slots}: name each "
            f"from 0 to {slots - 1} once."
        )
    sizes = [limit.hosts for limit in profile.limits]
    if sizes != sorted(set(sizes)):
        yield f"limits are of {sizes} hosts: begin with the fewest, name each once."
    times = Counter(layout.device_of_slot)
    if len(set(times.values())) > 1:
        device, most = times.most_common(1)[0]
        yield (
            f"layout.device_of_slot: device {device} has {most} slots, others have fewer: "
            "name each once, or each equally often to share them."
        )
    yield from _find_wrong_variables(profile)
    yield from _find_wrong_folders(profile)
    yield from _find_wrong_cores(profile)


def find_doubts(profile: "ProfileConfig") -> Iterator[str]:
    """Yield what is probably not meant, a sentence each."""
    for place, name, _ in _variables(profile):
        if meant := resembles(name):
            yield f"{place}.{name}: no library that we know reads it. Did you mean {meant}?"
    layout = profile.layout
    for slot, text in enumerate(layout.cores_of_slot):
        if layout.cores and (beyond := [c for c in cores_of(text) if c >= layout.cores]):
            yield (
                f"layout.cores_of_slot: core {beyond[0]} of slot {slot} is a second thread of a "
                f"core, or is not there: the host has {layout.cores}."
            )
    for nic in dict.fromkeys(layout.nic_of_slot):
        if nic not in profile.interfaces:
            yield f"layout.nic_of_slot: '{nic}' is not among interfaces."
    for name, text in profile.rank.folders.items():
        if "{trial}" not in text:
            yield f"rank.folders.{name}: trials share it, as it has no {{trial}} in it."
    batch = profile.batch
    if batch.scheduler == "none" and (batch.directives or batch.queue):
        yield "batch: there are directives, but no scheduler that would read them."
    if batch.scheduler == "pbs" and profile.backend == "slurm":
        yield "batch.scheduler is 'pbs', but the backend 'slurm' needs Slurm."
    if batch.scheduler == "pbs" and any(text.startswith("--") for text in batch.directives):
        yield "batch.directives: PBS has no options that begin with --."


def _variables(profile: "ProfileConfig") -> Iterator[tuple[str, str, str]]:
    """Yield place, name and value of each variable that is set."""
    rank = profile.rank
    tables = {
        "rank.environment": rank.environment,
        "rank.one_host": rank.one_host,
        "rank.many_hosts": rank.many_hosts,
        "rank.folders": rank.folders,
        "batch.environment": profile.batch.environment,
    }
    for place, table in tables.items():
        yield from ((place, name, value) for name, value in table.items())


def _find_wrong_variables(profile: "ProfileConfig") -> Iterator[str]:
    for place, name, value in _variables(profile):
        if meant := misspelt(name):
            yield f"{place}.{name}: nothing reads this name; write {meant}."
        elif name in GIVEN_BY_US:
            yield f"{place}.{name}: each rank gets its own: leave it out."
        elif any(name in shown for shown in DEVICES_OF.values()):
            yield f"{place}.{name}: it would show all ranks the same devices: use rank.visible."
        elif name == "FI_MR_CACHE_MONITOR" and value == "memhooks":
            yield f"{place}.{name}: memhooks deadlocks with RCCL: write kdreg2 or userfaultfd."
    rank = profile.rank
    if rank.accelerator and rank.visible not in DEVICES_OF[rank.accelerator]:
        yield f"rank.visible: {rank.visible} does not show devices of '{rank.accelerator}'."


def _find_wrong_folders(profile: "ProfileConfig") -> Iterator[str]:
    for name, text in profile.rank.folders.items():
        odd = [word for word in FIELD.findall(text) if word not in FOLDER_FIELDS]
        if not odd and re.search(r"[{}]", FIELD.sub("", text)):
            odd = [text]
        for word in odd:
            known = ", ".join(f"{{{known}}}" for known in sorted(FOLDER_FIELDS))
            yield f"rank.folders.{name}: '{word}' is not filled in. Known: {known}."
        if not text.startswith(("/", "{scratch}")):
            yield f"rank.folders.{name}: begin it with {{scratch}} or /."


def _find_wrong_cores(profile: "ProfileConfig") -> Iterator[str]:
    reserved = set(cores_of(profile.layout.reserved))
    owner: dict[int, int] = {}
    for slot, text in enumerate(profile.layout.cores_of_slot):
        cores = cores_of(text)
        if not cores:
            yield f"layout.cores_of_slot: slot {slot} has no cores: give it one at least."
        if kept := sorted(reserved.intersection(cores)):
            yield (
                f"layout.cores_of_slot: core {kept[0]} of slot {slot} is reserved: take it out "
                "there or here."
            )
        if taken := [core for core in cores if core in owner]:
            yield (
                f"layout.cores_of_slot: slots {owner[taken[0]]} and {slot} both have core "
                f"{taken[0]}: give each its own."
            )
        owner |= {core: slot for core in cores if core not in owner}
