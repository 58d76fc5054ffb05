# The server of a Keyaki database.
#
#   docker build -t keyaki .
#   docker run -d -v shop:/data -v ./tls:/tls:ro -p 5432:5432 keyaki \
#       --listen 0.0.0.0:5432 --tls-certificate /tls/server.crt --tls-key /tls/server.key
#
# Roles are made before that, because the server listens beyond loopback addresses only if clients are authenticated:
#
#   docker run --rm -it -v shop:/data --entrypoint keyaki keyaki /data/database \
#       -c "CREATE ROLE app LOGIN PASSWORD '...'"

FROM rust:1.95-bookworm AS build
WORKDIR /source
COPY . .
RUN cargo build --release --locked --package keyaki-cli

FROM debian:bookworm-slim
RUN useradd --system --uid 999 --user-group --home-dir /data --shell /usr/sbin/nologin keyaki \
    && install -d -o keyaki -g keyaki -m 700 /data
COPY --from=build /source/target/release/keyaki /usr/local/bin/keyaki
USER keyaki
VOLUME /data
EXPOSE 5432
STOPSIGNAL SIGTERM
ENTRYPOINT ["keyaki", "serve", "/data/database"]
# Connections from the container only, until TLS and roles are configured.
CMD ["--listen", "127.0.0.1:5432"]
