import { randomBytes } from 'node:crypto';
import { join } from 'node:path';
import { FloeError, MIB, removeTree } from '@floe-rl/core';
import type { Isolation, RuntimeBackend } from '@floe-rl/core/schema';
import { type BoxConnection, type BoxEnd, BoxListener, replyBodyBytes } from '../../box/connection.ts';
import type { SandboxUser } from '../../box/users.ts';
import { sandboxEnvironment } from '../../workspace/environment.ts';
import type { SandboxStart } from '../host-provider.ts';
import {
  askRootVariables,
  BOX_SOCKET,
  type BoxPrograms,
  createPaths,
  mcpCommand,
  toolServerCommand,
} from './placement.ts';
import { BoxRuntime } from './runtime.ts';

/**
 * A sandbox with a box server as its main program, and the functions of its back end that create, watch and remove it. `Sandbox` is the back
 * end's identification of the sandbox.
 */
export type Boxed<Sandbox> = {
  readonly backend: RuntimeBackend;
  readonly isolation: Isolation;
  /** Directory on the host with the socket of the box server. */
  readonly socketDir: string;
  /** Origin at which commands reach the session's proxy. */
  readonly proxyOrigin: string;
  /** User of the agent, in the form of an image's user; `null` for root, or for the only user of the sandbox. */
  readonly user: string | null;
  /** Returns the environment variables of the image. `reported` has the variables that the box server reports. */
  readonly imageVariables: (reported: Readonly<Record<string, string>>) => Readonly<Record<string, string>>;
  /** Directories in the sandbox of the control group that contains all of its processes. */
  readonly cgroupDirectories: readonly string[];
  /** Creates the sandbox, whose box server then connects to its socket. Leaves nothing when it rejects. */
  readonly create: (signal: AbortSignal) => Promise<Sandbox>;
  /** Rejects when the sandbox ends before its box server is ready, or when `signal` aborts. */
  readonly failure: (sandbox: Sandbox, signal: AbortSignal) => Promise<never>;
  /** Returns how the sandbox ended after its connection was lost. */
  readonly explainEnd: (sandbox: Sandbox) => Promise<BoxEnd>;
  /**
   * Ends the sandbox with all its processes and removes it. `connection` is `null` when the start has failed. May be called twice. Must not
   * reject.
   */
  readonly remove: (sandbox: Sandbox, connection: BoxConnection | null) => Promise<void>;
};

/** Creates a sandbox and waits until its box server is ready. Rejects with `runtime_failed`, or with the reason of `signal`. */
export async function startBoxed<Sandbox>(
  {
    clock,
    dir,
    request,
    shared: programs,
  }: Pick<SandboxStart<unknown, BoxPrograms>, 'clock' | 'dir' | 'request' | 'shared'>,
  boxed: Boxed<Sandbox>,
  signal: AbortSignal,
): Promise<BoxRuntime> {
  const { spec } = request;
  const { backend, isolation, proxyOrigin, cgroupDirectories } = boxed;
  const maxBodyBytes = replyBodyBytes(Math.floor(spec.max_output_mb * MIB));
  const listener = await BoxListener.open(join(boxed.socketDir, BOX_SOCKET), { clock, maxBodyBytes });
  const starting = new AbortController();
  try {
    const sandbox = await boxed.create(signal);
    try {
      const failed = boxed.failure(sandbox, AbortSignal.any([signal, starting.signal]));
      failed.catch(() => {});
      const connection = await listener.accept(failed, signal);
      const user = requireUser(boxed.user, connection.user);
      const paths = await createPaths(connection, request, user);
      const imageVariables = boxed.imageVariables(connection.environment);
      return new BoxRuntime({
        ...{ backend, isolation, clock, dir, request, connection, paths, proxyOrigin, cgroupDirectories },
        environment: sandboxEnvironment(request, { ...namesOf(user), ...imageVariables }),
        user:
          user === null
            ? null
            : {
                owner: { uid: user.uid, gid: user.gid },
                rootVariables: await askRootVariables(connection, user, { ...imageVariables, ...spec.env }),
                toolServerCommand: (socket) => toolServerCommand(programs, socket),
              },
        mcpCommand: mcpCommand(programs),
        token: randomBytes(9).toString('base64url'),
        end: async () => {
          await boxed.remove(sandbox, connection);
          await removeTree(dir).catch(() => {});
        },
        explainEnd: () => boxed.explainEnd(sandbox),
      });
    } catch (error) {
      await boxed.remove(sandbox, null);
      throw error;
    }
  } finally {
    starting.abort();
    await listener.close();
  }
}

/** Returns the user that a box server has found; `null` for root. Throws `schema_violation` when it has not found the user `wanted`. */
function requireUser(wanted: string | null, found: SandboxUser | null): SandboxUser | null {
  if (wanted === null) return null;
  if (found === null) {
    const message = `the image has no user ${wanted}`;
    throw new FloeError('schema_violation', `runtime.user: ${message}`, { path: 'runtime.user', user: wanted });
  }
  return found.uid === 0 ? null : found;
}

function namesOf(user: SandboxUser | null): Record<string, string> {
  return user?.name == null ? {} : { USER: user.name, LOGNAME: user.name };
}
