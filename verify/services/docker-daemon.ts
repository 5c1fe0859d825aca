import { mkdtempSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { firstMissing, type PrivateEngine, startEngine } from './container-engine.ts';

/**
 * Resolves to the reason why this machine cannot run a Docker daemon, with the command that installs what is missing; `null` when it can run a
 * Docker daemon. Starts a daemon to find out.
 */
export async function dockerMissing(): Promise<string | null> {
  if (process.getuid?.() !== 0) return 'a Docker daemon needs root privileges: run the tests as root';
  const missing = firstMissing(['dockerd', 'containerd', 'runc']);
  if (missing !== null) return `${missing} is not installed: apt-get install --no-install-recommends docker.io`;
  try {
    const daemon = await startDockerDaemon();
    await daemon.stop();
    return null;
  } catch (error) {
    return `this machine cannot run a Docker daemon: ${(error as Error).message}`;
  }
}

/** Starts a Docker daemon without a network. Rejects with an `Error` that contains the end of its log when it does not respond in time. */
export async function startDockerDaemon(): Promise<PrivateEngine> {
  const dir = mkdtempSync(join(tmpdir(), 'floe-docker-'));
  const socketPath = join(dir, 'docker.sock');
  const options = {
    'data-root': join(dir, 'data'),
    'exec-root': join(dir, 'exec'),
    pidfile: join(dir, 'pid'),
    host: `unix://${socketPath}`,
    // With this setting, the daemon does not change the network of the host.
    bridge: 'none',
    iptables: 'false',
    ip6tables: 'false',
    'ip-forward': 'false',
    'ip-masq': 'false',
    'shutdown-timeout': '1',
  };
  const args = Object.entries(options).map(([name, value]) => `--${name}=${value}`);
  // No cleanup is needed, because the daemon ends its containers when it ends.
  return startEngine({ name: 'the Docker daemon', dir, socketPath, argv: ['dockerd', ...args], cleanup: ['true'] });
}
