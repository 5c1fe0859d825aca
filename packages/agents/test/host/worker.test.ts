import { systemClock } from '@floe-rl/core';
import { expect, it } from 'vitest';
import { AgentProcess } from '../../src/host/agent-process.ts';

it('the compiled program of an agent process starts and loads its catalog', { timeout: 60_000 }, async () => {
  const modules = { agents: {}, environments: {}, tools: {} };
  const setup = { modules, services: {}, mcpServers: [] };
  const agents = new AgentProcess({ setup, env: {}, clock: systemClock, blockedMs: 60_000 });
  await expect(agents.ready).resolves.toBeUndefined();
  await agents.close();
});
