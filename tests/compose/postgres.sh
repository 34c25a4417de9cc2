# What the public image does at its start, as far as docker-compose.yml uses it.
set -eu
mkdir -p /var/run/postgresql
if [ ! -s "$PGDATA/PG_VERSION" ]; then
  test -s "$POSTGRES_PASSWORD_FILE" || { echo "the file $POSTGRES_PASSWORD_FILE is empty" >&2; exit 1; }
  initdb --username="$POSTGRES_USER" --pwfile="$POSTGRES_PASSWORD_FILE" --auth=trust --encoding=UTF8 --locale=C.UTF-8
  echo "host all all all scram-sha-256" >> "$PGDATA/pg_hba.conf"
  pg_ctl --wait --options="-c listen_addresses=''" start
  createdb --username="$POSTGRES_USER" "$POSTGRES_DB"
  for file in /docker-entrypoint-initdb.d/*.sql; do
    psql --no-psqlrc --set=ON_ERROR_STOP=1 --username="$POSTGRES_USER" --dbname="$POSTGRES_DB" --file="$file"
  done
  pg_ctl --wait --mode=fast stop
fi
exec postgres -c listen_addresses='*'
