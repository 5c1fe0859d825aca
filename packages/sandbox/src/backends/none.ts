import { FloeError } from '@floe-rl/core';
import {
  NO_SNAPSHOTS,
  type Runtime,
  type RuntimeDescription,
  type RuntimeProvider,
  type StartRequest,
} from '../api/runtime.ts';
import { refuseUser } from './users.ts';

/** Back end for agents that need no sandbox. Its sandboxes run no commands and have no files. */
export class NoneProvider implements RuntimeProvider {
  readonly backend = 'none';

  async probe(): Promise<null> {
    return null;
  }

  async describe(): Promise<RuntimeDescription> {
    return {
      isolation: 'without commands and files',
      weaknesses: [],
      capabilities: {
        isolation: 'none',
        limits: null,
        networks: [],
        snapshots: NO_SNAPSHOTS,
        privileges: 'any',
      },
    };
  }

  async start({ spec, proxy }: StartRequest, signal: AbortSignal): Promise<Runtime> {
    signal.throwIfAborted();
    refuseUser(this.backend, spec);
    if (spec.image !== null) throw new FloeError('unsupported', 'runtime.image: the back end none has no images');
    const runtime: Runtime = {
      backend: 'none',
      isolation: 'none',
      paths: { workdir: '/', home: '/', artifacts: '/', logs: '/' },
      proxyOrigin: proxy?.tcpOrigin ?? '',
      mcpCommand: [],
      exec: () => refuse('commands'),
      writeFiles: async (files) => {
        if (files.length > 0) await refuse('files');
      },
      uploadDir: () => refuse('files'),
      readFile: async () => null,
      openTools: () => refuse('tools'),
      snapshot: () => refuse('snapshots'),
      restore: () => refuse('snapshots'),
      asRoot: () => runtime,
      stop: async () => {},
    };
    return runtime;
  }
}

function refuse(what: string): Promise<never> {
  const message = `runtime.backend: none has no ${what}; choose a back end that runs commands`;
  return Promise.reject(new FloeError('unsupported', message, { path: 'runtime.backend' }));
}
