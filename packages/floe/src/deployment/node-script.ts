import type { ClusterConfig, NodeEngine, NodeRole } from './cluster-config.ts';
import { endingLines, floeLines, SERVER_LINES, scratchLines, scriptHead } from './script.ts';
import { quoteArgument, quoteTemplate } from './shell-arguments.ts';

/**
 * Seconds that engines have to exit after SIGTERM. This time and the gateway's shutdown time together must be less than {@link
 * DRAIN_SECONDS}, after which Slurm kills the job.
 */
const ENGINE_EXIT_SECONDS = 20;

const ENGINE_HEAD = `engine_pids=()
registered=()

# Sends a signal to the process group of each engine. Fails when no process is left.
# shellcheck disable=SC2317 # called by on_exit
signal_engines() { # SIGNAL
  local pid status=1
  for pid in "\${engine_pids[@]}"; do
    if kill "-$1" -- "-$pid" 2>/dev/null; then status=0; fi
  done
  return "$status"
}
`;

/** Returns the script of the job array whose jobs are the nodes of one role, each with its engines. */
export function nodeScript(config: ClusterConfig, role: NodeRole): string {
  const head = scriptHead(config, {
    name: role.name,
    description: `Nodes of the cluster ${config.name}, role ${role.name}: each job of the array is a gateway${role.engines.length > 0 ? ' with its engines' : ''}.`,
    job: role.job,
    count: role.count,
  });
  return `${head}${floeLines(config)}${SERVER_LINES}node_id=${config.name}-${role.name}-$SLURM_ARRAY_TASK_ID
${scratchLines(config)}# The path is the same when Slurm restarts this job on the same host, so that the node finds the state of its earlier run.
state=$scratch/$node_id
${role.engines.length > 0 ? ENGINE_HEAD : ''}${endingLines(config.restarts, stopLines(role))}
log "waiting for a rollout server"
await "\${floe[@]}" cluster wait "$servers" "\${trust[@]}" --seconds ${config.wait_seconds}
${role.engines.length > 0 ? engineLines(role, config.wait_seconds) : ''}
mkdir -p "$state"
log "starting node $node_id"
"\${floe[@]}" gateway --server "$servers" "\${as_client[@]}" \\
  --node-id "$node_id" --node-host "$host" --engine-locality ${role.engine_locality} --state-dir "$state"${gatewayOptions(role)} &
gateway=$!

wait -n "$gateway"${role.engines.length > 0 ? ` "\${engine_pids[@]}"` : ''} && status=0 || status=$?
log "the gateway or an engine exited unexpectedly with status $status"
requeue=1
exit 1
`;
}

function gatewayOptions(role: NodeRole): string {
  const pools = Object.entries(role.pools).flatMap(([stage, size]) => (size === null ? [] : [`--${stage} ${size}`]));
  const options = [
    ...(role.backend === null ? [] : [`--backend ${role.backend}`]),
    ...pools,
    ...role.options.map(quoteArgument),
  ];
  return options.map((option) => ` \\\n  ${option}`).join('');
}

/**
 * Returns shell code that ends the programs of a node's job. It stops the gateway first, which returns its sessions to the server. Then it
 * removes the engines from their pools and ends them.
 */
function stopLines(role: NodeRole): string {
  const gateway = `
if [[ -n \${gateway:-} ]]; then
  kill -TERM "$gateway" 2>/dev/null || true
  wait "$gateway" || true
fi
`;
  if (role.engines.length === 0) return gateway;
  return `${gateway}for id in "\${registered[@]}"; do
  "\${floe[@]}" engines remove "$id" --wait 5 --url "$servers" "\${as_client[@]}" || log "could not remove engine $id from its pool"
done
if signal_engines TERM; then
  # An engine that ignores SIGTERM must not keep its GPUs until the job's time limit.
  for ((n = 0; n < ${ENGINE_EXIT_SECONDS * 10}; n++)); do
    signal_engines 0 || break
    sleep 0.1
  done
  signal_engines KILL || true
  wait "\${engine_pids[@]}" || true
fi
`;
}

/** Returns shell code that starts all engines of a node concurrently and registers each when it is ready. */
function engineLines(role: NodeRole, waitSeconds: number): string {
  const gpus = role.engines.some((engine) => engine.gpus !== null)
    ? `IFS=, read -ra gpus <<<"\${CUDA_VISIBLE_DEVICES:-}"\nnext_gpu=0\n`
    : '';
  return `
${gpus}${role.engines.map((engine) => startLines(engine)).join('\n')}
at=0
${role.engines.map((engine) => readyLines(engine, waitSeconds)).join('\n')}`;
}

/**
 * Returns the first lines of a shell loop over the instances of an engine. The nodes of a role use different ports, because nodes may share
 * a host.
 */
function loopLines(engine: NodeEngine): string {
  return `for ((n = 0; n < ${engine.count}; n++)); do
  port=$((${engine.port} + (SLURM_ARRAY_TASK_ID - 1) * ${engine.count} + n))`;
}

function startLines(engine: NodeEngine): string {
  const command = engine.command.map((word) => quoteTemplate(word, ['port', 'host', 'node_id'])).join(' ');
  if (engine.gpus === null) {
    return `${loopLines(engine)}
  setsid ${command} &
  engine_pids+=("$!")
done`;
  }
  return `${loopLines(engine)}
  if ((next_gpu + ${engine.gpus} > \${#gpus[@]})); then
    log "this job has too few GPUs for its engines: \${CUDA_VISIBLE_DEVICES:-none}"
    exit 1
  fi
  printf -v devices '%s,' "\${gpus[@]:next_gpu:${engine.gpus}}"
  next_gpu=$((next_gpu + ${engine.gpus}))
  CUDA_VISIBLE_DEVICES=\${devices%,} setsid ${command} &
  engine_pids+=("$!")
done`;
}

function readyLines(engine: NodeEngine, waitSeconds: number): string {
  const options = [
    `--kind ${engine.kind} --pool ${engine.pool}`,
    ...(engine.model === null ? [] : [`--model ${quoteArgument(engine.model)}`]),
    ...(engine.max_concurrency === null ? [] : [`--max-concurrency ${engine.max_concurrency}`]),
    ...(engine.logprobs_mode === null ? [] : [`--logprobs-mode ${engine.logprobs_mode}`]),
  ];
  return `${loopLines(engine)}
  if ! await "\${floe[@]}" cluster wait "http://$host:$port${engine.health}" --seconds ${engine.ready_seconds} --pid "\${engine_pids[at]}"; then
    log "the engine on port $port did not become ready"
    requeue=1
    exit 1
  fi
  registered+=("$node_id-$port")
  # Servers may have restarted while the engine loaded. --replace: an earlier run may have registered the id on another host.
  if ! await "\${floe[@]}" cluster wait "$servers" "\${trust[@]}" --seconds ${waitSeconds} ||
    ! await "\${floe[@]}" engines add "http://$host:$port" --id "$node_id-$port" --replace ${options.join(' ')} \\
      --wait 0 --url "$servers" "\${as_client[@]}"; then
    log "could not register the engine on port $port"
    requeue=1
    exit 1
  fi
  at=$((at + 1))
done`;
}
