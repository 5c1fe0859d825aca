import type { Readable } from 'node:stream';
import { FloeError } from '@floe-rl/core';
import { type HttpPool, httpPool, openHttpPath } from '@floe-rl/core/http';

/** Version of the Docker Engine API. Docker 20.10 and later and Podman 4 support it. */
const API_VERSION = 'v1.41';
/** Maximum number of concurrent connections to a container engine. */
const CONNECTIONS = 64;
/** Maximum number of bytes of a reply that are read. */
const MAX_REPLY_BYTES = 16 * 1024 * 1024;

/** A container, as `POST /containers/create` takes it. Only the fields that floe uses. */
export type ContainerSpec = {
  readonly Image: string;
  readonly User: string;
  readonly Entrypoint: readonly string[];
  readonly Cmd: readonly string[];
  readonly Env: readonly string[];
  readonly WorkingDir: string;
  readonly Hostname: string;
  readonly Labels: Readonly<Record<string, string>>;
  readonly HostConfig: Readonly<Record<string, unknown>>;
};

/** What `GET /images/{name}/json` reports about an image. */
export type ImageInfo = {
  readonly id: string;
  /** Environment variables of the image. */
  readonly env: Readonly<Record<string, string>>;
  /** User of the image, as `name`, `uid`, `name:group` or `uid:gid`; an empty string for root. */
  readonly user: string;
  /** Working directory of the image; an empty string when it names none. */
  readonly workdir: string;
};

/** What `GET /info` reports about the engine. */
export type EngineInfo = {
  /** Whether the engine runs without root privileges, so that root of a container is not root of the host. */
  readonly isRootless: boolean;
  /** Whether the engine can set the limits of a container's control group, by the field of the runtime's specification. */
  readonly limits: Readonly<Record<'memory_mb' | 'max_processes' | 'cpus', boolean>>;
};

/** How a container ended. */
export type ContainerState = {
  readonly isRunning: boolean;
  readonly wasOutOfMemory: boolean;
  readonly exitCode: number;
};

type Reply = { readonly status: number; readonly body: Buffer };

/** A container engine that serves the Docker Engine API on a Unix socket: Docker, or Podman's service. */
export class ContainerEngine {
  readonly socketPath: string;
  private readonly pool: HttpPool;

  constructor(socketPath: string) {
    this.socketPath = socketPath;
    this.pool = httpPool('http://localhost', { socketPath, connections: CONNECTIONS });
  }

  /** Returns the name and version of the engine. Rejects with `runtime_unavailable` when it does not respond. */
  async version(signal: AbortSignal): Promise<string> {
    const { Version: version } = await this.json('GET', '/version', signal);
    return String(version);
  }

  async info(signal: AbortSignal): Promise<EngineInfo> {
    const info = await this.json('GET', '/info', signal);
    const options = (info.SecurityOptions ?? []) as string[];
    const isRootless = info.Rootless === true || options.some((option) => option.startsWith('name=rootless'));
    // Podman without root privileges ignores limits with control groups of version 1, although it reports that it has them.
    const hasGroups = !(isRootless && info.CgroupVersion === '1');
    const canLimit = (name: string): boolean => hasGroups && info[name] === true;
    return {
      isRootless,
      limits: {
        memory_mb: canLimit('MemoryLimit'),
        max_processes: canLimit('PidsLimit'),
        cpus: canLimit('CpuCfsQuota'),
      },
    };
  }

  /** Returns the facts about an image; `null` when the engine does not have it. */
  async image(name: string, signal: AbortSignal): Promise<ImageInfo | null> {
    const reply = await this.request('GET', `/images/${encodeURIComponent(name)}/json`, signal);
    if (reply.status === 404) return null;
    const image = this.parse(reply, `GET image ${name}`);
    const config = (image.Config ?? {}) as { Env?: string[] | null; User?: string | null; WorkingDir?: string | null };
    const env = (config.Env ?? []).map((entry) => {
      const at = entry.indexOf('=');
      return [entry.slice(0, at), entry.slice(at + 1)] as const;
    });
    return {
      id: String(image.Id),
      env: Object.fromEntries(env),
      user: config.User ?? '',
      workdir: config.WorkingDir ?? '',
    };
  }

  /** Creates a container and returns its id. */
  async create(name: string, spec: ContainerSpec, signal: AbortSignal): Promise<string> {
    const { Id: id } = await this.json('POST', `/containers/create?name=${encodeURIComponent(name)}`, signal, spec);
    return String(id);
  }

  async start(id: string, signal: AbortSignal): Promise<void> {
    const reply = await this.request('POST', `/containers/${id}/start`, signal);
    if (reply.status >= 300) throw this.failure(reply, 'start container');
  }

  /** Resolves with the exit code when the container has ended. */
  async wait(id: string, signal: AbortSignal): Promise<number> {
    const { StatusCode: code } = await this.json('POST', `/containers/${id}/wait?condition=not-running`, signal);
    return Number(code);
  }

