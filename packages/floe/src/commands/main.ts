#!/usr/bin/env node
import { readFileSync } from 'node:fs';
import { asFloeError, assetPath, systemError } from '@floe-rl/core';
import { Command } from 'commander';
import { COMMANDS } from './commands.ts';
import { printError } from './print.ts';

const program = new Command('floe')
  .description('Rollouts as a service for reinforcement learning of LLM agents')
  .version(packageVersion())
  .showHelpAfterError();
const asJson = process.argv.includes('--json');

// Exits without an error when the reader of standard output closes it early, as in `floe results --json | head`.
process.stdout.on('error', (error: NodeJS.ErrnoException) => {
  if (error.code === 'EPIPE') process.exit(0);
  // The error is printed as text to standard error. As JSON it would go to standard output, which has just failed.
  process.exit(report(error, false));
});
// Standard error carries only progress and messages, so a command continues when it cannot be written to, for example on a full disk.
process.stderr.on('error', () => {});
// Prints errors outside the command's promise, such as an error event without a listener, like the errors of the command itself.
process.on('uncaughtException', (error) => process.exit(report(error, asJson)));

try {
  const [, , first = ''] = process.argv;
  const loadCommand = COMMANDS[first];
  // Loads all commands when the command line names no existing command, because the help and the suggestions for a mistyped command list
  // all of them. The version needs no command.
  const all = first === '--version' || first === '-V' ? [] : Object.values(COMMANDS);
  const loaders = loadCommand === undefined ? all : [loadCommand];
  for (const load of loaders) (await load())(program);
  const hasTopology = process.argv.some((arg) => /^--topology(=|$)/.test(arg));
  await program.parseAsync(
    hasTopology ? await (await import('./topology.ts')).withTopology(process.argv) : process.argv,
  );
} catch (error) {
  process.exitCode = report(error, asJson);
}

/** Prints an error and returns the exit code: 2 when the input was refused, and 1 after any other failure. */
function report(thrown: unknown, inJson: boolean): number {
  const error = systemError(thrown) ?? asFloeError(thrown);
  printError(error, inJson);
  return error.status < 500 ? 2 : 1;
}

function packageVersion(): string {
  const manifest = JSON.parse(readFileSync(assetPath(import.meta.url, 'package.json'), 'utf8')) as {
    version: string;
  };
  return manifest.version;
}
