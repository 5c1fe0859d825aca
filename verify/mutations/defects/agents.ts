// biome-ignore-all lint/suspicious/noTemplateCurlyInString: these are pieces of source
import type { Mutation } from '../mutation.ts';

/** Defects in floe's own agents, their tools and environments, and in the processes that run plug-ins. */
export const AGENT_DEFECTS: readonly Mutation[] = [
  {
    name: 'agents: a call of a tool with wrong arguments is run',
    file: 'packages/agents/src/tools/json-schema.ts',
    find: '    if (validate(value)) return { args: value };',
    replace: '    return { args: value };',
    tests: ['packages/agents/test/tools/checked-arguments.test.ts'],
  },
  {
    name: 'agents: a broken call is not counted',
    file: 'packages/agents/src/loop/loop.ts',
    find: 'for (const call of checked) if (isBroken(call)) episode.count(`broken.${call.kind}`);',
    replace: '',
    tests: ['packages/agents/test/loop/loop.test.ts'],
  },
  {
    name: 'agents: the reward of a call is not that of the reply',
    file: 'packages/agents/src/loop/loop.ts',
    find: 'reward: rewards.reduce((sum, reward) => sum + reward, 0) });',
    replace: 'reward: rewards[0] ?? 0 });',
    tests: ['packages/agents/test/loop/loop.test.ts'],
  },
  {
    name: 'agents: calls on the environment run at the same time',
    file: 'packages/agents/src/loop/run-calls.ts',
    find: "    for (const call of withEffect('environment')) {\n      if (hasEnded()) outcomes",
    replace:
      "    await Promise.all(withEffect('environment').map(run));\n    for (const call of withEffect('environment').slice(0, 0)) {\n      if (hasEnded()) outcomes",
    tests: ['packages/agents/test/loop/loop.test.ts'],
  },
  {
    name: 'agents: finish ends the work before the required tool was called',
    file: 'packages/agents/src/loop/loop.ts',
    find: 'const reminder = ends && !calls.some(isRequired) ? this.reminderAtEnd() : null;',
    replace: 'const reminder = ends && calls.length === 0 ? this.reminderAtEnd() : null;',
    tests: ['packages/agents/test/loop/loop.test.ts'],
  },
  {
    name: 'agents: step_concat repeats the replies of the model',
    file: 'packages/agents/src/loop/play.ts',
    find: "    if (history === 'step_concat') return last.map(({ observation }) => observation);\n",
    replace: '',
    tests: ['packages/agents/test/loop/play.test.ts'],
  },
  {
    name: 'agents: the rewards of tools beside an environment are lost',
    file: 'packages/agents/src/loop/with-tools.ts',
    find: 'const reward = result.reward + rewardOf(outcomes);',
    replace: 'const { reward } = result;',
    tests: ['packages/agents/test/loop/with-tools.test.ts'],
  },
  {
    name: 'agents: a conversation with engines of another pool uses those of the task',
    file: 'packages/agents/src/loop/conversation.ts',
    find: 'enginePool: enginePool ?? facts.enginePool }',
    replace: 'enginePool: facts.enginePool }',
    tests: ['packages/agents/test/loop/conversation.test.ts'],
  },
  {
    name: 'agents: an agent reaches pools that its task does not list',
    file: 'packages/capture/src/proxy/session/thread-pools.ts',
    find: 'if (wanted !== pool && !extra.includes(wanted)) {',
    replace: "if (wanted === '') {",
    tests: ['packages/capture/test/proxy/session/thread-pools.test.ts'],
  },
  {
    name: 'environments: all episodes of a group have one seed',
    file: 'packages/core/src/rows/episode-rows.ts',
    find: 'groupSeed(source.seed, group) + episode) % SEEDS',
    replace: 'groupSeed(source.seed, group)) % SEEDS',
    tests: ['packages/agents/test/environments/groups'],
  },
  {
    name: 'environments: a server of another system gets no token',
    file: 'packages/agents/src/environments/remote/service.ts',
    find: 'return key === null ? {} : { authorization: `Bearer ${key}` };',
    replace: 'return key === null ? {} : {};',
    tests: ['packages/agents/test/environments/remote/openenv.test.ts'],
  },
  {
    name: 'plug-ins: two handlers are for one data source',
    file: 'packages/agents/src/host/catalog.ts',
    find: 'const other = names.get(source);\n      if (other !== undefined) {',
    replace: 'const other = names.get(source);\n      if (other === name) {',
    tests: ['packages/agents/test/host/handlers.test.ts'],
  },
  {
    name: 'plug-ins: a toolset that is kept is not reset',
    file: 'packages/agents/src/host/toolset-pool.ts',
    find: '      await toolset.reset();\n',
    replace: '',
    tests: ['packages/agents/test/integration/host/toolset-pool.test.ts'],
  },
  {
    name: 'search: the second document with an id is left out and not reported',
    file: 'packages/search/src/search/build.ts',
    find: '    if (earlier !== undefined) return earlier;',
    replace: '    if (earlier !== undefined) return null;',
    tests: ['packages/search/test/search/build.test.ts'],
  },
  {
    name: 'search: a document has a result for each of its passages',
    file: 'packages/search/src/search/fts.ts',
    find: 'if (!hits.has(id)) hits.set(id, {',
    replace: 'hits.set(`${passage} ${id}`, {',
    tests: ['packages/search/test/search/fts.test.ts'],
  },
];
