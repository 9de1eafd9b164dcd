# syntax=docker/dockerfile:1
# heatproof with the versions of constraints.txt:
#
#   docker build -t heatproof .
#   docker run --rm --user "$(id -u)" -v "$PWD:/work" heatproof run spec.yaml -o runs/mine
#
# PIP_ARGS is passed to pip, such as the index of the CPU builds of PyTorch, which are much smaller.
FROM python:3.13-slim AS build
# any git will do
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends git \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY . .
RUN pip install --no-cache-dir build==1.6.1 && python -m build --wheel --outdir /dist

FROM python:3.13-slim
ARG EXTRAS="vision,openvino,plot"
ARG PIP_ARGS=""
COPY --from=build /dist /dist
COPY constraints.txt /dist/
# PIP_ARGS may be several arguments
# hadolint ignore=SC2086
RUN wheel="$(echo /dist/*.whl)" \
    && pip install --no-cache-dir ${PIP_ARGS} -c /dist/constraints.txt "${wheel}[${EXTRAS}]" \
    && rm -rf /dist \
    && useradd --create-home --uid 1000 heatproof \
    && install -d -m 1777 /work /cache
# any user may write there, also one that --user names and who has no home
ENV HEATPROOF_CACHE=/cache
ENV NUMBA_CACHE_DIR=/cache/numba
USER 1000
WORKDIR /work
ENTRYPOINT ["heatproof"]
CMD ["--help"]
