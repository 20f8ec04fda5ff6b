"""Adds the C kernels to the build, and maps `src` to the package `llama_bolts`."""

from setuptools import find_packages, setup

setup(
    packages=[
        "llama_bolts",
        *(f"llama_bolts.{name}" for name in find_packages("src")),
        "llama_bolts.docs",
        "llama_bolts.diagrams",
    ],
    cffi_modules=["csrc/build_kernels.py:ffibuilder"],
)
