// A Slurm of its own on this machine, with as many nodes as asked for: munge, one controller and a slurmd per node, in a temporary
// directory, on free ports, ended by pid. Node names of one machine share it, so nothing is told of networks or of cgroups.
import { spawn, spawnSync } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { chmodSync, chownSync, existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:net';
import { hostname } from 'node:os';
import { delimiter, join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';

/** What is not up by then will not come up. A busy machine takes seconds. */
const START_TIMEOUT_MS = 60_000;
const END_TIMEOUT_MS = 15_000;
const LOOK_AGAIN_MS = 100;

const PROGRAMS = ['munged', 'slurmctld', 'slurmd', 'sbatch', 'squeue', 'scancel', 'scontrol', 'sinfo'];
/** Daemons are below sbin, which is not on everybody's PATH. */
const PATH = [process.env.PATH ?? '', '/usr/sbin', '/usr/local/sbin'].join(delimiter);

function find(name) {
  return PATH.split(delimiter)
    .map((folder) => join(folder, name))
    .find((path) => existsSync(path));
}

/** Why no Slurm can be started here, or null. */
export function whyNoSlurm() {
  const missing = PROGRAMS.filter((name) => find(name) === undefined);
  if (missing.length > 0) return `${missing.join(', ')} missing: apt-get install slurm-wlm munge`;
  if (process.getuid() !== 0) return 'slurmd starts jobs of any user, so it has to be started by root';
  if (idOf('munge') === null) return 'there is no user munge';
  return null;
}

function idOf(user) {
  const { status, stdout } = spawnSync('id', ['-u', user], { encoding: 'utf8' });
  return status === 0 ? Number(stdout.trim()) : null;
}

/** Ports that nobody listens on now. Held open together, so that no two are the same. */
export async function freePorts(count) {
  const servers = Array.from({ length: count }, () => createServer());
  const ports = await Promise.all(
    servers.map(
      (server) => new Promise((resolve) => server.listen(0, '127.0.0.1', () => resolve(server.address().port))),
    ),
  );
  await Promise.all(servers.map((server) => new Promise((resolve) => server.close(resolve))));
  return ports;
}

function slurmConf(dir, nodes, [controllerPort, ...nodePorts], cpus, munge) {
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
 * Starts nodes n1 to n{count} with `cpus` each. Resolves once all are idle, to `env`, in which sbatch and the others reach this
 * Slurm, and `stop`. Jobs that still run when it is stopped are killed.
 */
export async function startSlurm({ dir, count, cpus = 8 }) {
  const nodes = Array.from({ length: count }, (_, index) => `n${index + 1}`);
  const conf = join(dir, 'slurm.conf');
  const children = [];
  const start = (program, args, options = {}) => {
    const child = spawn(find(program), args, { stdio: 'ignore', ...options });
    child.on('error', (error) => console.error(`${program}: ${error.message}`));
    children.push(child);
    return child;
  };
  const stop = async () => {
    // slurmd last: it ends what its jobs have left.
    spawnSync(find('scancel'), ['--signal=KILL', '--full', '--user=root'], {
      env: { ...process.env, SLURM_CONF: conf },
    });
    for (const child of [...children].reverse()) await end(child);
  };
  try {
    mkdirSync(join(dir, 'state'), { recursive: true });
    const munge = startMunge(start);
    await until(() => existsSync(munge), 'munged does not answer');
    writeFileSync(conf, slurmConf(dir, nodes, await freePorts(count + 1), cpus, munge));
    // The paths of whoever starts this are where its jobs find node.
    const env = { ...process.env, SLURM_CONF: conf, PATH };
    start('slurmctld', ['-D', '-f', conf], { env });
    for (const name of nodes) {
      mkdirSync(join(dir, `spool-${name}`));
      start('slurmd', ['-D', '-f', conf, '-N', name], { env });
    }
    const idle = () => {
      const { stdout } = spawnSync(find('sinfo'), ['--noheader', '--Node', '--format=%N %T'], {
        env,
        encoding: 'utf8',
      });
      return nodes.every((name) => stdout?.includes(`${name} idle`));
    };
    await until(idle, `the nodes do not become idle; see ${dir}/*.log`);
    return { env, nodes, stop };
  } catch (error) {
    await stop();
    throw error;
  }
}

/** munged wants a key, and a directory that only root or its own user can write to, all the way up. */
function startMunge(start) {
  const user = idOf('munge');
  const own = join('/run', `floe-munge-${process.pid}`);
  rmSync(own, { recursive: true, force: true });
  mkdirSync(own, { mode: 0o755 });
  process.on('exit', () => rmSync(own, { recursive: true, force: true }));
  const key = join(own, 'munge.key');
  writeFileSync(key, randomBytes(1024), { mode: 0o400 });
  chownSync(key, user, user);
  chownSync(own, user, user);
  chmodSync(own, 0o755);
  const socket = join(own, 'munge.socket');
  const files = [
    `--key-file=${key}`,
    `--socket=${socket}`,
    `--pid-file=${own}/munged.pid`,
    `--log-file=${own}/munged.log`,
  ];
  start('munged', ['--foreground', ...files, `--seed-file=${own}/munge.seed`], { uid: user, gid: user });
  return socket;
}

async function until(ready, problem) {
  const deadline = Date.now() + START_TIMEOUT_MS;
  while (!ready()) {
    if (Date.now() > deadline) throw new Error(problem);
    await sleep(LOOK_AGAIN_MS);
  }
}

async function end(child) {
  if (child.exitCode !== null || child.signalCode !== null || child.pid === undefined) return;
  const ended = new Promise((resolve) => child.once('exit', resolve));
  child.kill('SIGTERM');
  const timer = setTimeout(() => child.kill('SIGKILL'), END_TIMEOUT_MS);
  await ended;
  clearTimeout(timer);
}

/** Lines at the end of a file, to say why something failed. */
export function tailOf(path, lines = 20) {
  return existsSync(path) ? readFileSync(path, 'utf8').split('\n').slice(-lines).join('\n') : `${path} is not there`;
}
