import { readlinkSync } from 'node:fs';
import { writeFile } from 'node:fs/promises';
import { basename, dirname, join } from 'node:path';
import { parseAs, parseJson } from '@floe-rl/core';
import { z } from 'zod';
import type { RuntimePaths, StartRequest } from '../../api/runtime.ts';
import { type BoxConnection, requireDone } from '../../box/connection.ts';
import type { FileOwner } from '../../box/messages.ts';
import type { UserIds } from '../../box/ownership.ts';
import type { BoxServerOptions } from '../../box/server.ts';
import { BOX_NODE_FLAGS, boxServerArgument } from '../../box/tool-server.ts';
import { EGRESS_PORT, PROXY_PORT, sandboxPaths } from '../../workspace/environment.ts';
import type { DeniedCall } from '../denied-calls.ts';
import { copySandboxPrograms, type ProgramPlace, programCommand, type SandboxPrograms } from '../sandbox-programs.ts';
import { seccompProfile } from '../seccomp.ts';

/* Where the box server and its files are in a sandbox whose main program is the box server. */

/** Paths in the sandbox of floe's programs and of the Node that runs them. */
const PLACE: ProgramPlace = { dir: '/.floe/programs', node: '/.floe/node' };
/** Path in the sandbox of the directory with the sockets of the gateway. */
const SOCKETS_DIR = '/.floe/sockets';
/** Paths in the sandbox of the directories with the sockets of the session's model proxy and of the egress proxy. */
const PROXY_DIR = '/.floe/proxy';
const EGRESS_DIR = '/.floe/egress';
/** Name of the box server's socket in the directory of the sockets. */
export const BOX_SOCKET = 'box.sock';

const variablesSchema = z.record(z.string(), z.string());

/**
 * Capabilities of root in a sandbox. Package managers and test suites need them to change owners and permissions of files and to become other
 * users. `SYS_PTRACE` lets the box server recognize the processes of other users.
 */
export const ROOT_CAPABILITIES = [
  'CHOWN',
  'DAC_OVERRIDE',
  'FOWNER',
  'FSETID',
  'KILL',
  'SETGID',
  'SETUID',
  'SYS_PTRACE',
];

/** The programs of floe in a sandbox: the box server, the MCP server, and the program that operates a browser. */
export type BoxPrograms = SandboxPrograms<'box' | 'mcp' | 'browser'>;

/**
 * Copies the programs to the directory `.share` of `dir`, which is mounted in sandboxes, and writes there a system call filter that denies
 * `calls`.
 */
export async function copyBoxPrograms(dir: string, calls: readonly DeniedCall[]): Promise<BoxPrograms> {
  const programs = await copySandboxPrograms(join(dir, '.share'), {
    box: 'box-server',
    mcp: 'mcp-server',
    browser: 'browser',
  });
  await writeFile(filterPath(programs), seccompProfile(calls));
  return programs;
}

/** Returns the path on the host of the system call filter, in the JSON form of container engines. */
export function filterPath({ dir }: BoxPrograms): string {
  return join(dir, 'seccomp.json');
}

/** Returns the command that starts the box server. */
export function boxServerCommand(
  programs: BoxPrograms,
  { proxy, egressSocket = null }: Pick<StartRequest, 'proxy' | 'egressSocket'>,
  more: Partial<Pick<BoxServerOptions, 'reportsEnvironment' | 'user'>> = {},
): string[] {
  const server = boxServerArgument({
    socketPath: `${SOCKETS_DIR}/${BOX_SOCKET}`,
    forwards: [
      ...(proxy === null ? [] : [{ port: PROXY_PORT, socketPath: `${PROXY_DIR}/${basename(proxy.socketPath)}` }]),
      ...(egressSocket === null ? [] : [{ port: EGRESS_PORT, socketPath: `${EGRESS_DIR}/${basename(egressSocket)}` }]),
    ],
    gatewayPidNamespace: readlinkSync('/proc/self/ns/pid'),
    ...more,
  });
  return [...programCommand(programs, PLACE, 'box', BOX_NODE_FLAGS), server];
}

/** Returns the command that starts a box server for the tools of one user, with the socket `name` in the directory of the sockets. */
export function toolServerCommand(programs: BoxPrograms, name: string): string[] {
  // Processes of other users share the pid namespace.
  const server = boxServerArgument({ socketPath: `${SOCKETS_DIR}/${name}`, gatewayPidNamespace: null });
  return [...programCommand(programs, PLACE, 'box', BOX_NODE_FLAGS), server];
}

/** Returns the command line of the MCP server in a sandbox. */
export function mcpCommand(programs: BoxPrograms): string[] {
  return programCommand(programs, PLACE, 'mcp', BOX_NODE_FLAGS);
}

/** Returns the read-only mounts of a sandbox, as pairs of a host path and a path in the sandbox. `dir` contains the box server's socket. */
export function boxMounts(
  dir: string,
  programs: BoxPrograms,
  { proxy, egressSocket = null, readOnlyMounts }: StartRequest,
): (readonly [string, string])[] {
  const sockets: (readonly [string | undefined, string])[] = [
    [proxy?.socketPath, PROXY_DIR],
    [egressSocket ?? undefined, EGRESS_DIR],
  ];
  return [
    [programs.dir, PLACE.dir],
    [process.execPath, PLACE.node],
    [dir, SOCKETS_DIR],
    ...sockets.flatMap(([path, target]) => (path === undefined ? [] : [[dirname(path), target] as const])),
    ...readOnlyMounts.map(({ hostPath, sandboxPath }) => [hostPath, sandboxPath] as const),
  ];
}

/**
 * Returns the variables for commands of root in a sandbox with another user, as {@link rootVariables} does. The directories of the user must
 * already exist. The user could otherwise create a directory later that counts as protected now.
 */
export async function askRootVariables(
  connection: BoxConnection,
  { uid, gid }: UserIds,
  variables: Readonly<Record<string, string>>,
): Promise<Record<string, string>> {
  const answer = await connection.askFiles({ type: 'root_variables', user: { uid, gid }, variables });
  requireDone(answer, 'the variables of root');
  return parseAs(variablesSchema, parseJson(answer.content), 'the variables of root');
}

/**
 * Creates the directories that floe uses in a sandbox, if they are missing, and returns their paths. The directories belong to `owner`, except
 * for a workdir of the image. With an `owner`, the read-only mounts are made reachable for all users, because they can be below a directory of
 * root.
 */
export async function createPaths(
  connection: BoxConnection,
  { spec, readOnlyMounts }: Pick<StartRequest, 'spec' | 'readOnlyMounts'>,
  owner: FileOwner = null,
): Promise<RuntimePaths> {
  const paths = sandboxPaths(spec);
  for (const path of Object.values(paths)) {
    const adopts = path !== spec.workdir;
    requireDone(await connection.askFiles({ type: 'create_directory', path, mode: 0o755, owner, adopts }), path);
  }
  for (const { sandboxPath: path } of owner === null ? [] : readOnlyMounts) {
    requireDone(await connection.askFiles({ type: 'make_reachable', path }), path);
  }
  return paths;
}
