# The image of jobs that fill the cache: the compiler, no card. It is about 9 GB, nearly all of it torch.
#
#   docker build -t registry.example/graphcache:1 .
#
# The layers change in this order, the last ones most often: system packages, the compiler, this repository.
FROM python:3.11-slim-bookworm

RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc-aarch64-linux-gnu libc6-dev-arm64-cross git \
    && rm -rf /var/lib/apt/lists/*

# torch asks for the name of its user: one without a line in passwd will not do.
RUN useradd --uid 10001 --create-home graphcache

# Its packages alone first, so that a change of the sources does not install torch anew.
WORKDIR /opt/graphcache
COPY pyproject.toml constraints.txt README.md ./
RUN mkdir graphcache trainer cli \
    && touch graphcache/__init__.py trainer/__init__.py cli/__init__.py \
    && pip install --no-cache-dir -c constraints.txt '.[furiosa,trainer,remote,trust]' \
    && pip uninstall -y graphcache

COPY graphcache graphcache
COPY trainer trainer
COPY cli cli
COPY cache_manifests cache_manifests
RUN pip install --no-cache-dir --no-deps .

USER 10001
ENV GRAPHCACHE_DIR=/cache
CMD ["graphcache", "--help"]
