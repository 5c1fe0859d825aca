import { FloeError } from '@floe-rl/core';
import { claudeCodeHarness } from './claude-code.ts';
import { codexHarness } from './codex.ts';
import { floeHarness } from './floe.ts';
import { geminiCliHarness } from './gemini-cli.ts';
import type { HarnessAdapter } from './harness.ts';
import { miniSweAgentHarness } from './mini-swe-agent.ts';
import { opencodeHarness } from './opencode.ts';
import { openhandsHarness } from './openhands.ts';
import { piHarness } from './pi.ts';
import { qwenCodeHarness } from './qwen-code.ts';
import { shellHarness } from './shell.ts';

/** Returns a map of the adapters of all harnesses that floe can run, by the harness's name. */
export function harnessRegistry(): Map<string, HarnessAdapter> {
  const adapters: readonly HarnessAdapter[] = [
    claudeCodeHarness,
    codexHarness,
    floeHarness,
    geminiCliHarness,
    miniSweAgentHarness,
    opencodeHarness,
    openhandsHarness,
    piHarness,
    qwenCodeHarness,
    shellHarness,
  ];
  return new Map(adapters.map((adapter) => [adapter.name, adapter]));
}

/** Returns the adapter of the harness `name`. Throws `unknown_harness` with a list of the known names when there is none. */
export function findHarness(name: string): HarnessAdapter {
  const registry = harnessRegistry();
  const adapter = registry.get(name);
  if (adapter !== undefined) return adapter;
  const known = [...registry.keys()];
  throw new FloeError('unknown_harness', `there is no harness ${name}; known harnesses are ${known.join(', ')}`, {
    harness: name,
    known,
  });
}
