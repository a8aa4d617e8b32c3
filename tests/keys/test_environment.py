"""The environment as a factor: what must be in it, what must not, and what may never be stored."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compcache.environment import EXCLUDED, service_links, variables
from compcache.errors import FactorError
from compcache.factors import canonical, differences

BASE = {"PATH": "/bin", "HOME": "/root", "VLLM_USE_V1": "1", "OMP_SCHEDULE": "2"}


def same(more: dict[str, str], resolved: dict[str, Any] | None = None) -> bool:
    """Whether variables make no difference to the factor."""
    return canonical(variables({**BASE, **more}, resolved or {})) == canonical(variables(BASE, resolved or {}))


@pytest.mark.parametrize(
    "name", ["VLLM_RAY_BUNDLE_INDICES", "VLLM_NIXL_SIDE_CHANNEL_PORT", "VLLM_ENGINE_READY_TIMEOUT_S", *EXCLUDED]
)
def test_what_cannot_matter_is_no_factor(name: str) -> None:
    """F13; whether it is inherited, or the engine says what it resolved it to."""
    assert same({name: "5557"})
    assert same({name: "5558"}, {name: 5558, "VLLM_USE_V1": True})
    assert name not in variables({name: "1"}, {name: 1})


def test_each_exclusion_has_a_reason() -> None:
    assert all(len(reason) > 10 for reason in EXCLUDED.values())


@pytest.mark.parametrize(
    "name",
    [
        "VLLM_SOMETHING_NEW",
        "TORCHINDUCTOR_MAX_AUTOTUNE",
        "TORCH_SOMETHING",
        "TORCHDYNAMO_SOMETHING",
        "TRITON_SOMETHING",
        "ATEN_CPU_CAPABILITY",
        "OMP_SCHEDULE",
        "XLA_FLAGS",
        "LIBTPU_INIT_ARGS",
        "JAX_SOMETHING",
        "CUDA_SOMETHING",
        "NVIDIA_TF32_OVERRIDE",
        "CC",
        "CXX",
    ],
)
def test_an_unknown_variable_is_a_factor_and_is_named(name: str) -> None:
    """F14: it may change a program, so that a store without it must not serve."""
    without = {n: v for n, v in BASE.items() if n != name}
    old, new = variables(without, {}), variables({**without, name: "1"}, {})
    assert new[name] == "1"
    assert [d.name for d in differences({"environment": new}, {"environment": old})] == [f"environment.{name}"]


@pytest.mark.parametrize(
    "name", ["PATH", "HOSTNAME", "NCCL_DEBUG", "MYVLLM_X", "KUBERNETES_PORT", "CXXFLAGS_X", "USER"]
)
def test_others_are_no_factors(name: str) -> None:
    assert same({name: "x"})


def test_a_known_variable_is_its_resolved_value() -> None:
    for text in ("1", "true", "True"):
        assert variables({"VLLM_FLAG": text}, {"VLLM_FLAG": True}) == {"VLLM_FLAG": True}
    assert variables({}, {"VLLM_FLAG": False}) == {"VLLM_FLAG": False}
    assert variables({}, {"VLLM_FLAG": None}) == {}


def test_a_resolved_value_that_cannot_be_said_is_not_dropped() -> None:
    with pytest.raises(FactorError, match="VLLM_FLAG"):
        variables({}, {"VLLM_FLAG": {1, 2}})


@given(st.permutations(sorted({**BASE, "VLLM_B": "2", "VLLM_A": "1"}.items())))
@settings(deadline=None, max_examples=20)
def test_the_order_does_not_matter(items: list[tuple[str, str]]) -> None:
    assert list(variables(dict(items), {})) == ["OMP_SCHEDULE", "VLLM_A", "VLLM_B", "VLLM_USE_V1"]


def test_ignored_variables_are_left_out() -> None:
    """COMPCACHE_KEY_IGNORE."""
    assert variables({"VLLM_A": "1", "VLLM_B": "2"}, {"VLLM_C": 3}, ["VLLM_A", "VLLM_C"]) == {"VLLM_B": "2"}


@pytest.mark.parametrize("name", ["CC", "CXX"])
def test_a_compiler_goes_by_the_name_of_its_file(name: str) -> None:
    assert variables({name: "/opt/a/bin/g++-13"}, {}) == variables({name: "/usr/bin/g++-13"}, {}) == {name: "g++-13"}
    assert variables({name: "/usr/bin/clang++"}, {}) != variables({name: "/usr/bin/g++"}, {})


# Secrets


@pytest.mark.parametrize(
    "name",
    [
        "VLLM_API_KEY",
        "VLLM_HF_TOKEN",
        "VLLM_TOKEN",
        "VLLM_AUTH_TOKENS",
        "VLLM_TOKEN_OF_ADMIN",
        "VLLM_S3_SECRET",
        "VLLM_DB_PASSWORD",
        "XLA_CREDENTIALS",
        "JAX_PRIVATE_KEY",
        "TORCH_AWS_ACCESS_KEY_ID",
    ],
)
def test_secrets_are_never_in(name: str) -> None:
    found = variables({name: "hunter2-verysecret"}, {name: "hunter2-verysecret"})
    assert "hunter2" not in json.dumps(found)
    assert name not in found


@pytest.mark.parametrize("value", ["1234", 1234, True])
def test_a_secret_that_looks_like_a_number_is_not_in(value: Any) -> None:
    for name in ("VLLM_API_KEY", "VLLM_HF_TOKEN", "VLLM_PASSWORD"):
        assert variables({}, {name: value}) == {}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("VLLM_MAX_TOKENS_PER_EXPERT_FP4_MOE", "163840"),
        ("VLLM_MULTI_STREAM_GEMM_TOKEN_THRESHOLD", 1024),
        ("VLLM_USE_FASTOKENS", False),
        ("VLLM_USE_FASTOKENS", "true"),
        ("VLLM_TOKENIZER_MODE", "slow"),
    ],
)
def test_what_counts_tokens_is_no_secret(name: str, value: Any) -> None:
    """vLLM has such variables, and they shape programs: left out of a key, another value would hit."""
    assert variables({name: str(value)}, {name: value}) == {name: value}


# Kubernetes service links


LINKS = {
    "VLLM_A_SERVICE_HOST": "10.0.0.1",
    "VLLM_A_SERVICE_PORT": "80",
    "VLLM_A_SERVICE_PORT_HTTP": "80",
    "VLLM_A_PORT": "tcp://10.0.0.1:80",
    "VLLM_A_PORT_80_TCP": "tcp://10.0.0.1:80",
    "VLLM_A_PORT_80_TCP_PROTO": "tcp",
    "VLLM_A_PORT_80_TCP_PORT": "80",
    "VLLM_A_PORT_80_TCP_ADDR": "10.0.0.1",
    "VLLM_A_PORT_53_UDP": "udp://10.0.0.1:53",
    "VLLM_A_PORT_53_UDP_ADDR": "10.0.0.1",
    "VLLM_A_PORT_9_SCTP_PROTO": "sctp",
}


def test_service_links_are_recognised() -> None:
    assert service_links(LINKS) == set(LINKS)
    assert same(LINKS)


def test_without_its_host_nothing_is_a_link() -> None:
    alone = {name: value for name, value in LINKS.items() if name != "VLLM_A_SERVICE_HOST"}
    assert service_links(alone) == set()
    assert set(variables(alone, {})) == set(alone)


@pytest.mark.parametrize(
    "name",
    [
        "VLLM_B_PORT_80_TCP_ADDR",
        "VLLM_AB_PORT",
        "VLLM_A_PORTS",
        "VLLM_A_PORT_X_TCP",
        "VLLM_A_PORT_80_TCP_MODE",
        "VLLM_A_MODE",
        "VLLM_A",
        "XVLLM_A_PORT",
    ],
)
def test_only_names_of_the_service_are_links(name: str) -> None:
    assert name not in service_links({**LINKS, name: "1"})


def test_a_name_with_signs_of_a_pattern_is_only_a_name() -> None:
    assert service_links(["A.B_SERVICE_HOST", "_SERVICE_HOST", "AXB_PORT"]) == set()
