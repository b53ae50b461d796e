"""Builds wheels of radixrt; pyproject.toml has everything else.

With RADIXRT_KERNELS=x86_64 or aarch64 in the environment, as `make wheel` sets it, the CPU kernels are compiled into
the wheel, which then fits such machines alone. If the machine is another one than this, CXX names a cross compiler.
Without the variable the wheel has only the source of the kernels, and fits every machine.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

MACHINE = os.environ.get("RADIXRT_KERNELS")


class BuildPackage(build_py):
    def run(self) -> None:
        super().run()
        if MACHINE and not self.editable_mode:
            sys.path.insert(0, str(Path(__file__).parent))
            from radixrt.kernels.build import KernelUnavailable, compile_prebuilt

            try:
                compile_prebuilt(Path(self.build_lib, "radixrt", "kernels", "prebuilt"), MACHINE)
            except KernelUnavailable as error:
                raise SystemExit(f"{error}\n`make wheel KERNELS=` builds a wheel without compiled kernels") from error


class BuildWheel(bdist_wheel):
    def finalize_options(self) -> None:
        super().finalize_options()
        self.root_is_pure = not MACHINE

    def get_tag(self) -> tuple[str, str, str]:
        """The kernels have a C interface, so any version of Python loads them."""
        if not MACHINE:
            return super().get_tag()
        here = sysconfig.get_platform()  # linux-x86_64, macosx-14.0-arm64
        system = here.removesuffix(here.split("-")[-1])
        return "py3", "none", f"{system}{MACHINE}".replace("-", "_").replace(".", "_")


setup(cmdclass={"build_py": BuildPackage, "bdist_wheel": BuildWheel})
