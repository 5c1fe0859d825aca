import type { ClusterConfig } from './cluster-config.ts';
import { endingLines, floeLines, PUBLISH, scriptHead, waitForFile } from './script.ts';
import { quoted, templated } from './words.ts';

/** The job array of the server's replicas. */
export function serverScript(config: ClusterConfig): string {
  const { server, tls } = config;
  const head = scriptHead(config, {
    name: 'server',
    what: `The rollout server of the cluster ${config.name}: each job of the array is a replica.`,
    job: server.job,
    count: server.replicas,
  });
  const stop = `
rm -f "$run/servers/$SLURM_ARRAY_TASK_ID"
if [[ -n \${server:-} ]]; then
  kill -TERM "$server" 2>/dev/null || true
  wait "$server" || true
fi
`;
  const scheme = tls === null ? 'http' : 'https';
  const options = [
    '--dir "$dir"',
    ...databaseOptions(config),
    '--token-file "$run/token"',
    ...(tls === null
      ? []
      : [`--tls-cert ${templated(tls.cert, ['host'])}`, `--tls-key ${templated(tls.key, ['host'])}`]),
    ...server.options.map(quoted),
  ];
  return `${head}${floeLines(config)}port=$((${server.port} + SLURM_ARRAY_TASK_ID - 1))
url=${scheme}://$host:$port
dir=${config.database.kind === 'sqlite' ? '$run/server' : `${quoted(config.scratch)}/floe-$UID-${config.name}/server-$SLURM_ARRAY_TASK_ID`}
${PUBLISH}${config.database.kind === 'postgres' ? waitForFile(config.wait_seconds) : ''}${endingLines(config.restarts, stop)}
mkdir -p "$dir"
${databaseLines(config)}
say "starting replica $SLURM_ARRAY_TASK_ID at $url"
"\${floe[@]}" server --host ${quoted(config.listen)} --port "$port" \\
  ${options.join(' \\\n  ')} &
server=$!
if ! await "\${floe[@]}" cluster wait "$url/ready" --seconds ${config.wait_seconds} --pid "$server" "\${trust[@]}"; then
  say 'the server does not come up'
  again=1
  exit 1
fi
publish "$run/servers/$SLURM_ARRAY_TASK_ID" "$url"
say 'the server is ready'
${engineLines(config)}${watchLines(config)}
wait "$server" && status=0 || status=$?
say "the server ended by itself with status $status"
again=1
exit 1
`;
}

function databaseOptions(config: ClusterConfig): string[] {
  if (config.database.kind === 'sqlite') return config.blobs === null ? [] : [`--blobs ${quoted(config.blobs)}`];
  return [`--blobs ${config.blobs === null ? '"$run/blobs"' : quoted(config.blobs)}`];
}

/** The URL goes by the environment: a command line is open to everybody on the host. */
function databaseLines(config: ClusterConfig): string {
  switch (config.database.kind) {
    case 'sqlite':
      return '';
    case 'postgres':
      return `wait_for_file "$run/database-url"
FLOE_DATABASE=$(<"$run/database-url")
export FLOE_DATABASE PGPASSFILE=$run/pgpass
`;
    case 'external':
      return `FLOE_DATABASE=$(<${quoted(config.database.url_file)})
export FLOE_DATABASE
`;
  }
}

/** After its job was queued again, the database may be on another host. */
function watchLines(config: ClusterConfig): string {
  if (config.database.kind !== 'postgres') return '';
  return `
while kill -0 "$server" 2>/dev/null; do
  if [[ -s $run/database-url && $(<"$run/database-url") != "$FLOE_DATABASE" ]]; then
    say 'the database has moved'
    again=1
    exit 1
  fi
  await sleep 5
done
`;
}

/** Engines that run already are told of by one replica; telling again changes nothing. */
function engineLines(config: ClusterConfig): string {
  if (config.engines.length === 0) return '';
  const adds = config.engines.map((engine) => {
    const model = engine.model === null ? '' : ` --model ${quoted(engine.model)}`;
    return `  await "\${floe[@]}" engines add ${quoted(engine.url)} --kind ${engine.kind} --pool ${engine.pool}${model} \\
    --wait 0 --url "$url" "\${as_client[@]}"`;
  });
  return `if ((SLURM_ARRAY_TASK_ID == 1)); then
${adds.join('\n')}
fi
`;
}
