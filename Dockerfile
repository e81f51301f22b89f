# docker build -t zero . && docker run -it --shm-size=1g zero
FROM debian:13
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates git sudo && \
    useradd --create-home --shell /bin/bash reader && \
    echo 'reader ALL=(ALL) NOPASSWD: ALL' >/etc/sudoers.d/reader
USER reader
RUN mkdir /home/reader/zero
WORKDIR /home/reader/zero
COPY --chown=reader . .
