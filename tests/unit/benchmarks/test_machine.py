"""What a result says about the machine it ran on."""

from __future__ import annotations

import platform

from benchmarks.machine import collect_hardware, collect_versions, parse_cpu_flags

X86_CPUINFO = """processor\t: 0
model name\t: Example CPU
flags\t\t: fpu sse avx2 avx512f avx512_bf16 amx_tile amx_bf16 avx512fancy
"""


def test_flags_of_interest_are_found_as_whole_words() -> None:
    assert parse_cpu_flags(X86_CPUINFO) == (
        "avx2",
        "avx512f",
        "avx512_bf16",
        "amx_tile",
        "amx_bf16",
    )


def test_arm_names_its_flags_otherwise() -> None:
    assert parse_cpu_flags("Features\t: fp asimd bf16 i8mm\n") == ("asimd", "bf16", "i8mm")


def test_a_system_without_cpuinfo_has_no_known_flags() -> None:
    assert parse_cpu_flags("") == ()


def test_hardware_of_this_machine_is_plausible() -> None:
    hardware = collect_hardware(accelerators=["H200"])
    assert hardware.cpu_model
    assert hardware.num_cores >= 1
    assert hardware.memory_bytes > 1 << 28
    assert hardware.accelerators == ("H200",)


def test_versions_name_installed_packages_only() -> None:
    versions = collect_versions(["msgspec", "no-such-package-of-ours"])
    assert set(versions) == {"python", "msgspec"}
    assert versions["python"] == platform.python_version()
