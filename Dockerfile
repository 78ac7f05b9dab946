# The image of criproxy by docker, podman or buildah, for those who build their own: the same programs, wheels and Python
# on Debian's own image. `python -m cluster.image` needs none of these tools, and its bytes are the same each time.
FROM debian:bookworm-slim AS code
RUN apt-get update \
    && apt-get install -y --no-install-recommends python3.11-minimal python3-pip python3-setuptools python3-wheel
WORKDIR /checkout
COPY requirements.lock ./
COPY packaging/installer packaging/
COPY criproxy criproxy
COPY cluster cluster
RUN python3 -c "from pathlib import Path; from cluster.image.contents import make_code; \
    make_code(Path('/code'), '$(dpkg --print-architecture)', Path('/'))"

FROM debian:bookworm-slim
RUN apt-get update \
    && apt-get install -y --no-install-recommends libpython3.11-stdlib python3.11-minimal libstdc++6 tzdata \
    && rm -rf /var/lib/apt/lists/*
COPY --from=code /code/ /
LABEL org.opencontainers.image.licenses=Apache-2.0
ENV PATH=/usr/bin:/bin LANG=C.UTF-8
WORKDIR /
USER 65532:65532
ENTRYPOINT ["/usr/bin/criproxy-cluster"]
