"""Probes: what this host, this toolchain and this process's environment are, as factors.

Each probe is one small function that names its source. One that cannot read its source raises FactorError: the
program is then uncacheable, and that is said; a factor is never dropped. torch is never imported here: the module is
handed in by an adapter, so that versions are those of the module that runs, not of package metadata.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import re
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import blake3

from compcache.errors import FactorError
from compcache.factors import JsonValue, canonical, plain

PREFIXES = ("VLLM_", "TORCH", "TRITON_", "ATEN_", "OMP_", "XLA_", "LIBTPU_", "JAX_", "CUDA_", "AOT_INDUCTOR_")
NAMES = ("NVIDIA_TF32_OVERRIDE", "CC", "CXX")
PROGRAM_NAMES = ("CC", "CXX")

_REASONS: Mapping[str, str] = {
    "where files are; no part of a program": """
        VLLM_CACHE_ROOT VLLM_CONFIG_ROOT VLLM_ASSETS_CACHE VLLM_ASSETS_CACHE_MODEL_CLEAN VLLM_XLA_CACHE_PATH
        VLLM_DEBUG_DUMP_PATH VLLM_MODEL_REDIRECT_PATH VLLM_TUNED_CONFIG_FOLDER VLLM_FLASHINFER_AUTOTUNE_CACHE_DIR
        VLLM_MEDIA_CACHE VLLM_CUDA_COMPATIBILITY_PATH VLLM_NCCL_SO_PATH VLLM_LORA_RESOLVER_CACHE_DIR
        VLLM_RUST_FRONTEND_PATH VLLM_USE_MODELSCOPE VLLM_RPC_BASE_PATH
        TORCHINDUCTOR_CACHE_DIR TORCH_HOME TORCH_EXTENSIONS_DIR TORCH_COMPILE_DEBUG_DIR TRITON_CACHE_DIR TRITON_HOME
        TRITON_DUMP_DIR JAX_COMPILATION_CACHE_DIR XLA_PERSISTENT_CACHE_PATH CUDA_HOME CUDA_PATH CUDA_CACHE_PATH""",
    "where a process listens or connects": """
        VLLM_HOST_IP VLLM_PORT VLLM_LOOPBACK_IP VLLM_DP_MASTER_IP VLLM_DP_MASTER_PORT VLLM_USAGE_STATS_SERVER
        VLLM_NIXL_SIDE_CHANNEL_HOST VLLM_NIXL_SIDE_CHANNEL_PORT VLLM_MOONCAKE_BOOTSTRAP_PORT
        VLLM_P2P_SIDE_CHANNEL_HOST VLLM_P2P_SIDE_CHANNEL_PORT VLLM_EC_SIDE_CHANNEL_HOST VLLM_EC_SIDE_CHANNEL_PORT
        VLLM_RAY_DP_PLACEMENT_NODE_IPS VLLM_OBJECT_STORAGE_SHM_BUFFER_NAME MOONCAKE_REQUESTER_LOCAL_HOSTNAME""",
    "what is logged, shown or reported": """
        VLLM_LOGGING_LEVEL VLLM_LOGGING_PREFIX VLLM_LOGGING_STREAM VLLM_LOGGING_COLOR VLLM_LOGGING_CONFIG_PATH
        VLLM_CONFIGURE_LOGGING VLLM_LOG_STATS_INTERVAL VLLM_NO_USAGE_STATS VLLM_DO_NOT_TRACK
        VLLM_DEBUG_LOG_API_SERVER_RESPONSE VLLM_RINGBUFFER_WARNING_INTERVAL VLLM_PROCESS_NAME_PREFIX
        TORCH_LOGS TORCH_LOGS_OUT TORCH_LOGS_FORMAT TORCH_TRACE TORCH_CPP_LOG_LEVEL TORCH_SHOW_CPP_STACKTRACES""",
    "how long the engine waits, or how its processes are run": """
        VLLM_ENGINE_READY_TIMEOUT_S VLLM_ENGINE_ITERATION_TIMEOUT_S VLLM_RPC_TIMEOUT VLLM_HTTP_TIMEOUT_KEEP_ALIVE
        VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS VLLM_KEEP_ALIVE_ON_ENGINE_DEATH
        VLLM_ENABLE_V1_MULTIPROCESSING VLLM_WORKER_MULTIPROC_METHOD VLLM_SERVER_DEV_MODE VLLM_ENABLE_STARTUP_PLAN
        VLLM_V1_OUTPUT_PROC_CHUNK_SIZE VLLM_ELASTIC_EP_SCALE_UP_LAUNCH VLLM_SKIP_MODEL_NAME_VALIDATION
        VLLM_SKIP_VERSION_SUFFIX VLLM_CPU_KVCACHE_SPACE VLLM_TRITON_JIT_WARMUP_NUM_THREADS
        VLLM_RANDOMIZE_DP_DUMMY_INPUTS VLLM_FORCE_AOT_LOAD TORCHINDUCTOR_COMPILE_THREADS""",
    "how requests' images, sounds and videos are fetched": """
        VLLM_IMAGE_FETCH_TIMEOUT VLLM_VIDEO_FETCH_TIMEOUT VLLM_AUDIO_FETCH_TIMEOUT VLLM_MEDIA_CACHE_MAX_SIZE_MB
        VLLM_MEDIA_CACHE_TTL_HOURS VLLM_MEDIA_FETCH_MAX_RETRIES VLLM_MEDIA_URL_ALLOW_REDIRECTS VLLM_MEDIA_CONNECTOR
        VLLM_MEDIA_LOADING_THREAD_COUNT VLLM_MAX_AUDIO_CLIP_FILESIZE_MB VLLM_MAX_AUDIO_DECODE_DURATION_S
        VLLM_MAX_AUDIO_DECODE_BYTES VLLM_MAX_AUDIO_PREPROCESS_WORKERS VLLM_MAX_EMBED_DECODE_BYTES
        VLLM_MAX_IMAGE_PIXELS VLLM_VIDEO_LOADER_BACKEND""",
    "which worker or device this process got; the device itself is a factor": """
        VLLM_RAY_BUNDLE_INDICES VLLM_RAY_PER_WORKER_GPUS CUDA_VISIBLE_DEVICES""",
    "plugins that are loaded are factors themselves, by digest": "VLLM_PLUGINS",
    "the thread count is a factor itself, where code bakes it in": "OMP_NUM_THREADS",
    "which of torch's own caches are on, and where they connect": """
        TORCHINDUCTOR_FX_GRAPH_CACHE TORCHINDUCTOR_FX_GRAPH_REMOTE_CACHE TORCHINDUCTOR_AUTOTUNE_REMOTE_CACHE
        TORCHINDUCTOR_BUNDLED_AUTOTUNE_REMOTE_CACHE TORCHINDUCTOR_AUTOGRAD_CACHE TORCHINDUCTOR_AUTOGRAD_REMOTE_CACHE
        TORCHINDUCTOR_REDIS_URL TORCHINDUCTOR_REDIS_HOST TORCHINDUCTOR_REDIS_PORT
        TORCH_DYNAMO_AUTOMATIC_DYNAMIC_LOCAL_PGO TORCH_DYNAMO_AUTOMATIC_DYNAMIC_REMOTE_PGO""",
    "names torch's profile of shapes, whose own key it is in": """
        TORCH_COMPILE_JOB_ID TORCH_COMPILE_STICKY_PGO_KEY TORCH_COMPILE_STICKY_PGO_READ
        TORCH_COMPILE_STICKY_PGO_WRITE""",
    "who launched this process, and its run": """
        TORCHELASTIC_RUN_ID TORCHELASTIC_ERROR_FILE TORCHELASTIC_RESTART_COUNT TORCHELASTIC_MAX_RESTARTS
        TORCHELASTIC_USE_AGENT_STORE TORCHELASTIC_SIGNALS_TO_HANDLE""",
}
EXCLUDED: Mapping[str, str] = {name: reason for reason, names in _REASONS.items() for name in names.split()}
"""Variables that are in no key, each with its reason (the environment group of design section 5)."""

_SECRET = re.compile(r"TOKEN\Z|SECRET|PASSW|CREDENTIAL|API_KEY|ACCESS_KEY|PRIVATE_KEY")
_OF_TOKENS = re.compile(r"TOKEN(?!IZ)")
_COUNT = re.compile(r"[-+]?\d{0,9}(\.\d{1,9})?|true|false|yes|no|on|off", re.IGNORECASE)
_LINK_HOST = re.compile(r"(?P<service>[A-Z0-9_]+)_SERVICE_HOST\Z")


def service_links(names: Iterable[str]) -> set[str]:
    """The Kubernetes service links among variable names.

    The kubelet injects ``X_SERVICE_HOST``, ``X_SERVICE_PORT``, ``X_PORT``, ``X_PORT_80_TCP_ADDR``, ... for every
    Service X of the namespace (kubernetes/pkg/kubelet/envvars); a Service named vllm-a gives ``VLLM_A_...``.
    Only names that belong to a ``..._SERVICE_HOST`` which is there too are taken for links.
    """
    names = set(names)
    links: set[str] = set()
    for host in names:
        match = _LINK_HOST.match(host)
        if match:
            tail = r"(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)\Z"
            link = re.compile(re.escape(match["service"]) + "_" + tail)
            links |= {name for name in names if link.match(name)}
    return links


def variables(
    inherited: Mapping[str, str], resolved: Mapping[str, JsonValue], ignored: Iterable[str] = ()
) -> dict[str, JsonValue]:
    """Environment variables as one factor: known ones by the engine's ``resolved`` value, others as ``inherited``.

    ``inherited`` is a copy of ``os.environ`` from when compcache was registered, early in a process. What the process
    was started with (``/proc/self/environ``) will not do: setproctitle, which vLLM calls, writes over it.

    Left out: EXCLUDED, ``ignored`` (COMPCACHE_KEY_IGNORE), service links, and secrets, which are never stored.
    """
    skipped = {*EXCLUDED, *ignored, *service_links(inherited)}
    found: dict[str, JsonValue] = {}
    for name, value in inherited.items():
        if name.startswith(PREFIXES) or name in NAMES:
            found[name] = os.path.basename(value) if name in PROGRAM_NAMES else value
    found.update({name: plain(value, name) for name, value in resolved.items()})
    return {n: v for n, v in sorted(found.items()) if n not in skipped and not _is_secret(n, v) and v is not None}


def _is_secret(name: str, value: JsonValue) -> bool:
    """Whether a variable may hold a secret, by its name.

    Tokens are also what a model reads (VLLM_MAX_TOKENS_PER_EXPERT_FP4_MOE): a number or a truth under such a name is
    a setting, and must not be left out of a key.
    """
    if _SECRET.search(name):
        return True
    return bool(_OF_TOKENS.search(name)) and not _COUNT.fullmatch(str(value))


def python_factors() -> dict[str, JsonValue]:
    """The interpreter and its extension ABI (kernels are extension modules)."""
    return {
        "python.version": platform.python_version(),
        "python.abi": str(sysconfig.get_config_var("SOABI")),
        "os.machine": f"{sys.platform} {platform.machine()}",
    }


def libc_factors() -> dict[str, JsonValue]:
    """glibc and libstdc++ as loaded: a kernel that was linked against a newer one does not load."""
    try:
        libc = os.confstr("CS_GNU_LIBC_VERSION") or "unknown"
    except (ValueError, OSError):
        libc = " ".join(platform.libc_ver()) or "unknown"
    return {"libc.version": libc, "libstdcxx.version": _loaded_libstdcxx()}


def _loaded_libstdcxx() -> str:
    """The file name behind ``libstdc++.so.6`` in this process's maps; torch has loaded it by the time this matters."""
    try:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise FactorError(f"cannot read which libstdc++ is loaded: {error}") from error
    paths = sorted(set(re.findall(r"/\S*libstdc\+\+\.so\.6\S*", maps)))
    return ",".join(Path(path).resolve().name for path in paths) or "none"


