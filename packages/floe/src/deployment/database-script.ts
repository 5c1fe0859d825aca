import { type ClusterConfig, runDir } from './cluster-config.ts';
import { endingLines, PUBLISH_FUNCTION, scriptHead } from './script.ts';
import { quoteArgument } from './shell-arguments.ts';

type StartedDatabase = ClusterConfig['database'] & { kind: 'postgres' };

/** Returns the script of the job that runs the cluster's PostgreSQL and publishes its address for the other jobs. */
export function databaseScript(config: ClusterConfig, database: StartedDatabase): string {
  const head = scriptHead(config, {
    name: 'database',
    description: `The PostgreSQL of the cluster ${config.name}.`,
    job: database.job,
    count: null,
  });
  const stop = `
rm -f "$run/database-url"
if [[ -n \${postgres:-} ]]; then
  # SIGINT is PostgreSQL's fast shutdown: it disconnects clients and stops cleanly.
  kill -INT "$postgres" 2>/dev/null || true
  wait "$postgres" || true
fi
`;
  return `${head}bin=${quoteArgument(database.bin)}
data=${quoteArgument(database.data ?? `${runDir(config)}-database`)}
port=${database.port}
${PUBLISH_FUNCTION}${endingLines(config.restarts, stop)}
# PostgreSQL refuses to run as root.
as_owner=()
if ((EUID == 0)); then as_owner=(setpriv --reuid=${quoteArgument(database.user)} --regid=${quoteArgument(database.user)} --init-groups --); fi
cd /

if [[ ! -s $data/PG_VERSION ]]; then
  log "creating a database in $data"
  rm -rf "$data.new"
  mkdir -p "$data.new"
  if ((EUID == 0)); then chown ${quoteArgument(database.user)}: "$data.new"; fi
  chmod 700 "$data.new"
  password=$(mktemp)
  cat "$run/database-password" >"$password"
  if ((EUID == 0)); then chown ${quoteArgument(database.user)}: "$password"; fi
  await "\${as_owner[@]}" "$bin/initdb" --username=floe --pwfile="$password" --auth=scram-sha-256 \\
    --encoding=UTF8 --locale=C -D "$data.new" >/dev/null
  rm "$password"
  printf 'host all floe all scram-sha-256\\n' >"$data.new/pg_hba.conf"
  "\${as_owner[@]}" "$bin/postgres" --single -D "$data.new" postgres <<<'CREATE DATABASE floe' >/dev/null
  # Only a complete database gets the final name.
  mv "$data.new" "$data"
fi

log "starting PostgreSQL on port $port"
"\${as_owner[@]}" "$bin/postgres" -D "$data" -p "$port" -c listen_addresses=${quoteArgument(config.listen)} \\
  -c unix_socket_directories= -c max_connections=${database.max_connections} &
postgres=$!
# PostgreSQL writes its process id to the first line of this file and its state to the eighth.
is_ready() {
  local lines
  [[ -r $data/postmaster.pid ]] || return 1
  mapfile -t lines <"$data/postmaster.pid"
  [[ \${lines[0]:-} == "$postgres" && \${lines[7]:-} == ready* ]]
}
deadline=$((SECONDS + ${config.wait_seconds}))
until is_ready; do
  if ((SECONDS >= deadline)) || ! kill -0 "$postgres"; then
    log 'PostgreSQL did not become ready'
    requeue=1
    exit 1
  fi
  await sleep 1
done
# The URL has no password; that is in $run/database-password.
publish "$run/database-url" "postgres://floe@$host:$port/floe"
log 'PostgreSQL is ready'

wait "$postgres" && status=0 || status=$?
log "PostgreSQL exited unexpectedly with status $status"
requeue=1
exit 1
`;
}
