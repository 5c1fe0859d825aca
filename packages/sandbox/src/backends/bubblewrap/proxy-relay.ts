import { spawn } from 'node:child_process';
import { constants } from 'node:os';
import { listenForProxy } from '../../box/proxy-forward.ts';

/*
 * The proxy relay: a program that runs inside a sandbox without network, as the parent of the harness. It listens on the sandbox's loopback
 * interface, forwards each connection to a proxy on the host through a Unix socket, and ends with the exit code of its command. Usage:
 * `proxy-relay.js <port>=<socket path>[,…] <environment prefix> <program> [argument…]`. It imports only modules of Node and
 * files of floe that do the same, because the sandbox contains nothing else.
 */

const [forwards = '', prefix = '', program = '', ...args] = process.argv.slice(2);

/**
 * Returns the environment of the command. The variables reach the relay with a prefix, so that variables such as NODE_OPTIONS do not affect
 * the relay itself.
 */
function commandEnvironment(): Record<string, string> {
  const env: Record<string, string> = {};
  for (const [name, value] of Object.entries(process.env)) {
    if (name.startsWith(prefix) && value !== undefined) env[name.slice(prefix.length)] = value;
  }
  return env;
}

function runCommand(): void {
  const child = spawn(program, args, { stdio: 'inherit', env: commandEnvironment() });
  child.once('error', (cause) => {
    // Exits with code 127, as a shell does for a command that does not exist.
    process.stderr.write(`${program}: ${cause.message}\n`, () => process.exit(127));
  });
  child.once('exit', (code, signal) => {
    if (signal === null) process.exit(code ?? 1);
    process.exit(128 + constants.signals[signal]);
  });
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.on(signal, () => child.kill(signal));
}

const listening = forwards.split(',').map((forward) => {
  const [port = '', socketPath = ''] = forward.split('=');
  return listenForProxy(Number(port), socketPath);
});
Promise.all(listening).then(runCommand, (cause: Error) => {
  process.stderr.write(`the proxy relay cannot listen: ${cause.message}\n`, () => process.exit(126));
});