@functools.cache
def cpu_factors() -> Mapping[str, JsonValue]:
    """The CPU's feature list, as a digest: Inductor builds kernels with ``-march=native``
    (torch/_inductor/cpp_builder.py), so that code made on one CPU may use instructions that another lacks."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise FactorError(f"cannot read the CPU's features: {error}") from error
    match = re.search(r"^(?:flags|Features)\s*:\s*(.*)$", text, re.MULTILINE)
    if not match:
        raise FactorError("/proc/cpuinfo names no CPU features")
    model = re.search(r"^model name\s*:\s*(.*)$", text, re.MULTILINE)
    features = " ".join(sorted(set(match[1].split())))
    identity = re.findall(
        r"^(?:cpu family|model|stepping|CPU implementer|CPU part)\s*:.*$", text.split("\n\n")[0], re.M
    )
    tuned = "\n".join([features, *identity])  # -march=native also tunes for the model
    return {
        "cpu.features": hashlib.blake2b(tuned.encode(), digest_size=16).hexdigest(),
        "cpu.model": model[1].strip() if model else "unknown",
    }


def isa_factors(torch: Any) -> dict[str, JsonValue]:
    """The vector ISA and its sub-flags as Inductor would resolve them, without its probe, which starts a compiler.

    Follows ``pick_vec_isa`` and the ISA classes of torch/_inductor/cpu_vec_isa.py (torch 2.13): the CPU's support as
    torch.cpu tells it, under ``ATEN_CPU_CAPABILITY``. What a compiler cannot build is found when a program is compiled.
    """
    cpu = torch.cpu
    names = ("avx2", "avx512", "avx512_bf16", "vnni", "amx_tile", "amx_fp16")
    supported = [n for n in names if bool(getattr(cpu, f"_is_{n}_supported", lambda: False)())]
    return {
        "cpu.isa": supported,
        "cpu.capability": str(torch.backends.cpu.get_cpu_capability()),
        "cpu.capability_asked": os.environ.get("ATEN_CPU_CAPABILITY", ""),
    }


def predicted_isa(torch: Any, known: Iterable[str]) -> str:
    """The name that ``str(pick_vec_isa())`` should have on x86-64; empty where no prediction is made.

    ``known`` are the names of the ISAs that this torch builds for, in its order (``supported_vec_isa_list``): torch 2.7
    has no "avx512 avx512_vnni".
    """
    if platform.machine() not in ("x86_64", "AMD64"):
        return ""
    found = set(isa_factors(torch)["cpu.isa"])
    if {"avx512", "vnni"} <= found:
        found.add("avx512_vnni")
    fitting = [name for name in known if set(name.split()) <= found]
    asked = os.environ.get("ATEN_CPU_CAPABILITY", "")
    if not fitting or asked == "default":
        return "INVALID_VEC_ISA"
    if asked in ("avx2", "avx512"):
        fitting = [name for name in fitting if asked in name] or fitting
    return fitting[0]


def torch_factors(torch: Any) -> dict[str, JsonValue]:
    """The torch that runs: version, source revision, and what it was built for."""
    version = torch.version
    return {
        "torch.version": str(torch.__version__),
        "torch.git": str(getattr(version, "git_version", "unknown")),
        "torch.cuda": getattr(version, "cuda", None),
        "torch.hip": getattr(version, "hip", None),
        "torch.default_dtype": str(torch.get_default_dtype()),
        "torch.float32_matmul": str(torch.get_float32_matmul_precision()),
        "torch.deterministic": bool(torch.are_deterministic_algorithms_enabled()),
    }


def module_version(name: str) -> str:
    """The ``__version__`` of a module that is imported; "absent" if it is not."""
    module = sys.modules.get(name)
    return "absent" if module is None else str(getattr(module, "__version__", "unknown"))


def device_factors(torch: Any, device_type: str) -> dict[str, JsonValue]:
    """The accelerator: kind, capability, driver and ordinal (generated code can hold the ordinal)."""
    if device_type == "cpu":
        return {"device.type": "cpu"}
    module = getattr(torch, device_type, None)
    try:
        properties = module.get_device_properties(module.current_device())  # type: ignore[union-attr]
        return {
            "device.type": device_type,
            "device.name": str(properties.name),
            "device.capability": [getattr(properties, "major", 0), getattr(properties, "minor", 0)],
            "device.memory": int(getattr(properties, "total_memory", 0)),
            "device.units": int(getattr(properties, "multi_processor_count", 0)),
            "device.ordinal": int(module.current_device()),  # type: ignore[union-attr]
        }
    except (AttributeError, AssertionError, RuntimeError, TypeError, ValueError) as error:
        raise FactorError(f"cannot read the {device_type} device: {error}") from error


def source_digest(path: Path | str) -> str:
    """Digest of a source file's bytes, 32 hexadecimal digits. Raises FactorError if it cannot be read."""
    try:
        return blake3.blake3(Path(path).read_bytes()).hexdigest(length=16)
    except OSError as error:
        raise FactorError(f"cannot read the source {Path(path).name}: {error}") from error


