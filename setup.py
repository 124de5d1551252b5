"""Generates the modules of tfde/protos; everything else about the package stands in setup.cfg."""

from pathlib import Path

from setuptools import Command, setup
from setuptools.command.build import build


class BuildProtos(Command):
    """Writes `NAME_pb2.py` and `NAME_pb2.pyi` for each `NAME.proto`."""

    description = "generate the modules of tfde/protos"
    user_options = []

    def initialize_options(self):
        self.build_lib = None
        self.editable_mode = False

    def finalize_options(self):
        self.set_undefined_options("build_py", ("build_lib", "build_lib"))

    def run(self):
        # A build requirement (pyproject.toml), not one of the installed package.
        from grpc_tools import protoc

        root = Path(__file__).parent.resolve()
        output = root if self.editable_mode else Path(self.build_lib).resolve()
        output.mkdir(parents=True, exist_ok=True)
        wrappers = Path(protoc.__file__).parent / "_proto"
        sources = [str(path) for path in sorted(root.glob("tfde/protos/*.proto"))]
        options = [f"-I{root}", f"-I{wrappers}", f"--python_out={output}", f"--pyi_out={output}"]
        if protoc.main(["protoc", *options, *sources]) != 0:
            raise RuntimeError("protoc must compile tfde/protos/*.proto; its words stand above")

    def get_source_files(self):
        return []

    def get_outputs(self):
        return []

    def get_output_mapping(self):
        return {}


class Build(build):
    """The usual build, and the protos."""

    sub_commands = [*build.sub_commands, ("build_protos", None)]


setup(cmdclass={"build": Build, "build_protos": BuildProtos})
