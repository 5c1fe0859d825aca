import { type ClusterConfig, runDir } from './cluster-config.ts';
import { mergedJob, resourceLines, type SlurmJob } from './slurm-job.ts';
import { quoted, templated } from './words.ts';

/** Seconds between the signal that a job is about to end and its end: enough to hand sessions back and to stop PostgreSQL. */
export const DRAIN_SECONDS = 60;

export type ScriptHead = {
  /** Behind the cluster's name in the name of the job and of its log. */
  readonly name: string;
  readonly what: string;
  readonly job: SlurmJob;
  /** Jobs of the array; null: one job and no array. */
  readonly count: number | null;
};

/** What every script begins with: what Slurm is asked for, where things are, and the functions that all share. */
export function scriptHead(config: ClusterConfig, { name, what, job, count }: ScriptHead): string {
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
${[...(count === null ? [] : [`#SBATCH --array=1-${count}`]), ...resourceLines(mergedJob(config.slurm, job))].join('\n')}
# ${what}
set -euo pipefail
${config.setup === null ? '' : `set +u\n# shellcheck source=/dev/null\nsource ${quoted(config.setup)}\nset -u\n`}
hostname=$(hostname)
host=${templated(config.host_name, ['hostname'])}
run=${quoted(run)}

say() { printf '%s %s: %s\\n' "$(date -u +%FT%TZ)" "$host" "$*"; }

# A signal is acted on while a program is waited for, not once it has ended.
await() {
  "$@" &
  wait "$!"
}
`;
}

/** How scripts call floe, and how floe's commands reach the server. */
export function floeLines(config: ClusterConfig): string {
  const trust = config.tls === null ? '' : `--ca ${quoted(config.tls.ca)}`;
  const harnesses = config.harness_dir === null ? '' : `export FLOE_HARNESS_DIR=${quoted(config.harness_dir)}\n`;
  return `floe=(${config.floe.map(quoted).join(' ')})
trust=(${trust})
${harnesses}`;
}

/** How floe's commands prove who they are. */
export const AS_CLIENT = `as_client=(--token-file "$run/token" "\${trust[@]}")
`;

/** Where clients look for the server. */
export const SERVERS = `${AS_CLIENT}# Each replica of the server has a file with its URL in this folder.
servers=file:$run/servers
`;

/** A directory of this cluster on a disk of the host, for its owner alone: anybody may have made one of that name before. */
export function scratchLines(config: ClusterConfig): string {
  return `
scratch=${quoted(config.scratch)}/floe-$UID-${config.name}
mkdir -p "$scratch"
if [[ ! -O $scratch || -L $scratch ]]; then
  say "$scratch belongs to somebody else"
  exit 1
fi
chmod 700 "$scratch"
`;
}

/** A file that other jobs read. */
export const PUBLISH = `
# Others see a file whole or not at all.
publish() { # FILE TEXT
  local new="\${1%/*}/.\${1##*/}.$SLURM_JOB_ID"
  printf '%s\\n' "$2" >"$new"
  mv "$new" "$1"
}
`;

export function waitForFile(seconds: number): string {
  return `
wait_for_file() { # FILE
  local deadline=$((SECONDS + ${seconds}))
  until [[ -s $1 ]]; do
    if ((SECONDS >= deadline)); then
      say "gave up: $1 was not there after ${seconds} s"
      exit 1
    fi
    await sleep 1
  done
}
`;
}

/**
 * The end of a job. `stop` is the body of a function that ends what the job has started; it runs once, however the job ends.
 * A job whose program ended by itself is queued again: \`again=1\` asks for that.
 */
export function endingLines(restarts: number, stop: string): string {
  return `
again=0
# shellcheck disable=SC2317 # called by the trap
on_exit() {
  local status=$?
  trap '' TERM
${stop.trim().replaceAll(/^(?=.)/gm, '  ')}
  if ((again == 1 && \${SLURM_RESTART_COUNT:-0} < ${restarts})); then
    say 'queueing this job again'
    scontrol requeue "$SLURM_JOB_ID"
  fi
  exit "$status"
}
trap on_exit EXIT
trap 'say "asked to stop"; exit 0' TERM
`;
}