  /** Returns the state of a container; `null` when the engine does not have it any more. */
  async state(id: string, signal: AbortSignal): Promise<ContainerState | null> {
    const reply = await this.request('GET', `/containers/${id}/json`, signal);
    if (reply.status === 404) return null;
    const state = this.parse(reply, 'GET container').State as {
      Running: boolean;
      OOMKilled: boolean;
      ExitCode: number;
    };
    return { isRunning: state.Running, wasOutOfMemory: state.OOMKilled, exitCode: state.ExitCode };
  }

  /** Returns the end of what the container's first process wrote to stdout and stderr. */
  async logs(id: string, signal: AbortSignal): Promise<string> {
    const { body } = await this.request('GET', `/containers/${id}/logs?stdout=1&stderr=1&tail=20`, signal);
    return logTextOf(body).trim();
  }

  /** Ends all processes of a container and removes it with its anonymous volumes. Does nothing when there is no such container. */
  async remove(id: string, signal: AbortSignal): Promise<void> {
    const reply = await this.request('DELETE', `/containers/${id}?force=1&v=1`, signal);
    // 409: another removal is in progress.
    if (reply.status >= 300 && reply.status !== 404 && reply.status !== 409)
      throw this.failure(reply, 'remove container');
  }

  /** Returns the containers with a label, running or not. */
  async labelled(
    label: string,
    signal: AbortSignal,
  ): Promise<{ readonly id: string; readonly labels: Readonly<Record<string, string>> }[]> {
    const filters = encodeURIComponent(JSON.stringify({ label: [label] }));
    const reply = await this.request('GET', `/containers/json?all=1&filters=${filters}`, signal);
    if (reply.status >= 300) throw this.failure(reply, 'list containers');
    const list = JSON.parse(reply.body.toString()) as { Id: string; Labels: Record<string, string> | null }[];
    return list.map(({ Id: id, Labels: labels }) => ({ id, labels: labels ?? {} }));
  }

  async close(): Promise<void> {
    await this.pool.destroy();
  }

  private async json(
    method: 'GET' | 'POST',
    path: string,
    signal: AbortSignal,
    body?: object,
  ): Promise<Record<string, unknown>> {
    return this.parse(await this.request(method, path, signal, body), `${method} ${path}`);
  }

  private parse(reply: Reply, what: string): Record<string, unknown> {
    if (reply.status >= 300) throw this.failure(reply, what);
    return JSON.parse(reply.body.toString()) as Record<string, unknown>;
  }

  private request(method: 'GET' | 'POST' | 'DELETE', path: string, signal: AbortSignal, body?: object): Promise<Reply> {
    if (body === undefined) return this.send(method, path, null, signal);
    return this.send(method, path, { type: 'application/json', content: JSON.stringify(body) }, signal);
  }

  /** Sends a request and returns the reply, whatever its status. Rejects with `runtime_unavailable` when the engine does not respond. */
  async send(
    method: 'GET' | 'POST' | 'DELETE',
    path: string,
    body: { readonly type: string; readonly content: string | Readable } | null,
    signal: AbortSignal,
  ): Promise<Reply> {
    try {
      const reply = await openHttpPath(this.pool, `/${API_VERSION}${path}`, {
        method,
        signal,
        ...(body === null ? {} : { headers: { 'content-type': body.type }, body: body.content }),
      });
      const tooLarge = () => new Error(`the reply is longer than ${MAX_REPLY_BYTES} bytes`);
      return { status: reply.status, body: await reply.read(MAX_REPLY_BYTES, tooLarge) };
    } catch (cause) {
      signal.throwIfAborted();
      const why = (cause as Error).message;
      const message = `the container engine at ${this.socketPath} does not respond: ${why}`;
      throw new FloeError('runtime_unavailable', message, { socket: this.socketPath }, cause);
    }
  }

  private failure({ status, body }: Reply, what: string): FloeError {
    const text = body.toString();
    let message = text.trim();
    try {
      message = String((JSON.parse(text) as { message?: unknown }).message ?? message);
    } catch {
      // The reply is not JSON, so its text is the message.
    }
    return new FloeError('runtime_failed', `the container engine could not do "${what}" (${status}): ${message}`, {
      status,
    });
  }
}

/** Number of bytes before each part of the output of a container. The last four are the length of the part. */
const PART_HEADER_BYTES = 8;

/** Joins the parts of the output of a container. */
function logTextOf(body: Buffer): string {
  let text = '';
  for (let at = 0; at + PART_HEADER_BYTES <= body.length; ) {
    const start = at + PART_HEADER_BYTES;
    const end = start + body.readUInt32BE(start - 4);
    text += body.toString('utf8', start, end);
    at = end;
  }
  return text;
}

/** A line of the reply to a pull or a build. `stream` is output of a build; `message` is the reason of a refused request. */
type ImageProgress = { readonly stream?: string; readonly error?: string; readonly message?: string };

/** Parses a line of the reply to a pull or a build. A line that is not a JSON object, such as an empty one, has no fields. */
export function progressOf(line: string): ImageProgress {
  try {
    const value: unknown = JSON.parse(line);
    return typeof value === 'object' && value !== null ? value : {};
  } catch {
    return {};
  }
}
