import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { systemClock } from '@floe-rl/core';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { builtInCatalog } from '../../src/host/catalog.ts';
import type { EpisodeOrder } from '../../src/host/protocol.ts';
import { runEpisode } from '../../src/host/run-episode.ts';
import { ToolsetPool } from '../../src/host/toolset-pool.ts';
import type { Box } from '../../src/tools/tool.ts';
import { scriptedModel } from '../loop/scripted-model.ts';
import { TestBox } from '../tools/open-box.ts';

const ORDER: EpisodeOrder = {
  ...{ sessionId: 's', taskId: 't', agent: 'swe', options: {}, tools: null, hints: false, seed: 0, instruction: 'Go.' },
  ...{ systemPrompt: null, metadata: {}, skills: [], environment: null, workdir: null },
  endpoint: { baseUrl: 'http://127.0.0.1:1', apiKey: '' },
  limits: { turns: null, contextTokens: null },
};

let sandbox: TestBox;
beforeAll(async () => {
  sandbox = await TestBox.open();
});
afterAll(() => sandbox.close());

/** Runs an episode of the agent `swe` that finishes at once. Resolves with the names of its tools, and its metrics. */
async function episodeIn(box: Box, indexDir: string) {
  const finish = { id: 'f', type: 'function' as const, function: { name: 'finish', arguments: '{}' } };
  const model = scriptedModel([{ role: 'assistant', content: null, tool_calls: [finish] }]);
  const { signal } = new AbortController();
  const pool = new ToolsetPool(systemClock);
  const services = { code_index_dir: indexDir };
  const end = await runEpisode(ORDER, {
    catalog: builtInCatalog(),
    pool,
    model,
    box,
    services,
    mcpServers: [],
    signal,
  });
  const tools = model.requests[0]?.tools.map((tool) => tool.function.name);
  return { status: end.result.status, tools, metrics: end.metrics };
}

describe('the tool code_search of the agent swe', () => {
  const OTHERS = ['bash', 'str_replace_editor', 'finish'];

  it('is there where the code can be indexed', async () => {
    const { status, tools } = await episodeIn(sandbox.box, join(sandbox.workdir, '..', 'indexes'));
    expect(status).toBe('finished');
    expect(tools).toEqual(['bash', 'str_replace_editor', 'code_search', 'finish']);
  });

  it('is left out where the directory of the indexes cannot be made', async () => {
    const file = join(sandbox.workdir, 'a-file');
    writeFileSync(file, '');
    const { status, tools, metrics } = await episodeIn(sandbox.box, join(file, 'indexes'));
    expect(status).toBe('finished');
    expect(tools).toEqual(OTHERS);
    expect(metrics).toMatchObject({ 'tools.left_out.code_search': 1 });
  });

  it('is left out where the sandbox lacks a program for it', async () => {
    const env = { PATH: '/nowhere' };
    const bare = { ...sandbox.box, shell: () => sandbox.box.shell({ env }) };
    const { status, tools } = await episodeIn(bare, join(sandbox.workdir, '..', 'indexes'));
    expect(status).toBe('finished');
    expect(tools).toEqual(OTHERS);
  });
});
