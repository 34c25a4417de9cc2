# All images: `core` (commands, dashboard), `train` (scheduler, MLflow, Ray, native runner), `vllm` (the same with vLLM).
# docs/howto/deploy.md has what to type. BASE: any Debian or Ubuntu with Python 3.11 to 3.13 and its `venv` as python3.
# This tag is moved to newer images: the page says how to pin the one that you have checked, by its digest.
ARG BASE=docker.io/library/python:3.12-slim-bookworm

# VERSION: what the package calls itself; git, which else says it, is not in the build context
FROM ${BASE} AS wheel
ARG VERSION=
ENV SETUPTOOLS_SCM_PRETEND_VERSION=${VERSION}
WORKDIR /source
COPY pyproject.toml README.md LICENSE constraints.txt ./
COPY platform platform
COPY runners runners
COPY dashboards dashboards
COPY ablations ablations
COPY db_migrations db_migrations
RUN python3 -m venv /pip \
 && /pip/bin/pip wheel --quiet --no-deps --wheel-dir /wheels . \
 && mv constraints.txt /wheels

# Images hold neither pip nor bytecode, a quarter of their size: what is imported is compiled once a container, in /tmp.
FROM ${BASE} AS core
ARG BASE
LABEL org.opencontainers.image.base.name=${BASE}
COPY --from=wheel /wheels /opt/packages
RUN python3 -m venv --without-pip /opt/paribus && python3 -m venv /tmp/pip \
 && /tmp/pip/bin/pip --python /opt/paribus install --quiet --no-cache-dir --no-compile \
    --constraint /opt/packages/constraints.txt "$(echo /opt/packages/paribus-*.whl)[postgresql,dashboard]" \
 && find /opt/paribus -type d -path '*/scipy/*/tests' -prune -exec rm -r {} + && rm -r /tmp/pip \
 && echo 'paribus:x:10001:10001:Paribus:/tmp:/usr/sbin/nologin' >> /etc/passwd \
 && echo 'paribus:x:10001:' >> /etc/group \
 && mkdir -p /srv/paribus/home /srv/paribus/reports /srv/paribus/studies /srv/paribus/mlflow /srv/paribus/models \
 && chown -R 10001:10001 /srv/paribus
ENV PATH=/opt/paribus/bin:/usr/local/bin:/usr/bin:/bin \
    HOME=/tmp \
    PYTHONUNBUFFERED=1 \
    PYTHONPYCACHEPREFIX=/tmp/python \
    PARIBUS_HOME=/srv/paribus/home
WORKDIR /srv/paribus
USER 10001:10001
CMD ["paribus", "--help"]

# vLLM chooses its own torch, so constraints.txt does not hold here
FROM core AS vllm
USER 0:0
RUN python3 -m venv /tmp/pip \
 && /tmp/pip/bin/pip --python /opt/paribus install --quiet --no-cache-dir --no-compile \
    "$(echo /opt/packages/paribus-*.whl)[vllm,mlflow,ray]" \
 && rm -r /tmp/pip
USER 10001:10001

# TORCH_INDEX: another package index for torch, for example PyTorch's own for CPUs (docs/howto/install.md)
FROM core AS train
ARG TORCH_INDEX=
USER 0:0
RUN python3 -m venv /tmp/pip \
 && /tmp/pip/bin/pip --python /opt/paribus install --quiet --no-cache-dir --no-compile \
    ${TORCH_INDEX:+-i ${TORCH_INDEX}} "torch==$(sed -n 's/^torch==//p' /opt/packages/constraints.txt)" \
 && /tmp/pip/bin/pip --python /opt/paribus install --quiet --no-cache-dir --no-compile \
    --constraint /opt/packages/constraints.txt "$(echo /opt/packages/paribus-*.whl)[train,mlflow,ray,s3]" \
 && rm -r /tmp/pip
USER 10001:10001
