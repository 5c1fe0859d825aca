// Starts a private Slurm on this machine: munge, one controller and one slurmd per node, in a temporary directory and on free ports. Its
// daemons are ended by pid. All nodes share the machine, so networks and control groups are not tested.
import { spawnSync } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { chmodSync, chownSync, existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { hostname } from 'node:os';
import { delimiter, join } from 'node:path';
import { Child, type ChildOptions } from '../runner/child.ts';
import { until } from '../runner/until.ts';
import { freePorts } from '../services/ports.ts';

/** Longest time to wait for the Slurm daemons to start. On a busy machine the start takes seconds. */
const START_TIMEOUT_MS = 60_000;
const POLL_INTERVAL_MS = 100;

const PROGRAMS = ['munged', 'slurmctld', 'slurmd', 'sbatch', 'squeue', 'scancel', 'scontrol', 'sinfo'];
/** Search path for Slurm's programs. It includes the sbin directories, where the daemons are, because many users' PATH lacks them. */
const PATH = [process.env.PATH ?? '', '/usr/sbin', '/usr/local/sbin'].join(delimiter);

export type Slurm = {
  /** Environment variables that make sbatch and the other Slurm commands use this private Slurm. */
  readonly env: NodeJS.ProcessEnv;
  /** Kills all running jobs and ends the Slurm daemons. */
  stop(): Promise<void>;
};

type Start = (program: string, args: readonly string[], options?: ChildOptions) => void;

function find(name: string): string | undefined {
  return PATH.split(delimiter)
    .map((folder) => join(folder, name))
    .find((path) => existsSync(path));
}

function programPath(name: string): string {
  const path = find(name);
  if (path === undefined) throw new Error(`${name} is not installed: apt-get install slurm-wlm munge`);
  return path;
}

/** Returns why this machine cannot start a private Slurm; `null` when it can. */
export function whyNoSlurm(): string | null {
  const missing = PROGRAMS.filter((name) => find(name) === undefined);
  if (missing.length > 0) return `${missing.join(', ')} missing: apt-get install slurm-wlm munge`;
  if (process.getuid?.() !== 0) return 'slurmd starts jobs of any user, so only root can start it';
  if (userId('munge') === null) return 'there is no user munge';
  return null;
}

function userId(user: string): number | null {
  const { status, stdout } = spawnSync('id', ['-u', user], { encoding: 'utf8' });
  return status === 0 ? Number(stdout.trim()) : null;
}

function slurmConf(
  dir: string,
  nodes: readonly string[],
  [controllerPort, ...nodePorts]: readonly number[],
  cpus: number,
  munge: string,
): string {
  const host = hostname();
  const lines = nodes.map(
    (name, index) =>
      `NodeName=${name} NodeHostname=${host} NodeAddr=127.0.0.1 Port=${nodePorts[index]} CPUs=${cpus} RealMemory=4096 State=UNKNOWN`,
  );
  return `ClusterName=floe
SlurmctldHost=${host}(127.0.0.1)
SlurmctldPort=${controllerPort}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=${munge}
CryptoType=crypto/munge
StateSaveLocation=${dir}/state
SlurmdSpoolDir=${dir}/spool-%n
SlurmctldPidFile=${dir}/slurmctld.pid
SlurmdPidFile=${dir}/slurmd-%n.pid
SlurmctldLogFile=${dir}/slurmctld.log
SlurmdLogFile=${dir}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SchedulerParameters=sched_min_interval=0,sched_interval=1
ReturnToService=2
KillWait=30
MpiDefault=none
MailProg=/bin/true
${lines.join('\n')}
PartitionName=main Nodes=${nodes.join(',')} Default=YES MaxTime=INFINITE State=UP
`;
}

/**
 * Starts a Slurm with nodes n1, n2, … (`count` of them) with `cpus` CPUs each. Resolves when all nodes are idle. Rejects with an Error that
 * names the log files.
 */
export async function startSlurm({
  dir,
  count,
  cpus = 8,
}: {
  readonly dir: string;
  readonly count: number;
  readonly cpus?: number;
}): Promise<Slurm> {
  const nodes = Array.from({ length: count }, (_, index) => `n${index + 1}`);
  const conf = join(dir, 'slurm.conf');
  const children: Child[] = [];
  const start: Start = (program, args, options = {}) => {
    children.push(new Child([programPath(program), ...args], options));
  };
  const stop = async (): Promise<void> => {
    spawnSync(programPath('scancel'), ['--signal=KILL', '--full', '--user=root'], {
      env: { ...process.env, SLURM_CONF: conf },
    });
    // The daemons are ended in reverse order of their start. The slurmd daemons come first, because they end the remaining processes of
    // their jobs.
    for (const child of [...children].reverse()) await child.stop();
  };
  try {
    mkdirSync(join(dir, 'state'), { recursive: true });
    const munge = startMunge(start);
    await untilStarted(() => existsSync(munge), 'munged does not create its socket');
    writeFileSync(conf, slurmConf(dir, nodes, await freePorts(count + 1), cpus, munge));
    // Slurm jobs inherit the PATH of the process that submits them, and need it to find the `node` program.
    const env = { ...process.env, SLURM_CONF: conf, PATH };
    start('slurmctld', ['-D', '-f', conf], { env });
    for (const name of nodes) {
      mkdirSync(join(dir, `spool-${name}`));
      start('slurmd', ['-D', '-f', conf, '-N', name], { env });
    }
    const areIdle = (): boolean => {
      const { stdout } = spawnSync(programPath('sinfo'), ['--noheader', '--Node', '--format=%N %T'], {
        env,
        encoding: 'utf8',
      });
      return nodes.every((name) => stdout.includes(`${name} idle`));
    };
    await untilStarted(areIdle, `the nodes do not become idle; see ${dir}/*.log`);
    return { env, stop };
  } catch (error) {
    await stop();
    throw error;
  }
}

/**
 * Starts the authentication daemon munged and returns the path of its socket. munged requires a key file, and folders to which only root or
 * its own user may write.
 */
function startMunge(start: Start): string {
  const user = userId('munge');
  if (user === null) throw new Error('there is no user munge');
  const folder = join('/run', `floe-munge-${process.pid}`);
  rmSync(folder, { recursive: true, force: true });
  mkdirSync(folder, { mode: 0o755 });
  process.on('exit', () => rmSync(folder, { recursive: true, force: true }));
  const key = join(folder, 'munge.key');
  writeFileSync(key, randomBytes(1024), { mode: 0o400 });
  chownSync(key, user, user);
  chownSync(folder, user, user);
  chmodSync(folder, 0o755);
  const socket = join(folder, 'munge.socket');
  const files = [
    `--key-file=${key}`,
    `--socket=${socket}`,
    `--pid-file=${folder}/munged.pid`,
    `--log-file=${folder}/munged.log`,
    `--seed-file=${folder}/munge.seed`,
  ];
  start('munged', ['--foreground', ...files], { uid: user, gid: user });
  return socket;
}

async function untilStarted(condition: () => boolean, problem: string): Promise<void> {
  if (!(await until(condition, START_TIMEOUT_MS, POLL_INTERVAL_MS))) throw new Error(problem);
}

/** Returns the last lines of a log file. */
export function tailOf(path: string, lines = 20): string {
  return existsSync(path) ? readFileSync(path, 'utf8').split('\n').slice(-lines).join('\n') : `${path} does not exist`;
}
