#!/usr/bin/env node
import { Command } from 'commander';
import { FloeError } from '../core/errors.ts';
import { registerCancel } from './cancel.ts';
import { registerDemo } from './demo/command.ts';
import { registerDoctor } from './doctor.ts';
import { registerGateway } from './gateway.ts';
import { registerHarness } from './harness.ts';
import { printError } from './print.ts';
import { registerResults } from './results.ts';
import { registerServer } from './server.ts';
import { registerSim } from './sim.ts';
import { registerStatus } from './status.ts';
import { registerSubmit } from './submit.ts';
import { registerTrace } from './trace.ts';
import { registerUp } from './up.ts';
import { version } from './version.ts';
import { registerWatch } from './watch.ts';

const program = new Command('floe')
  .description('Rollouts as a service for reinforcement learning of LLM agents')
  .version(version())
  .showHelpAfterError();

for (const register of [
  registerUp,
  registerServer,
  registerGateway,
  registerSim,
  registerSubmit,
  registerStatus,
  registerWatch,
  registerResults,
  registerCancel,
  registerTrace,
  registerHarness,
  registerDoctor,
  registerDemo,
]) {
  register(program);
}

// `floe results --json | head` closes our output early; that is not a failure.
process.stdout.on('error', (error: NodeJS.ErrnoException) => {
  if (error.code === 'EPIPE') process.exit(0);
  throw error;
});

try {
  await program.parseAsync(process.argv);
} catch (error) {
  printError(error, process.argv.includes('--json'));
  // Exit code 2 tells a script that its own input was refused.
  process.exitCode = FloeError.is(error) && error.status < 500 ? 2 : 1;
}
