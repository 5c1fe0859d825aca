import { constants } from 'node:fs';
import { access } from 'node:fs/promises';
import { join } from 'node:path';
import { FloeError } from '@floe-rl/core';
import type { RuntimeSpec } from '@floe-rl/core/schema';
import type { RuntimePaths, StartRequest } from '../api/runtime.ts';

/**
 * Directories of the host in which floe searches for the programs that build sandboxes, such as `bwrap`. The list is fixed, because the
 * gateway's own PATH is not trusted for these programs.
 */
export const HOST_PATH = '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin';

/** Name of the environment variable that marks all processes of a command. With it, processes are found that have left their process group. */
export const COMMAND_MARK = 'FLOE_COMMAND_MARK';

/** Directories in which every command of a sandbox finds programs. */
export const SANDBOX_PATH = '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin';

/** Home directory of the sandbox's user, as a path in the sandbox. */
export const AGENT_HOME = '/home/agent';

/** Returns the directories that floe uses in a sandbox with a file system of its own. */
export function sandboxPaths({ workdir }: Pick<RuntimeSpec, 'workdir'>): RuntimePaths {
  return { workdir, home: AGENT_HOME, artifacts: '/artifacts', logs: '/logs' };
}

/** Returns the environment variables that every command in a sandbox has. `home` is the home directory of the sandbox's user. */
export function baseEnvironment(home: string): Record<string, string> {
  return {
    PATH: SANDBOX_PATH,
    HOME: home,
    USER: 'agent',
    LOGNAME: 'agent',
    SHELL: '/bin/sh',
    LANG: 'C.UTF-8',
    TERM: 'dumb',
  };
}

/** Port of the sandbox's loopback interface at which commands reach the session's model proxy. It is far from commonly used ports. */
export const PROXY_PORT = 24417;
/** Port of the sandbox's loopback interface at which commands reach the egress proxy. */
export const EGRESS_PORT = 24418;

/**
 * Returns the variables that make programs use the egress proxy. Each has an upper-case and a lower-case name, because programs read either.
 */
export function egressEnvironment(): Record<string, string> {
  const url = `http://127.0.0.1:${EGRESS_PORT}`;
  const direct = 'localhost,127.0.0.1,::1';
  return {
    HTTP_PROXY: url,
    HTTPS_PROXY: url,
    NO_PROXY: direct,
    http_proxy: url,
    https_proxy: url,
    no_proxy: direct,
    // Node uses the variables above only when this variable is set.
    NODE_USE_ENV_PROXY: '1',
  };
}

/** Returns the environment variables of every command in a sandbox with the variables of an image. */
export function sandboxEnvironment(
  { egressSocket }: Pick<StartRequest, 'egressSocket'>,
  ofImage: Readonly<Record<string, string>>,
): Record<string, string> {
  const egress = egressSocket == null ? {} : egressEnvironment();
  return { ...baseEnvironment(AGENT_HOME), ...ofImage, HOME: AGENT_HOME, ...egress };
}

/** Origin of the session's proxy for commands with a network of their own. */
export const LOOPBACK_PROXY = `http://127.0.0.1:${PROXY_PORT}`;

/** Returns the origin of the session's proxy for commands in a sandbox. The sandbox has the network of the host if the task asks for it. */
export function proxyOriginOf({ spec, proxy }: Pick<StartRequest, 'spec' | 'proxy'>): string {
  return spec.network === 'host' && proxy !== null ? proxy.tcpOrigin : LOOPBACK_PROXY;
}

/** Throws `schema_violation` for names and values that the kernel cannot pass to a process as environment variables. */
export function checkEnvironment(env: Readonly<Record<string, string>>): void {
  for (const [name, value] of Object.entries(env)) {
    if (name === '' || name.includes('=') || name.includes('\0')) {
      throw new FloeError('schema_violation', `env: ${JSON.stringify(name)} cannot be the name of a variable`);
    }
    refuseNul(`env.${name}`, [value]);
  }
}

/**
 * Throws `schema_violation` when a value contains a NUL character, because the kernel would cut the value there. `what` names the values in
 * the error message.
 */
export function refuseNul(what: string, values: Iterable<string>): void {
  for (const value of values) {
    if (value.includes('\0')) throw new FloeError('schema_violation', `${what} contains a NUL character`);
  }
}

const INSTALLERS = [
  ['apt-get', 'apt-get install -y'],
  ['dnf', 'dnf install -y'],
  ['apk', 'apk add'],
] as const;

/** Returns the command that installs a package on this machine. */
export async function installCommand(name: string): Promise<string> {
  for (const [program, command] of INSTALLERS) {
    if ((await missingProgram([program])) === null) return `${command} ${name}`;
  }
  return `install the package ${name}`;
}

/** Returns the first of `names` that is not installed in any directory of {@link HOST_PATH}; `null` when all are installed. */
export async function missingProgram(names: readonly string[]): Promise<string | null> {
  for (const name of names) {
    const found = await Promise.all(HOST_PATH.split(':').map((dir) => isExecutable(join(dir, name))));
    if (!found.includes(true)) return name;
  }
  return null;
}

function isExecutable(path: string): Promise<boolean> {
  return access(path, constants.X_OK).then(
    () => true,
    () => false,
  );
}
