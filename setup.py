"""Adds the C kernels to the build, and maps `src` to the package `llama_bolts`."""

import os
import sys
import sysconfig
import zlib
from concurrent.futures import ThreadPoolExecutor

from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext
from setuptools.modified import newer_group


class BuildKernels(build_ext):
    """Compiles the files of an extension side by side, and only those that have changed.

    build_ext compiles them one after the other, and an editable install names a new
    directory for the objects each time, so that it would never find one again.
    """

    def finalize_options(self) -> None:
        """Keep what cffi generates, and with it the time at which it last changed."""
        super().finalize_options()
        self.build_temp = f"build/generated-{sys.implementation.cache_tag}"

    def build_extension(self, ext: Extension) -> None:
        """Build an extension from the objects of `build/objects-*`; other flags, another
        place.
        """
        compiler = self.compiler
        compile_in_turn = self.compiler.compile
        command = repr(
            (compiler.compiler_so, ext.extra_compile_args, sys.implementation.cache_tag)
        )
        directory = f"build/objects-{zlib.crc32(command.encode()):08x}"

        def compile_side_by_side(sources, depends, **options):
            options["output_dir"] = directory

            def compile_one(source):
                [built] = compiler.object_filenames([source], output_dir=directory)
                if self.force or newer_group([source, *depends], built):
                    compile_in_turn([source], **options)
                return built

            with ThreadPoolExecutor(os.cpu_count()) as pool:
                return list(pool.map(compile_one, sources))

        # Python's own link command may name the directory of the builder's libpython.
        compiler.linker_so = [
            argument
            for argument in compiler.linker_so
            if not argument.startswith("-Wl,-rpath")
        ]
        compiler.compile = compile_side_by_side
        super().build_extension(ext)


# One wheel serves every Python from 3.11 on; Python without the GIL has no limited API.
limited_api = (
    {} if sysconfig.get_config_var("Py_GIL_DISABLED") else {"py_limited_api": "cp311"}
)

setup(
    packages=[
        "llama_bolts",
        *(f"llama_bolts.{name}" for name in find_packages("src")),
        "llama_bolts.docs",
        "llama_bolts.diagrams",
    ],
    cffi_modules=["csrc/build_kernels.py:ffibuilder"],
    cmdclass={"build_ext": BuildKernels},
    options={"bdist_wheel": limited_api},
)
