import { spawn } from 'node:child_process';
import { connect, createServer, type Socket } from 'node:net';
import { constants } from 'node:os';

/*
 * Runs inside a sandbox without network, as the parent of the harness: listens on the sandbox's own loopback, carries
 * each connection to the session's proxy through a Unix socket, and ends as its command ends. Usage:
 *
 *   proxy-relay.mjs <port> <socket path> <environment prefix> <program> [argument…]
 *
 * It imports nothing but Node: only this one file is visible in the sandbox.
 */

const [portText = '', socketPath = '', prefix = '', program = '', ...args] = process.argv.slice(2);

/** The command's environment travels under a prefix, so that it (NODE_OPTIONS, say) has no effect on the relay. */
function commandEnvironment(): Record<string, string> {
  const env: Record<string, string> = {};
  for (const [name, value] of Object.entries(process.env)) {
    if (name.startsWith(prefix) && value !== undefined) env[name.slice(prefix.length)] = value;
  }
  return env;
}

function carry(client: Socket): void {
  const upstream = connect({ path: socketPath, allowHalfOpen: true });
  const drop = (): void => {
    client.destroy();
    upstream.destroy();
  };
  // Either side going away must be seen by the other: the proxy aborts the engine call of a client that left.
  client.on('error', drop).on('close', drop);
  upstream.on('error', drop).on('close', drop);
  client.setNoDelay(true);
  client.pipe(upstream);
  upstream.pipe(client);
}

function runCommand(): void {
  const child = spawn(program, args, { stdio: 'inherit', env: commandEnvironment() });
  child.once('error', (cause) => {
    // The conventional code of a shell that does not find a command.
    process.stderr.write(`${program}: ${cause.message}\n`, () => process.exit(127));
  });
  child.once('exit', (code, signal) => {
    if (signal === null) process.exit(code ?? 1);
    process.exit(128 + constants.signals[signal]);
  });
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.on(signal, () => child.kill(signal));
}

const server = createServer({ allowHalfOpen: true }, carry);
server.once('error', (cause) => {
  process.stderr.write(`the proxy relay cannot listen: ${cause.message}\n`, () => process.exit(126));
});
server.listen(Number(portText), '127.0.0.1', runCommand);
