# A gateway in a container: docker build -t hobnob . (or compose.yaml). State is in the volume /data.
# Several gateways share three folders of it: docs/scale.md.
FROM python:3.12-slim AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
COPY docs ./docs
RUN pip wheel --no-cache-dir --wheel-dir /wheels ".[acp,mcp,postgres]"

FROM python:3.12-slim
# bubblewrap runs the commands of agents; without user namespaces in the container there is no exec tool.
RUN apt-get update && apt-get install -y --no-install-recommends bubblewrap && rm -rf /var/lib/apt/lists/*
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir --no-index --find-links /wheels "hobnob[acp,mcp,postgres]" && rm -rf /wheels
RUN useradd --create-home --uid 10001 hobnob \
  && install -d -m 0700 -o hobnob -g hobnob /data /data/agents /data/outgoing /data/channels
USER hobnob
ENV HOBNOB_HOME=/data
VOLUME /data
EXPOSE 4626
HEALTHCHECK --interval=30s --timeout=5s --start-period=10s \
  CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:4626/healthz', timeout=4)"]
# Beyond loopback the gateway needs a token: set HOBNOB_TOKEN.
CMD ["hobnob", "serve", "--host", "0.0.0.0", "--log-json"]
