import type { ClusterConfig } from './cluster-config.ts';
import {
  CLIENT_OPTION_LINES,
  endingLines,
  floeLines,
  PUBLISH_FUNCTION,
  scratchLines,
  scriptHead,
  waitForFile,
} from './script.ts';
import { quoteArgument, quoteTemplate } from './shell-arguments.ts';

/** Returns the script of the job array whose jobs are the replicas of the rollout server. */
export function serverScript(config: ClusterConfig): string {
  const { server, tls } = config;
  const head = scriptHead(config, {
    name: 'server',
    description: `The rollout server of the cluster ${config.name}: each job of the array is a replica.`,
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
      : [`--tls-cert ${quoteTemplate(tls.cert, ['host'])}`, `--tls-key ${quoteTemplate(tls.key, ['host'])}`]),
    ...server.options.map(quoteArgument),
  ];
  return `${head}${floeLines(config)}port=$((${server.port} + SLURM_ARRAY_TASK_ID - 1))
url=${scheme}://$host:$port
${config.database.kind === 'sqlite' ? 'dir=$run/server\n' : `${scratchLines(config)}dir=$scratch/server-$SLURM_ARRAY_TASK_ID\n`}${PUBLISH_FUNCTION}${config.database.kind === 'postgres' ? waitForFile(config.wait_seconds) : ''}${endingLines(config.restarts, stop)}
mkdir -p "$dir"
${databaseLines(config)}
log "starting replica $SLURM_ARRAY_TASK_ID at $url"
"\${floe[@]}" server --host ${quoteArgument(config.listen)} --port "$port" \\
  ${options.join(' \\\n  ')} &
server=$!
if ! await "\${floe[@]}" cluster wait "$url/ready" --seconds ${config.wait_seconds} --pid "$server" "\${trust[@]}"; then
  log 'the server did not become ready'
  requeue=1
  exit 1
fi
publish "$run/servers/$SLURM_ARRAY_TASK_ID" "$url"
log 'the server is ready'
${engineLines(config)}${watchLines(config)}
wait "$server" && status=0 || status=$?
log "the server exited unexpectedly with status $status"
requeue=1
exit 1
`;
}

/** Returns the server's options for database and blobs. They contain no password, because every user of the host can read command lines. */
function storageOptions({ blobs, database }: ClusterConfig): string[] {
  const blobStore = blobs === null ? '"$run/blobs"' : quoteArgument(blobs);
  switch (database.kind) {
    case 'sqlite':
      return blobs === null ? [] : [`--blobs ${blobStore}`];
    case 'postgres':
      return ['--database "$database"', `--blobs ${blobStore}`];
    case 'external':
      return [`--database-file ${quoteArgument(database.url_file)}`, `--blobs ${blobStore}`];
  }
}

/** Returns shell code that waits for the cluster's PostgreSQL and reads its URL and password. */
function databaseLines(config: ClusterConfig): string {
  if (config.database.kind !== 'postgres') return '';
  return `wait_for_file "$run/database-url"
database=$(<"$run/database-url")
PGPASSWORD=$(<"$run/database-password")
export PGPASSWORD
`;
}

/** Returns shell code that restarts the server replica when the job of PostgreSQL was requeued and has started on another host. */
function watchLines(config: ClusterConfig): string {
  if (config.database.kind !== 'postgres') return '';
  return `
while kill -0 "$server" 2>/dev/null; do
  if [[ -s $run/database-url && $(<"$run/database-url") != "$database" ]]; then
    log 'the database has moved to another host'
    requeue=1
    exit 1
  fi
  await sleep 5
done
`;
}

/**
 * Returns shell code that registers the engines which run outside the cluster. Only one server replica runs it. Running it once more
 * applies changes of the configuration.
 */
function engineLines(config: ClusterConfig): string {
  if (config.engines.length === 0) return '';
  const adds = config.engines.map((engine) => {
    const model = engine.model === null ? '' : ` --model ${quoteArgument(engine.model)}`;
    return `  if ! await "\${floe[@]}" engines add ${quoteArgument(engine.url)} --replace --kind ${engine.kind} --pool ${engine.pool}${model} \\
    --wait 0 --url "$url" "\${as_client[@]}"; then
    log ${quoteArgument(`could not register the engine ${engine.url}`)}
    requeue=1
    exit 1
  fi`;
  });
  return `${CLIENT_OPTION_LINES}if ((SLURM_ARRAY_TASK_ID == 1)); then
${adds.join('\n')}
fi
`;
}
