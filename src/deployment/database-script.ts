import { type ClusterConfig, runDir } from './cluster-config.ts';
import { endingLines, PUBLISH, scriptHead } from './script.ts';
import { quoted } from './words.ts';

type StartedDatabase = ClusterConfig['database'] & { kind: 'postgres' };

/** The job that runs a PostgreSQL of the cluster's own, and tells the others where. */
export function databaseScript(config: ClusterConfig, database: StartedDatabase): string {
  const head = scriptHead(config, {
    name: 'database',
    what: `The PostgreSQL of the cluster ${config.name}.`,
    job: database.job,
    count: null,
  });
  const stop = `
rm -f "$run/database-url"
if [[ -n \${postgres:-} ]]; then
  # At once, and in order: clients are sent away.
  kill -INT "$postgres" 2>/dev/null || true
  wait "$postgres" || true
fi
`;
  return `${head}bin=${quoted(database.bin)}
data=${quoted(database.data ?? `${runDir(config)}-database`)}
port=${database.port}
${PUBLISH}${endingLines(config.restarts, stop)}
# PostgreSQL refuses to run as root.
as_owner=()
if ((EUID == 0)); then as_owner=(setpriv --reuid=${quoted(database.user)} --regid=${quoted(database.user)} --init-groups --); fi
cd /

if [[ ! -s $data/PG_VERSION ]]; then
  say "making a database in $data"
  rm -rf "$data.new"
  mkdir -p "$data.new"
  if ((EUID == 0)); then chown ${quoted(database.user)}: "$data.new"; fi
  chmod 700 "$data.new"
  password=$(mktemp)
  cat "$run/database-password" >"$password"
  if ((EUID == 0)); then chown ${quoted(database.user)}: "$password"; fi
  await "\${as_owner[@]}" "$bin/initdb" --username=floe --pwfile="$password" --auth=scram-sha-256 \\
    --encoding=UTF8 --locale=C -D "$data.new" >/dev/null
  rm "$password"
  printf 'host all floe all scram-sha-256\\n' >"$data.new/pg_hba.conf"
  "\${as_owner[@]}" "$bin/postgres" --single -D "$data.new" postgres <<<'CREATE DATABASE floe' >/dev/null
  # Only a database that is complete has this name.
  mv "$data.new" "$data"
fi

say "starting PostgreSQL on port $port"
"\${as_owner[@]}" "$bin/postgres" -D "$data" -p "$port" -c listen_addresses=${quoted(config.listen)} \\
  -c unix_socket_directories= -c max_connections=${database.max_connections} &
postgres=$!
# What PostgreSQL tells of itself: its pid in the first line, its state in the eighth.
is_ready() {
  local lines
  [[ -r $data/postmaster.pid ]] || return 1
  mapfile -t lines <"$data/postmaster.pid"
  [[ \${lines[0]:-} == "$postgres" && \${lines[7]:-} == ready* ]]
}
deadline=$((SECONDS + ${config.wait_seconds}))
until is_ready; do
  if ((SECONDS >= deadline)) || ! kill -0 "$postgres"; then
    say 'PostgreSQL does not come up'
    again=1
    exit 1
  fi
  await sleep 1
done
# Without the password, which is in $run/database-password.
publish "$run/database-url" "postgres://floe@$host:$port/floe"
say 'PostgreSQL is ready'

wait "$postgres" && status=0 || status=$?
say "PostgreSQL ended by itself with status $status"
again=1
exit 1
`;
}
