import { readlinkSync } from 'node:fs';
import { connect, type Socket } from 'node:net';
import { ChildRunner } from '../spawn/child-runner.ts';
import type { HelperReply } from '../spawn/spawner.ts';
import { COMMAND_MARK } from '../workspace/environment.ts';
import { BoxFiles } from './files.ts';
import { encodeFrame, type Frame, FrameReader } from './frames.ts';
import type { BoxReply, BoxRequest } from './messages.ts';
import { listenForProxy } from './proxy-forward.ts';
import { BoxTools } from './tools.ts';
import { findUser } from './users.ts';

/*
 * The box server: a program that floe runs inside a sandbox, as root if the sandbox has a root user. It connects to the gateway through a Unix
 * socket. For the gateway it runs commands and reads and writes files. It ends when the connection ends.
 *
 * It imports only modules of Node and files of floe that do the same, because the sandbox contains nothing else.
 */

/** Maximum lengths of a request: its header contains arguments and environment of a command, its body stdin or a part of a file. */
const REQUEST_LIMITS = { headerBytes: 64 * 1024 * 1024, bodyBytes: 1024 * 1024 * 1024 };

/** The only argument of the program, as JSON. */
export type BoxServerOptions = {
  /** Path in the sandbox of the Unix socket on which the gateway listens. */
  readonly socketPath: string;
  /** Ports of the sandbox's loopback interface, and the Unix sockets in the sandbox to which their connections are forwarded. */
  readonly forwards: readonly { readonly port: number; readonly socketPath: string }[];
  /** User other than root whose ids the box server reports, as {@link findUser} takes it; `null` for none. */
  readonly user: string | null;
  /**
   * The gateway's pid namespace, as `/proc/self/ns/pid` names it. In another namespace, the box server may kill every process but the first
   * one when a command ends. `null` when the box server is in the gateway's namespace.
   */
  readonly gatewayPidNamespace: string | null;
  /** Directory to which the operations on files of tools are confined; `null` for the whole sandbox. */
  readonly toolRoot: string | null;
  /** Whether the box server reports its environment variables, which it has from the image. */
  readonly reportsEnvironment?: boolean;
};

const options = JSON.parse(process.argv[2] ?? '') as BoxServerOptions;

process.umask(0o022);
const socket = connect(options.socketPath);
const ownsNamespace =
  options.gatewayPidNamespace !== null && readlinkSync('/proc/self/ns/pid') !== options.gatewayPidNamespace;
const mark = process.env[COMMAND_MARK];
const runner = new ChildRunner(replyAboutCommand, {
  ownsNamespace: () => ownsNamespace && tools.isIdle,
});
const tools = new BoxTools(
  {
    root: options.toolRoot,
    marks: mark === undefined ? {} : { [COMMAND_MARK]: mark },
    onIdle: () => runner.endRest(),
  },
  send,
);
const files = new BoxFiles(send, options.user !== null);
const reader = new FrameReader(REQUEST_LIMITS, receive);

socket.on('data', (chunk: Buffer) => reader.push(chunk));
socket.on('error', end);
socket.on('close', end);
socket.once('connect', () => void start(socket));

async function start(connected: Socket): Promise<void> {
  connected.setNoDelay(true);
  await Promise.all(options.forwards.map(({ port, socketPath }) => listenForProxy(port, socketPath)));
  const environment = options.reportsEnvironment === true ? variables(process.env) : {};
  send({ type: 'ready', environment, user: options.user === null ? null : await findUser(options.user) });
}

function variables(environment: NodeJS.ProcessEnv): Record<string, string> {
  const defined = Object.entries(environment).flatMap(([name, value]) => (value === undefined ? [] : [[name, value]]));
  return Object.fromEntries(defined);
}

function receive({ header, body }: Frame): void {
  const request = header as BoxRequest;
  switch (request.type) {
    case 'spawn':
      runner.start(request.id, { ...request.request, stdin: request.hasStdin ? body : undefined });
      break;
    case 'kill':
      runner.kill(request.id);
      break;
    case 'close':
      end();
      break;
    case 'tool_ping':
    case 'tool_open':
    case 'tool_run':
    case 'tool_interrupt':
    case 'tool_cancel':
    case 'tool_type':
    case 'tool_restart':
    case 'tool_close':
    case 'tool_read':
    case 'tool_write':
    case 'tool_edit':
    case 'tool_list':
      tools.receive(request, body);
      break;
    default:
      files.receive(request, body);
  }
}

function replyAboutCommand(message: HelperReply): void {
  if (message.type === 'ready') return;
  if (message.type !== 'done') {
    send(message);
    return;
  }
  const { stdout, stderr, ...result } = message.result;
  send({ type: 'done', id: message.id, result, stdoutBytes: stdout.length }, Buffer.concat([stdout, stderr]));
}

function send(message: BoxReply, body?: Buffer): void {
  for (const part of encodeFrame(message, body)) socket.write(part);
}

function end(): void {
  runner.killAll();
  tools.killAll();
  process.exit(0);
}
