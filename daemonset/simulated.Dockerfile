# The image for nodes that simulate GPUs: the product's image, and the simulation's NVML library with its machines.
# `make image ARGS=--simulated` builds it on the product's image: docs/simulation.md.
ARG PRODUCT_IMAGE=topogpu:0.1.0
# The same release of Python as in the product's, with a C compiler.
ARG COMPILER_IMAGE=docker.io/library/python:3.11.15-bookworm

FROM ${COMPILER_IMAGE} AS build
WORKDIR /src
COPY simulation/__init__.py simulation/
COPY simulation/nvml simulation/nvml
RUN python -B -c "from pathlib import Path; from simulation.nvml.build import build_library; build_library(Path('/built'))" && mv /built/nvml-*/libnvidia-ml.so.1 /built/

FROM ${PRODUCT_IMAGE}
LABEL org.opencontainers.image.title="TopoGPU on simulated GPUs"
COPY --from=build /built/libnvidia-ml.so.1 /opt/topogpu-simulated/lib/
COPY simulation/__init__.py simulation/on_node.py /opt/topogpu-simulated/simulation/
COPY simulation/machines /opt/topogpu-simulated/simulation/machines
COPY simulation/nvml/__init__.py simulation/nvml/machine_file.py /opt/topogpu-simulated/simulation/nvml/
# The daemon finds this library and these files wherever it is started, and so does `kubectl exec`.
ENV LD_LIBRARY_PATH=/opt/topogpu-simulated/lib PYTHONPATH=/opt/topogpu-simulated TOPOGPU_FAKE_NVML_MACHINE=/run/simulated/machine
