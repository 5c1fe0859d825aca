#!/usr/bin/env node
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { Command } from 'commander';
import { FloeError } from '../core/errors.ts';
import { packageRoot } from '../core/package-root.ts';
import { printError } from './print.ts';

type Register = (program: Command) => void;

/** Loaded on demand: the server's and the simulator's modules would cost every small command half a second. */
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
  trace: async () => (await import('./trace.ts')).registerTrace,
  artifacts: async () => (await import('./artifacts.ts')).registerArtifacts,
  engines: async () => (await import('./engines.ts')).registerEngines,
  harness: async () => (await import('./harness.ts')).registerHarness,
  doctor: async () => (await import('./doctor.ts')).registerDoctor,
  cluster: async () => (await import('./cluster.ts')).registerCluster,
  topology: async () => (await import('./topology.ts')).registerTopology,
  demo: async () => (await import('./demo.ts')).registerDemo,
};

const program = new Command('floe')
  .description('Rollouts as a service for reinforcement learning of LLM agents')
  .version(packageVersion())
  .showHelpAfterError();

// `floe results --json | head` closes our output early; that is not a failure.
process.stdout.on('error', (error: NodeJS.ErrnoException) => {
  if (error.code === 'EPIPE') process.exit(0);
  throw error;
});

try {
  const wanted = COMMANDS[process.argv[2] ?? ''];
  // Help and typing errors need to know every command.
  const loaders = wanted === undefined ? Object.values(COMMANDS) : [wanted];
  for (const load of loaders) (await load())(program);
  const expands = process.argv.some((arg) => /^--topology(=|$)/.test(arg));
  await program.parseAsync(expands ? await (await import('./topology.ts')).withTopology(process.argv) : process.argv);
} catch (error) {
  printError(error, process.argv.includes('--json'));
  // Exit code 2 tells a script that its own input was refused.
  process.exitCode = FloeError.is(error) && error.status < 500 ? 2 : 1;
}

function packageVersion(): string {
  const manifest = JSON.parse(readFileSync(join(packageRoot(), 'package.json'), 'utf8')) as {
    version: string;
  };
  return manifest.version;
}
