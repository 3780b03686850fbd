# An image with bkctl: for bookies, autorecovery daemons and Jobs. The project does not publish it.
#
#   docker build -t registry.example.com/bkctl:0.1.0 .
#
# For x86-64. On arm64, where plyvel has no wheel, the first stage also needs g++ and libleveldb-dev, the second
# libleveldb1d. It has neither Java nor Spark: only "bkctl audit --spark" and "bkctl dev" need them.

FROM python:3.12-slim AS build
WORKDIR /source
# The locked versions, with their hashes. A change of bkctl's own code does not repeat this step.
COPY requirements-run.txt .
RUN python -m venv --without-pip /opt/bkctl \
    && python -m pip --python /opt/bkctl/bin/python install --no-cache-dir --require-hashes -r requirements-run.txt
COPY . .
RUN python -m pip --python /opt/bkctl/bin/python install --no-cache-dir --no-deps .

FROM python:3.12-slim
COPY --from=build /opt/bkctl /opt/bkctl
RUN useradd --uid 10001 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin bkctl \
    && install -d -o 10001 -g 10001 -m 0700 /state
# Plans, the trash and the audit trail: mount a volume here to keep them.
ENV PATH=/opt/bkctl/bin:$PATH BKCTL_STATE_DIR=/state
USER 10001:10001
ENTRYPOINT ["bkctl"]
