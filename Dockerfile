# The same tree and the same versions as `make setup`. For the quickstart on a CPU:
#
#   docker build -t headwater .
#   docker run --rm --network host --shm-size 2g -v headwater:/var/lib/headwater headwater
#
# Headwater listens on 127.0.0.1 unless its configuration says otherwise, and a container's loopback is its own:
# share the host's network as above, or mount a configuration with another host and with API keys, and publish its
# port. Ray keeps its object store in /dev/shm, hence --shm-size.
#
# With an NVIDIA GPU: --build-arg TORCH_INDEX_URL= --build-arg EXTRAS=[cuda], then docker run --gpus all.
FROM python:3.11-slim

ARG TORCH_INDEX_URL=https://download.pytorch.org/whl/cpu
ARG EXTRAS=

ENV PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1 \
    PYTHONUNBUFFERED=1

# The compiler makes the decoder's step for the processor that the container runs on, once.
RUN apt-get update && apt-get install --yes --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*

RUN useradd --create-home --uid 10001 headwater \
    && install --directory --owner headwater --group headwater /opt/headwater /var/lib/headwater
WORKDIR /opt/headwater

# Dependencies before code: a changed source file leaves this layer alone.
COPY pyproject.toml constraints.txt README.md LICENSE ./
RUN if [ -n "$TORCH_INDEX_URL" ]; then \
      pip install --constraint constraints.txt --no-deps --extra-index-url "$TORCH_INDEX_URL" torch; fi \
    && pip install --constraint constraints.txt ".${EXTRAS}" \
    && pip uninstall --yes headwater

COPY app app
COPY benchmarks benchmarks
COPY cache_tiers cache_tiers
COPY configs configs
COPY deployments deployments
COPY engine engine
COPY simulator simulator
COPY wire wire
RUN pip install --no-deps --editable .

USER headwater
ENV HEADWATER_HOME=/var/lib/headwater
VOLUME /var/lib/headwater
EXPOSE 8000
CMD ["headwater", "serve", "configs/quickstart.yaml"]
