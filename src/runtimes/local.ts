import { randomBytes } from 'node:crypto';
import { mkdir, rm } from 'node:fs/promises';
import { join } from 'node:path';
import type { Clock } from '../core/clock.ts';
import { asFloeError, FloeError } from '../core/errors.ts';
import { checkEnvironment } from './bubblewrap/command.ts';
import { missingProgram } from './bubblewrap/host.ts';
import { LocalRuntime } from './local-runtime.ts';
import type { Cgroups } from './processes/cgroup.ts';
import { labelled, type Owner } from './processes/owner.ts';
import type { Runtime, RuntimeProblem, RuntimeProvider, StartRequest } from './runtime.ts';
import type { Spawner } from './spawn/spawner.ts';

export type LocalOptions = {
  readonly spawner: Spawner;
  readonly clock: Clock;
  readonly stateDir: string;
  readonly owner: Owner;
  /** null: none can be made here. */
  readonly cgroups: () => Promise<Cgroups | null>;
};

/** Of a session's directory, one each. */
const DIRS = ['work', 'home', 'tmp', 'artifacts', 'logs'];

/**
 * Runs sessions as plain processes of the gateway's own user, in a directory of their own. There is no isolation: an
 * agent can read and change whatever the gateway's user can. For agents and tasks that are trusted.
 */
export class LocalProvider implements RuntimeProvider {
  readonly backend = 'local';
  private readonly options: LocalOptions;
  private readonly dir: string;

  constructor(options: LocalOptions) {
    this.options = options;
    this.dir = join(options.stateDir, `local-${process.pid}`);
  }

  async probe(): Promise<RuntimeProblem | null> {
    const missing = await missingProgram(['sh', 'tar', 'find']);
    return missing === null ? null : { problem: `${missing} is not installed`, remedy: `install ${missing}` };
  }

  async start(request: StartRequest, signal: AbortSignal): Promise<Runtime> {
    signal.throwIfAborted();
    const { spec } = request;
    if (spec.image !== null) {
      throw new FloeError('unsupported', 'runtime.image: the local back end has no images; use bubblewrap');
    }
    checkEnvironment(spec.env);
    const dir = join(this.dir, request.name);
    try {
      for (const name of DIRS) await mkdir(join(dir, name), { recursive: true, mode: 0o700 });
      signal.throwIfAborted();
      const { clock, owner } = this.options;
      const cgroups = await this.options.cgroups();
      signal.throwIfAborted();
      const spawner = labelled(this.options.spawner, owner, request.name);
      const token = randomBytes(9).toString('base64url');
      return new LocalRuntime({ spawner, clock, owner, cgroups, dir, request, token });
    } catch (error) {
      await rm(dir, { recursive: true, force: true });
      signal.throwIfAborted();
      throw asFloeError(error, 'runtime_failed');
    }
  }
}
