#!/usr/bin/env node
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { Command } from 'commander';
import { asFloeError } from '../core/errors.ts';
import { packageRoot } from '../core/package-root.ts';
import { systemError } from '../core/system-errors.ts';
import { printError } from './print.ts';

type Register = (program: Command) => void;

/**
 * Functions that load each command by its name. Commands are loaded on demand, because the modules of the server and the simulated engine
 * take half a second to load.
 */
const COMMANDS: Readonly<Record<string, () => Promise<Register>>> = {
  up: async () => (await import('./up.ts')).registerUp,
  server: async () => (await import('./server.ts')).registerServer,
  gateway: async () => (await import('./gateway.ts')).registerGateway,
  sim: async () => (await import('./sim.ts')).registerSim,
  submit: async () => (await import('./submit.ts')).registerSubmit,
  status: async () => (await import('./status.ts')).registerStatus,
  watch: async () => (await import('./watch.ts')).registerWatch,
  results: async () => (await import('./results.ts')).registerResults,
  cancel: async () => (await import('./cancel.ts')).registerCancel,
  export: async () => (await import('./export.ts')).registerExport,
  trace: async () => (await import('./trace.ts')).registerTrace,
  artifacts: async () => (await import('./artifacts.ts')).registerArtifacts,
  engines: async () => (await import('./engines.ts')).registerEngines,
  harness: async () => (await import('./harness.ts')).registerHarness,
  image: async () => (await import('./image.ts')).registerImage,
  evaluator: async () => (await import('./evaluator.ts')).registerEvaluator,
  harbor: async () => (await import('./harbor.ts')).registerHarbor,
  tasks: async () => (await import('./tasks.ts')).registerTasks,
  doctor: async () => (await import('./doctor.ts')).registerDoctor,
  cluster: async () => (await import('./cluster.ts')).registerCluster,
  topology: async () => (await import('./topology.ts')).registerTopology,
  demo: async () => (await import('./demo.ts')).registerDemo,
};

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
  const loadCommand = COMMANDS[process.argv[2] ?? ''];
  // Loads all commands when the command line names no existing command, because the help and the suggestions for a mistyped command list
  // all of them.
  const loaders = loadCommand === undefined ? Object.values(COMMANDS) : [loadCommand];
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
  const manifest = JSON.parse(readFileSync(join(packageRoot(), 'package.json'), 'utf8')) as {
    version: string;
  };
  return manifest.version;
}