def folder_digest(folder: Path) -> str:
    """Digest of all Python sources below a folder, with their relative names. Raises FactorError."""
    found = {str(p.relative_to(folder)): source_digest(p) for p in sorted(folder.rglob("*.py"))}
    if not found:
        raise FactorError(f"no sources in the package {folder.name}")
    return blake3.blake3(canonical(found)).hexdigest(length=16)


def module_digest(name: str) -> str:
    """Digest of a module's installed source. Raises FactorError if there is none."""
    return source_digest(_source(name))


def package_digest(name: str) -> str:
    """Digest of all sources of a top-level package, or of the one of a top-level module. Raises FactorError."""
    path = Path(_source(name))
    return folder_digest(path.parent) if path.name == "__init__.py" else source_digest(path)


def _source(name: str) -> str:
    """Where a module's source is; nothing is imported to find it, whoever wrote the name."""
    module = sys.modules.get(name)
    origin = getattr(module, "__file__", None) if module is not None else getattr(_spec(name), "origin", None)
    if not origin or not str(origin).endswith(".py"):
        raise FactorError(f"module {name} has no source file")
    return str(origin)


def _spec(name: str) -> Any:
    """As importlib.util.find_spec, which imports the packages on the way."""
    path: Any = None
    spec = None
    parts = name.split(".")
    for i in range(len(parts)):
        whole = ".".join(parts[: i + 1])
        loaded = sys.modules.get(whole)
        spec = getattr(loaded, "__spec__", None)
        if spec is None:
            finders = (getattr(finder, "find_spec", None) for finder in sys.meta_path)
            try:
                spec = next(filter(None, (find(whole, path) for find in finders if find is not None)), None)
            except (ImportError, ValueError, AttributeError, TypeError) as error:
                raise FactorError(f"cannot find the source of module {name}") from error
        if spec is None:
            raise FactorError(f"cannot find the source of module {name}")
        path = list(spec.submodule_search_locations or [])
    return spec
