import { type ClusterConfig, runDir } from './cluster-config.ts';
import { quoteArgument, quoteTemplate } from './shell-arguments.ts';
import { mergeJobs, resourceLines, type SlurmJob } from './slurm-job.ts';

/**
 * Seconds that Slurm leaves a job to shut down after it has sent the job SIGTERM. This is enough to return sessions and to stop PostgreSQL.
 */
export const DRAIN_SECONDS = 60;

type ScriptHead = {
  /** The part of the job's name, and of its log file's name, that follows the cluster's name. */
  readonly name: string;
  /** One sentence about the job. It becomes a comment in the script. */
  readonly description: string;
  readonly job: SlurmJob;
  /** Number of jobs in the job array; `null` for a single job without an array. */
  readonly count: number | null;
};

/**
 * Returns the beginning of a job's script: the options for Slurm, variables with host and run directory, and functions that all scripts
 * use.
 */
export function scriptHead(config: ClusterConfig, { name, description, job, count }: ScriptHead): string {
  const run = runDir(config);
  const log = count === null ? '%j' : '%A_%a';
  return `#!/bin/bash
#SBATCH --job-name=${config.name}-${name}
#SBATCH --output=${run}/logs/${name}-${log}.log
#SBATCH --open-mode=append
#SBATCH --chdir=${run}
#SBATCH --ntasks=1
#SBATCH --requeue
#SBATCH --signal=B:TERM@${DRAIN_SECONDS}
${[...(count === null ? [] : [`#SBATCH --array=1-${count}`]), ...resourceLines(mergeJobs(config.slurm, job))].join('\n')}
# ${description}
set -euo pipefail
${config.setup === null ? '' : `set +u\n# shellcheck source=/dev/null\nsource ${quoteArgument(config.setup)}\nset -u\n`}
hostname=$(hostname)
host=${quoteTemplate(config.host_name, ['hostname'])}
run=${quoteArgument(run)}

log() { printf '%s %s: %s\\n' "$(date -u +%FT%TZ)" "$host" "$*"; }

# Runs a program so that a signal is handled while it runs, not after it has ended.
await() {
  "$@" &
  wait "$!"
}
`;
}

/** Returns shell variables with floe's command, the certificate authority, and the directory of harnesses. */
export function floeLines(config: ClusterConfig): string {
  const trust = config.tls === null ? '' : `--ca ${quoteArgument(config.tls.ca)}`;
  const harnesses = config.harness_dir === null ? '' : `export FLOE_HARNESS_DIR=${quoteArgument(config.harness_dir)}\n`;
  return `floe=(${config.floe.map(quoteArgument).join(' ')})
trust=(${trust})
${harnesses}`;
}

/** Shell code that defines the options of floe's commands for authentication to the server. */
export const CLIENT_OPTION_LINES = `as_client=(--token-file "$run/token" "\${trust[@]}")
`;

/** Shell code that defines the client options and `servers`, the folder in which clients find the URLs of the rollout servers. */
export const SERVER_LINES = `${CLIENT_OPTION_LINES}# Each replica of the server writes a file with its URL to this folder.
servers=file:$run/servers
`;

/**
 * Returns shell code that creates a private directory on a local disk of the host. The code fails when another user has already created a
 * directory of the same name.
 */
export function scratchLines(config: ClusterConfig): string {
  return `
scratch=${quoteArgument(config.scratch)}/floe-$UID-${config.name}
mkdir -p "$scratch"
if [[ ! -O $scratch || -L $scratch ]]; then
  log "$scratch is a link or belongs to another user; remove it or set another scratch directory"
  exit 1
fi
chmod 700 "$scratch"
`;
}

/** A shell function that writes a file with a text, such as an address, for other jobs of the cluster. */
export const PUBLISH_FUNCTION = `
# Renames the complete file, so that other jobs never read a part of it.
publish() { # FILE TEXT
  local new="\${1%/*}/.\${1##*/}.$SLURM_JOB_ID"
  printf '%s\\n' "$2" >"$new"
  mv "$new" "$1"
}
`;

/** Returns a shell function that waits at most `seconds` for a file that another job writes. */
export function waitForFile(seconds: number): string {
  return `
wait_for_file() { # FILE
  local deadline=$((SECONDS + ${seconds}))
  until [[ -s $1 ]]; do
    if ((SECONDS >= deadline)); then
      log "$1 did not appear within ${seconds} s; check the job that writes it"
      exit 1
    fi
    await sleep 1
  done
}
`;
}

/**
 * Returns the shell handler that runs when a job ends. `stop` is shell code that ends the programs of the job; it runs once, however the
 * job ends. When a program exits unexpectedly, the script sets `requeue=1` before it exits. Slurm then queues the job again, at most
 * `restarts` times.
 */
export function endingLines(restarts: number, stop: string): string {
  return `
requeue=0
# shellcheck disable=SC2317 # called by the trap
on_exit() {
  local status=$?
  trap '' TERM
${stop.trim().replaceAll(/^(?=.)/gm, '  ')}
  if ((requeue == 1 && \${SLURM_RESTART_COUNT:-0} < ${restarts})); then
    log 'requeueing this job'
    scontrol requeue "$SLURM_JOB_ID"
  fi
  exit "$status"
}
trap on_exit EXIT
trap 'log "received SIGTERM"; exit 0' TERM
`;
}
