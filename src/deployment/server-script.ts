import type { ClusterConfig } from './cluster-config.ts';
import { AS_CLIENT, endingLines, floeLines, PUBLISH, scratchLines, scriptHead, waitForFile } from './script.ts';
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
    ...storageOptions(config),
    '--token-file "$run/token"',
    ...(tls === null
      ? []
      : [`--tls-cert ${templated(tls.cert, ['host'])}`, `--tls-key ${templated(tls.key, ['host'])}`]),
    ...server.options.map(quoted),
  ];
  return `${head}${floeLines(config)}port=$((${server.port} + SLURM_ARRAY_TASK_ID - 1))
url=${scheme}://$host:$port
${config.database.kind === 'sqlite' ? 'dir=$run/server\n' : `${scratchLines(config)}dir=$scratch/server-$SLURM_ARRAY_TASK_ID\n`}${PUBLISH}${config.database.kind === 'postgres' ? waitForFile(config.wait_seconds) : ''}${endingLines(config.restarts, stop)}
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

/** The password is in a file or the environment: a command line is open to everybody on the host. */
function storageOptions({ blobs, database }: ClusterConfig): string[] {
  const place = blobs === null ? '"$run/blobs"' : quoted(blobs);
  switch (database.kind) {
    case 'sqlite':
      return blobs === null ? [] : [`--blobs ${place}`];
    case 'postgres':
      return ['--database "$database"', `--blobs ${place}`];
    case 'external':
      return [`--database-file ${quoted(database.url_file)}`, `--blobs ${place}`];
  }
}

function databaseLines(config: ClusterConfig): string {
  if (config.database.kind !== 'postgres') return '';
  return `wait_for_file "$run/database-url"
database=$(<"$run/database-url")
PGPASSWORD=$(<"$run/database-password")
export PGPASSWORD
`;
}

/** After its job was queued again, the database may be on another host. */
function watchLines(config: ClusterConfig): string {
  if (config.database.kind !== 'postgres') return '';
  return `
while kill -0 "$server" 2>/dev/null; do
  if [[ -s $run/database-url && $(<"$run/database-url") != "$database" ]]; then
    say 'the database has moved'
    again=1
    exit 1
  fi
  await sleep 5
done
`;
}

/** Engines that run already are told of by one replica; telling again changes nothing but what the configuration has changed. */
function engineLines(config: ClusterConfig): string {
  if (config.engines.length === 0) return '';
  const adds = config.engines.map((engine) => {
    const model = engine.model === null ? '' : ` --model ${quoted(engine.model)}`;
    return `  if ! await "\${floe[@]}" engines add ${quoted(engine.url)} --replace --kind ${engine.kind} --pool ${engine.pool}${model} \\
    --wait 0 --url "$url" "\${as_client[@]}"; then
    say ${quoted(`the engine ${engine.url} could not be registered`)}
    again=1
    exit 1
  fi`;
  });
  return `${AS_CLIENT}if ((SLURM_ARRAY_TASK_ID == 1)); then
${adds.join('\n')}
fi
`;
}
