import { spawnSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { makeImage } from '../fixtures/image.ts';
import { firstMissing, type PrivateEngine, removeEngineDirectory, startEngine } from './container-engine.ts';

/**
 * Shell script that ends what outlives the service: the containers, and a process that keeps the user namespace of a user without root
 * privileges. The command `podman system migrate` ends this process.
 */
const CLEANUP = `podman rm --all --force --time=0
[ "$(id -u)" -eq 0 ] || podman system migrate`;

/** The files and environment of a private Podman. */
export type PodmanHome = { readonly dir: string; readonly env: Readonly<Record<string, string>> };

/**
 * Returns why Podman cannot run a container on this machine, with the command that installs what is missing; `null` when it can. Runs a
 * container to find out.
 */
export function podmanMissing(): string | null {
  const missing = firstMissing(['podman', 'conmon', 'runc']);
  if (missing !== null)
    return `${missing} is not installed: apt-get install --no-install-recommends podman runc uidmap`;
  const home = podmanHome();
  const image = join(home.dir, 'image');
  const env = { ...process.env, ...home.env };
  try {
    mkdirSync(image);
    makeImage(image);
    const args = ['run', '--rm', '--network=none', '--rootfs', image, '/bin/sh', '-c', 'exit 0'];
    const { status, stderr } = spawnSync('podman', args, { env, encoding: 'utf8' });
    return status === 0 ? null : `this machine cannot run a Podman container: ${stderr.trim().slice(-500)}`;
  } finally {
    spawnSync('/bin/sh', ['-c', CLEANUP], { env });
    removeEngineDirectory(home.dir);
  }
}

/** Starts a Podman service. Rejects with an `Error` that contains the end of its log when it does not respond in time. */
export async function startPodmanService(): Promise<PrivateEngine> {
  const { dir, env } = podmanHome();
  const socketPath = join(dir, 'podman.sock');
  return startEngine({
    name: 'the Podman service',
    dir,
    socketPath,
    argv: ['podman', 'system', 'service', '--time=0', `unix://${socketPath}`],
    env,
    cleanup: ['/bin/sh', '-c', CLEANUP],
  });
}

/** Creates a directory with the configuration of a Podman that keeps all its files there. */
export function podmanHome(): PodmanHome {
  const dir = mkdtempSync(join(tmpdir(), 'floe-podman-'));
  const [containers, storage] = [join(dir, 'containers.conf'), join(dir, 'storage.conf')];
  writeFileSync(containers, CONTAINERS_CONF(dir));
  writeFileSync(storage, STORAGE_CONF(dir));
  const runtimeDir = join(dir, 'xdg');
  mkdirSync(runtimeDir, { mode: 0o700 });
  const env = { CONTAINERS_CONF: containers, CONTAINERS_STORAGE_CONF: storage, XDG_RUNTIME_DIR: runtimeDir, HOME: dir };
  return { dir, env };
}

/** Where Podman keeps images. A user without a range of user ids cannot keep the owners of an image's files. */
const STORAGE_CONF = (dir: string): string => `[storage]
driver = "overlay"
graphroot = "${dir}/data"
runroot = "${dir}/run"
[storage.options.overlay]
ignore_chown_errors = "${process.getuid?.() === 0 ? 'false' : 'true'}"
`;

/**
 * The configuration of Podman. It names runc, because crun refuses the mixed control groups of version 1 and 2 that some machines have, and
 * limits that can be set without the capability CAP_SYS_RESOURCE. Control groups are made without systemd.
 */
const CONTAINERS_CONF = (dir: string): string => `[containers]
default_ulimits = ["nofile=10000:10000", "nproc=20000:20000"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
static_dir = "${dir}/static"
tmp_dir = "${dir}/tmp"
volume_path = "${dir}/volumes"
`;
